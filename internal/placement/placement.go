// Package placement computes where the members of a cluster run. A free View and a Request give assignments, or a Refusal. The Refusal
// names the binding constraint and a request that would fit.
//
// The package is pure: no I/O, no clock, no randomness. Place does not change the view; the caller takes the assignments once they are
// committed. The package must never decide when a cluster is placed (admission decides that). It must never free anything by itself:
// only resources that an executor confirmed clean may be freed.
//
// Start with Place here, then view.go (free resources), plan.go (members per node), slots.go (cores of each member), refusal.go (reasons
// of a refusal) and sketch.go (hypothetical placements).
package placement

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
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
	Memory                 []api.MemoryClaim
	// ReserveBytes are taken of the node besides (api.Assignment).
	ReserveBytes int64
	// Whole is the whole node: Slots and Memory are all that it offers, and Ports are its own.
	Whole bool
	Ports []api.NodePort
	// By is the executor that carries the member, when it is not the node's agent.
	By             api.Executor
	Oversubscribed bool
	// SharesMemory is what its group asks for (api.Group).
	SharesMemory bool
	Display      bool
	// DiskBytes is the size of its private disk.
	DiskBytes int64
	CPUModel  string
	// RAMBoot is the boot generation of a node that keeps everything of its members in its memory; else 0.
	RAMBoot     int64
	Stack       api.Stack
	Environment string
	// Devices are what it gets of nodes' devices, its own node's among them.
	Devices []DevicesOn
	// Data are the ways of datasets for which its group leaves them open.
	Data []api.DataClaim
	// Keeps are the ports of the member that it succeeds, which are its own then; nil for one that gets new ones.
	Keeps []api.PortClaim
}

// MemoryBytes returns how much memory it gets.
func (p *Placed) MemoryBytes() int64 {
	sum := int64(0)
	for _, m := range p.Memory {
		sum += m.Bytes
	}
	return sum
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
func layOut(v *View, groups []api.Group, counts [][]nodeCount, touched map[int32]occupancy) []Placed {
	members, cores := 0, 0
	for _, g := range groups {
		members, cores = members+g.Size, cores+g.Size*g.Cores
	}
	placed := make([]Placed, 0, members)
	// Slots, CPUs and NUMA nodes of all members are cut from one piece of memory.
	numbers := make([]int, 0, 2*cores+members)
	// A node is worked on in a copy of its occupancy. Only the next group may meet the node again.
	if touched == nil && len(groups) > 1 {
		touched = make(map[int32]occupancy)
	}
	var copied occupancy
	for gi, g := range groups {
		index := 0
		for _, c := range counts[gi] {
			n := v.nodes[c.id]
			taken, ok := touched[c.id]
			if !ok {
				copied.cores, copied.memory, copied.pages = append(copied.cores[:0], n.taken...), memoryOf(n, copied.memory), pagesOf(n)
				taken = copied
				if touched != nil {
					taken, copied = copied, occupancy{}
					touched[c.id] = taken
				}
			}
			data := dataOf(&g, n.record.Name, int(c.members))
			for range c.members {
				p := Placed{
					Group: g.Name, Member: memberName(g.Name, index), Rank: len(placed), Node: n.record.Name, Whole: Whole(g.Stack),
					Oversubscribed: n.record.Oversubscribed || n.layout.shared, SharesMemory: g.SharesMemory(), Display: g.Display, CPUModel: g.CPUModel, Stack: g.Stack,
					Environment: g.Environment, RAMBoot: ramBoot(n, g.Stack), ReserveBytes: resource.Reserve(&g), DiskBytes: int64(g.Disk), Data: data,
				}
				data = withoutOptions(data)
				cores, memory := g.Cores, int64(g.Memory)
				if p.Whole {
					p.By = carrierOf(&n.record, g.Stack)
					cores, memory, p.Ports = len(n.layout.cores), n.record.Capacity.MemoryBytes, n.record.Capacity.Ports
				}
				numbers, p.Slots = cut(numbers, func(to []int) []int { return n.layout.pick(to, taken.cores, cores) })
				numbers, p.CPUs = cut(numbers, func(to []int) []int { return n.layout.cpus(to, p.Slots) })
				numbers, p.NUMANodes = cut(numbers, func(to []int) []int { return n.layout.numaNodes(to, p.Slots) })
				n.layout.numbers(p.Slots)
				if page := int64(g.HugePages); page > 0 {
					p.Memory = takePages(n, taken.pages, p.NUMANodes, memory, page)
				} else {
					p.Memory = takeMemory(n, taken.memory, p.NUMANodes, memory)
				}
				takeReserve(n, taken.memory, p.Memory, p.ReserveBytes)
				placed = append(placed, p)
				index++
			}
		}
	}
	return placed
}

// occupancy is what is taken of one node's cores, and what is free of its memory nodes.
type occupancy struct {
	cores  bitset
	memory memoryFree
	// pages are the free bytes of huge pages by their size; nil on a node without.
	pages map[int64]memoryFree
}

func (o occupancy) clone() occupancy {
	c := occupancy{cores: slices.Clone(o.cores), memory: slices.Clone(o.memory)}
	if o.pages != nil {
		c.pages = make(map[int64]memoryFree, len(o.pages))
		for size, free := range o.pages {
			c.pages[size] = slices.Clone(free)
		}
	}
	return c
}

// Whole reports whether members of a stack get whole nodes, which may be machines that are off: nothing of theirs is shared with anybody.
func Whole(stack api.Stack) bool { return stack == api.StackMetal }

// carrierOf is the executor that carries members of a stack on a node; empty: the node's agent.
func carrierOf(rec *api.NodeRecord, stack api.Stack) api.Executor {
	for i := range rec.Stacks {
		if rec.Stacks[i].Stack == stack && rec.Stacks[i].OK {
			return rec.Stacks[i].By
		}
	}
	return ""
}

// ramBoot is the boot in whose memory everything lies that members of a stack leave on a node; 0 when it does not. A member that gets the whole
// machine ends the boot that its agent told of, and is in none of its memory.
func ramBoot(n *node, stack api.Stack) int64 {
	if !n.record.InRAM || Whole(stack) {
		return 0
	}
	return n.record.BootGeneration
}

// cut lets add append to memory, and returns the memory and what was appended, closed to further appends.
func cut(memory []int, add func([]int) []int) (rest, piece []int) {
	from := len(memory)
	memory = add(memory)
	return memory, memory[from:len(memory):len(memory)]
}
