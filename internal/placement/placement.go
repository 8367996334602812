// Package placement computes where the members of a cluster go: a free View and a Request give assignments, or a
// Refusal that names the binding constraint and what would fit.
//
// It is pure: no I/O, no clock, no randomness, and Place leaves the view as it was; the caller takes the assignments once they
// are committed. It must never decide when a cluster is placed (that is admission's) nor free anything by itself: only
// what an executor confirmed clean may be freed. Start with Place here, then view.go (what is free), plan.go (how many
// members go to which node), slots.go (which cores they get), refusal.go (why not) and sketch.go (what would be if).
package placement

import (
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
	if refusal := Check(r); refusal != nil {
		return nil, refusal
	}
	counts, failed := planAll(v, r.Groups, conditions{level: freeNow})
	if failed != nil {
		return nil, refuse(v, r, failed)
	}
	return layOut(v, r.Groups, counts, nil), nil
}

// layOut gives every member its slots and rank: groups in the order of the request, nodes in natural order. Occupancy is that of the
// view, or that of touched, where nodes that members were laid out on before are, and get to be.
func layOut(v *View, groups []api.Group, counts [][]nodeCount, touched map[int32]bitset) []Placed {
	members, cores := 0, 0
	for _, g := range groups {
		members, cores = members+g.Size, cores+g.Size*g.Cores
	}
	placed := make([]Placed, 0, members)
	// Slots, CPUs and NUMA nodes of all members are cut from one piece of memory.
	numbers := make([]int, 0, 2*cores+members)
	// A node is worked on in a copy of its occupancy. Only the next group may meet the node again.
	if touched == nil && len(groups) > 1 {
		touched = make(map[int32]bitset)
	}
	var copied bitset
	for gi, g := range groups {
		index := 0
		for _, c := range counts[gi] {
			n := v.nodes[c.id]
			taken, ok := touched[c.id]
			if !ok {
				copied = append(copied[:0], n.taken...)
				taken = copied
				if touched != nil {
					taken, copied = copied, nil
					touched[c.id] = taken
				}
			}
			for range c.members {
				p := Placed{
					Group: g.Name, Member: memberName(g.Name, index), Rank: len(placed), Node: n.record.Name, MemoryBytes: int64(g.Memory),
					Oversubscribed: n.record.Oversubscribed || n.layout.shared, Stack: g.Stack, Environment: g.Environment,
				}
				numbers, p.Slots = cut(numbers, func(to []int) []int { return n.layout.pick(to, taken, g.Cores) })
				numbers, p.CPUs = cut(numbers, func(to []int) []int { return n.layout.cpus(to, p.Slots) })
				numbers, p.NUMANodes = cut(numbers, func(to []int) []int { return n.layout.numaNodes(to, p.Slots) })
				n.layout.numbers(p.Slots)
				placed = append(placed, p)
				index++
			}
		}
	}
	return placed
}

// cut lets add append to memory, and returns the memory and what was appended, closed to further appends.
func cut(memory []int, add func([]int) []int) (rest, piece []int) {
	from := len(memory)
	memory = add(memory)
	return memory, memory[from:len(memory):len(memory)]
}
