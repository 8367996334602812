// Package placement computes where the members of a cluster go: a free View and a Request give assignments, or a
// Refusal that names the binding constraint and what would fit.
//
// It is pure: no I/O, no clock, no randomness, and Place leaves the view as it was; the caller takes the assignments once they
// are committed. It must never decide when a cluster is placed (that is admission's) nor free anything by itself: only
// what an executor confirmed clean may be freed. Start with Place here, then view.go (what is free), plan.go (how many
// members go to which node), slots.go (which cores they get) and refusal.go (why not).
package placement

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Request asks for all groups of a cluster at once.
type Request struct {
	Cluster string
	// Groups are normalized: names, stacks and environments are filled in.
	Groups []api.Group
}

// Placed is one member that has a place.
type Placed struct {
	Group string
	// Member is its name, GROUP-0, GROUP-1, ... in rank order.
	Member string
	// Rank is unique in the cluster; members on one node have adjacent ranks within their group.
	Rank int
	Node string
	// Slots are the node's core slots, CPUs the physical CPUs behind them, in slot order; NUMANodes are sorted.
	Slots, CPUs, NUMANodes []int
	MemoryBytes            int64
	Oversubscribed         bool
	Stack                  api.Stack
	Environment            string
}

// Place finds a place for every member of the request, or none at all and the reason. The view is only read; equal views give
// equal answers, in whatever order their nodes were set.
func Place(v *View, r Request) ([]Placed, *Refusal) {
	if refusal := checkRequest(r); refusal != nil {
		return nil, refusal
	}
	counts, failed := planAll(v, r.Groups, conditions{level: freeNow})
	if failed != nil {
		return nil, refuse(v, r, failed)
	}
	return layOut(v, r.Groups, counts), nil
}

// layOut gives every member its slots and rank: groups in the order of the request, nodes in natural order.
func layOut(v *View, groups []api.Group, counts [][]nodeCount) []Placed {
	total := 0
	for _, g := range groups {
		total += g.Size
	}
	placed := make([]Placed, 0, total)
	// A node is worked on in a copy of its occupancy, kept for the next group when there is one.
	var touched map[int32]bitset
	if len(groups) > 1 {
		touched = make(map[int32]bitset)
	}
	for gi, g := range groups {
		index := 0
		for _, c := range counts[gi] {
			n := v.nodes[c.id]
			taken, ok := touched[c.id]
			if !ok {
				taken = slices.Clone(n.taken)
			}
			for range c.members {
				slots := n.layout.pick(taken, g.Cores)
				cpus, numa := n.layout.describe(slots)
				placed = append(placed, Placed{
					Group: g.Name, Member: memberName(g.Name, index), Rank: len(placed), Node: n.record.Name,
					Slots: n.layout.numbers(slots), CPUs: cpus, NUMANodes: numa, MemoryBytes: int64(g.Memory),
					Oversubscribed: n.record.Oversubscribed || n.layout.shared, Stack: g.Stack, Environment: g.Environment,
				})
				index++
			}
			if touched != nil {
				touched[c.id] = taken
			}
		}
	}
	return placed
}
