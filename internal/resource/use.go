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

// Use is how much of each class, and of each counter of devices, was held for how long.
type Use struct {
	classes [classes]Integral
	devices map[string]Integral
}

// Add adds what was held for a time, which may not be negative.
func (u *Use) Add(a Amounts, held time.Duration) {
	for c, n := range a.Vector {
		if n != 0 {
			u.classes[c].Add(n, held)
		}
	}
	for counter, n := range a.Devices {
		var i Integral
		i.Add(n, held)
		u.plus(counter, i)
	}
}

// Plus adds other use.
func (u *Use) Plus(o *Use) {
	for c := range u.classes {
		u.classes[c].Plus(o.classes[c])
	}
	for counter, i := range o.devices {
		u.plus(counter, i)
	}
}

func (u *Use) plus(counter string, i Integral) {
	if u.devices == nil {
		u.devices = map[string]Integral{}
	}
	sum := u.devices[counter]
	sum.Plus(i)
	u.devices[counter] = sum
}

// Of returns the use of a class.
func (u *Use) Of(c Class) Integral { return u.classes[c] }

// Devices returns the use of each counter of devices. It is only to be read; nil when none was held.
func (u *Use) Devices() map[string]Integral { return u.devices }
