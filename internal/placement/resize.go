package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// GrowthOf returns what a member of a group needs of its node beside what it holds there, to have the group's shape. What shrinks gives nothing back
// yet: the member holds both sizes until it has the new one.
func GrowthOf(a *api.Assignment, g *api.Group) resource.Vector {
	growth := resource.OfShape(g.Shape).Beyond(resource.OfAssignment(a).Vector)
	if class, huge := resource.HugePages(int64(g.HugePages)); huge {
		growth[class], growth[resource.Memory] = growth[resource.Memory], 0
	}
	growth[resource.Memory] += max(0, resource.Reserve(g)-a.ReserveBytes)
	return growth
}

// FitResize finds room for a member that is to have the shape of its group, on its own node. A reason tells people why there is none. undecided: the
// node is not heard of, and may have room.
func (s *Sketch) FitResize(a *api.Assignment, g *api.Group) (share Share, reason string, undecided bool) {
	id, ok := s.view.ids[a.Node]
	if !ok {
		return share, fmt.Sprintf("the site has no node %s", a.Node), false
	}
	growth := GrowthOf(a, g)
	share = Share{node: id, cores: int32(growth[resource.Cores]), memory: growth[resource.Memory], besides: growth}
	share.besides[resource.Cores], share.besides[resource.Memory] = 0, 0
	if growth == (resource.Vector{}) {
		return share, "", false
	}
	switch availability := s.view.nodes[id].availability; availability {
	case Schedulable:
	case Unknown:
		return share, fmt.Sprintf("node %s is not reporting", a.Node), true
	default:
		return share, fmt.Sprintf("node %s is %s", a.Node, availability), false
	}
	free := s.view.availableBesides(id, freeNow)
	free[resource.Cores], free[resource.Memory] = int64(s.view.rows[id].freeCores), s.view.rows[id].freeMemory
	var short []string
	for c, need := range growth {
		if class := resource.Class(c); need > 0 && need > free[c] {
			short = append(short, fmt.Sprintf("%s more needed, %s free", class.Text(need), class.Text(max(free[c], 0))))
		}
	}
	if len(short) > 0 {
		return share, fmt.Sprintf("node %s has no room for it (%s)", a.Node, strings.Join(short, "; ")), false
	}
	return share, "", false
}

// LayOutResize returns what a member that fits holds from now on, and its new size in it. The member keeps the cores and the memory that it has, as
// far as it is to have as much. It takes single cores of the sketch, but not their number: call Take besides.
func (s *Sketch) LayOutResize(a *api.Assignment, g *api.Group) (hold, to api.Size, err error) {
	id := s.view.ids[a.Node]
	n := s.view.nodes[id]
	taken := s.occupancyOf(id)
	held := a.Held()
	hold, to = held, api.Size{Number: a.Wants().Number + 1, ReserveBytes: resource.Reserve(g), DiskBytes: int64(g.Disk)}
	hold.ReserveBytes, hold.DiskBytes = max(held.ReserveBytes, to.ReserveBytes), max(held.DiskBytes, to.DiskBytes)
	positions, err := n.layout.positionsOf(held.Slots)
	if err != nil {
		return hold, to, fmt.Errorf("member %s on node %s: %w", a.Member, a.Node, err)
	}
	first, err := n.layout.positionsOf(a.Has().Slots)
	if err != nil {
		return hold, to, fmt.Errorf("member %s on node %s: %w", a.Member, a.Node, err)
	}
	picked := n.layout.pickBeside(first, positions, taken.cores, g.Cores)
	to.CPUs, to.NUMANodes = n.layout.cpus(nil, picked), n.layout.numaNodes(nil, picked)
	to.Slots = slices.Clone(picked)
	n.layout.numbers(to.Slots)
	if len(picked) > len(held.Slots) {
		hold.Slots, hold.CPUs, hold.NUMANodes = to.Slots, to.CPUs, to.NUMANodes
	}
	memory, page := int64(g.Memory), int64(g.HugePages)
	switch more := memory - a.MemoryBytes(); {
	case more > 0 && page > 0:
		hold.Memory = mergeClaims(held.Memory, takePages(n, taken.pages, to.NUMANodes, more, page))
		to.Memory = hold.Memory
	case more > 0:
		hold.Memory = mergeClaims(held.Memory, takeMemory(n, taken.memory, to.NUMANodes, more))
		to.Memory = hold.Memory
	default:
		to.Memory = shrinkClaims(held.Memory, to.NUMANodes, -more)
	}
	takeReserve(n, taken.memory, to.Memory, max(0, to.ReserveBytes-held.ReserveBytes))
	return hold, to, nil
}

