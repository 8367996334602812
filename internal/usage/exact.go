package usage

import (
	"math/big"
	"math/bits"

	"github.com/nearmetal/nearmetal/api"
)

// wide is a sum of products of nanoseconds and a count (cores, bytes): 128 bits, so that a terabyte held for a thousand years fits.
type wide struct{ hi, lo uint64 }

// addProduct adds two numbers' product; neither is negative.
func (w *wide) addProduct(ns, n int64) {
	hi, lo := bits.Mul64(uint64(ns), uint64(n))
	w.add(wide{hi, lo})
}

func (w *wide) add(other wide) {
	var carry uint64
	w.lo, carry = bits.Add64(w.lo, other.lo, 0)
	w.hi, _ = bits.Add64(w.hi, other.hi, carry)
}

// over is the exact quotient.
func (w wide) over(denominator *big.Int) *big.Rat {
	n := new(big.Int).SetUint64(w.hi)
	n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(w.lo))
	return new(big.Rat).SetFrac(n, denominator)
}

// amount is a quantity of use, exact: whole numbers of nanoseconds times members, cores and bytes.
type amount struct {
	members, cores, bytes wide
	// nodes are the cores again, apart for each number of cores that a node had: a node's share is cores over that number.
	nodes []nodeShare
}

type nodeShare struct {
	nodeCores int64
	cores     wide
}

// add counts what is held for a time on a node with so many cores.
func (a *amount) add(ns int64, h holding, nodeCores int64) {
	a.members.addProduct(ns, h.members)
	a.cores.addProduct(ns, h.cores)
	a.bytes.addProduct(ns, h.bytes)
	if h.cores > 0 {
		a.share(nodeCores).addProduct(ns, h.cores)
	}
}

// plus adds another amount.
func (a *amount) plus(b *amount) {
	a.members.add(b.members)
	a.cores.add(b.cores)
	a.bytes.add(b.bytes)
	for _, s := range b.nodes {
		a.share(s.nodeCores).add(s.cores)
	}
}

func (a *amount) share(nodeCores int64) *wide {
	for i := range a.nodes {
		if a.nodes[i].nodeCores == nodeCores {
			return &a.nodes[i].cores
		}
	}
	a.nodes = append(a.nodes, nodeShare{nodeCores: nodeCores})
	return &a.nodes[len(a.nodes)-1].cores
}

// seconds rounds each quantity once, to the nearest number there is.
func (a *amount) seconds() api.Amount {
	second := big.NewInt(1e9)
	nodes := new(big.Rat)
	for _, s := range a.nodes {
		nodes.Add(nodes, s.cores.over(new(big.Int).Mul(second, big.NewInt(s.nodeCores))))
	}
	round := func(r *big.Rat) float64 { f, _ := r.Float64(); return f }
	return api.Amount{
		NodeSeconds: round(nodes), MemberSeconds: round(a.members.over(second)), CoreSeconds: round(a.cores.over(second)),
		MemoryByteSeconds: round(a.bytes.over(second)),
	}
}

// holding is what is held, offered or free at one moment.
type holding struct{ members, cores, bytes int64 }

func (h holding) plus(o holding) holding {
	return holding{h.members + o.members, h.cores + o.cores, h.bytes + o.bytes}
}

func (h holding) minus(o holding) holding {
	return holding{h.members - o.members, h.cores - o.cores, h.bytes - o.bytes}
}
