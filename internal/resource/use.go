package resource

import (
	"math/big"
	"math/bits"
	"time"
)

// Integral is an amount over time: a sum of amounts times nanoseconds, exact. It has 128 bits, so that a terabyte held for a thousand
// years fits.
type Integral struct{ high, low uint64 }

// Add adds an amount held for a time. Neither may be negative.
func (i *Integral) Add(amount int64, held time.Duration) {
	high, low := bits.Mul64(uint64(held), uint64(amount))
	i.Plus(Integral{high, low})
}

// Plus adds another integral.
func (i *Integral) Plus(o Integral) {
	var carry uint64
	i.low, carry = bits.Add64(i.low, o.low, 0)
	i.high, _ = bits.Add64(i.high, o.high, carry)
}

// Over returns the exact quotient of the amount-nanoseconds.
func (i Integral) Over(denominator *big.Int) *big.Rat {
	n := new(big.Int).SetUint64(i.high)
	n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(i.low))
	return new(big.Rat).SetFrac(n, denominator)
}

// Seconds returns the amount-seconds, rounded once to the nearest number there is.
func (i Integral) Seconds() float64 {
	f, _ := i.Over(big.NewInt(int64(time.Second))).Float64()
	return f
}

// Use is how much of each class was held for how long.
type Use [classes]Integral

// Add adds what was held for a time, which may not be negative.
func (u *Use) Add(v Vector, held time.Duration) {
	for c := range u {
		if v[c] != 0 {
			u[c].Add(v[c], held)
		}
	}
}

// Plus adds other use.
func (u *Use) Plus(o *Use) {
	for c := range u {
		u[c].Plus(o[c])
	}
}
