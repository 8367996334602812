package placement

import (
	"github.com/nearmetal/nearmetal/api"
)

// withData are the nodes that have all datasets of a group: it goes there as a whole where they have room, since nothing is fetched then. nil: there are none.
func (v *View) withData(p api.DataPlace) bitset {
	var nodes bitset
	for _, name := range p.Whole {
		id := v.nodeHere(name)
		if id < 0 {
			continue
		}
		if nodes == nil {
			nodes = newBitset(len(v.rows))
		}
		nodes.set(int(id))
	}
	return nodes
}
