package usage

import (
	"math/big"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// amount is a quantity of use, exact.
type amount struct {
	use resource.Use
	// nodes are the cores again, apart for each number of cores that a node had: a node's share is cores over that number.
	nodes []nodeShare
	// energy is nil where nothing is known of it. It does not depend on what is held.
	energy *energyUse
}

type nodeShare struct {
	nodeCores int64
	cores     resource.Integral
}

// add counts what is held for a time on a node with so many cores.
func (a *amount) add(ns int64, held resource.Amounts, nodeCores int64) {
	a.use.Add(held, time.Duration(ns))
	if cores := held.Vector[resource.Cores]; cores > 0 {
		a.share(nodeCores).Add(cores, time.Duration(ns))
	}
}

// plus adds another amount.
func (a *amount) plus(b *amount) {
	a.use.Plus(&b.use)
	for _, s := range b.nodes {
		a.share(s.nodeCores).Plus(s.cores)
	}
}

func (a *amount) share(nodeCores int64) *resource.Integral {
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
	nodes := new(big.Rat)
	for _, s := range a.nodes {
		nodes.Add(nodes, s.cores.Over(new(big.Int).Mul(big.NewInt(int64(time.Second)), big.NewInt(s.nodeCores))))
	}
	nodeSeconds, _ := nodes.Float64()
	amount := api.Amount{
		NodeSeconds: nodeSeconds, MemberSeconds: a.use.Of(resource.Members).Seconds(), CoreSeconds: a.use.Of(resource.Cores).Seconds(),
		MemoryByteSeconds: a.use.Of(resource.Memory).Seconds(), StorageByteSeconds: a.use.Of(resource.Storage).Seconds(),
	}
	for counter, use := range a.use.Devices() {
		if amount.DeviceSeconds == nil {
			amount.DeviceSeconds = map[string]float64{}
		}
		amount.DeviceSeconds[counter] = use.Seconds()
	}
	return amount
}