// occupancyOf returns the occupancy of a node, which members that are laid out change.
func (s *Sketch) occupancyOf(id int32) occupancy {
	taken, ok := s.slots[id]
	if !ok {
		n := s.view.nodes[id]
		taken = occupancy{cores: slices.Clone(n.taken), memory: memoryOf(n, nil), pages: pagesOf(n)}
		s.slots[id] = taken
	}
	return taken
}

// positionsOf returns the positions of slots.
func (l *layout) positionsOf(slots []int) ([]int, error) {
	positions := make([]int, 0, len(slots))
	for _, slot := range slots {
		p, ok := l.position(slot)
		if !ok {
			return nil, fmt.Errorf("its node no longer offers core slot %d", slot)
		}
		positions = append(positions, p)
	}
	return positions, nil
}

// pickBeside picks n positions for a member that has some: of first before others of held, then free ones on the NUMA nodes that it is on, then any.
// It marks those in taken.
func (l *layout) pickBeside(first, held []int, taken bitset, n int) []int {
	var picked []int
	from := func(allowed func(position int) bool) {
		closed, open := newBitset(len(l.cores)), 0
		for p := range l.cores {
			if slices.Contains(picked, p) || !allowed(p) {
				closed.set(p)
			} else {
				open++
			}
		}
		if want := min(n-len(picked), open); want > 0 {
			picked = l.pick(picked, closed, want)
		}
	}
	near := l.numaNodes(nil, held)
	from(func(p int) bool { return slices.Contains(first, p) })
	from(func(p int) bool { return slices.Contains(held, p) })
	from(func(p int) bool { return !taken.has(p) && slices.Contains(near, l.cores[p].NUMANode) })
	from(func(p int) bool { return !taken.has(p) })
	for _, p := range picked {
		taken.set(p)
	}
	slices.Sort(picked)
	return picked
}

// mergeClaims adds claims of memory to others.
func mergeClaims(held, more []api.MemoryClaim) []api.MemoryClaim {
	all := slices.Clone(held)
	for _, m := range more {
		i := slices.IndexFunc(all, func(o api.MemoryClaim) bool { return o.NUMANode == m.NUMANode && o.PageBytes == m.PageBytes })
		if i < 0 {
			all = append(all, m)
			continue
		}
		all[i].Bytes += m.Bytes
	}
	slices.SortFunc(all, func(a, b api.MemoryClaim) int { return cmp.Compare(a.NUMANode, b.NUMANode) })
	return all
}

// shrinkClaims takes bytes off claims of memory: of memory nodes without the member's cores before others, then of the largest claim.
func shrinkClaims(held []api.MemoryClaim, near []int, bytes int64) []api.MemoryClaim {
	all := slices.Clone(held)
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	isNear := func(i int) int {
		if slices.Contains(near, all[i].NUMANode) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(isNear(i), isNear(j)), cmp.Compare(all[j].Bytes, all[i].Bytes))
	})
	for _, i := range order {
		off := min(bytes, all[i].Bytes)
		all[i].Bytes, bytes = all[i].Bytes-off, bytes-off
	}
	return slices.DeleteFunc(all, func(m api.MemoryClaim) bool { return m.Bytes == 0 })
}
