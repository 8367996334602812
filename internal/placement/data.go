package placement

import (
	"github.com/nearmetal/nearmetal/api"
)

// allWithData puts a whole group on nodes that have all its datasets, since nothing is fetched then: nil where they have no room for all of it.
func (f *finder) allWithData(p api.DataPlace, size int) []nodeCount {
	if len(p.Whole) == 0 || f.level != freeNow {
		return nil
	}
	near := *f
	near.only = newBitset(len(f.v.rows))
	for _, name := range p.Whole {
		if id := f.v.nodeHere(name); id >= 0 {
			near.only.set(int(id))
		}
	}
	all, _ := near.plan(size)
	return all
}
