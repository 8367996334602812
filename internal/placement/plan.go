package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// A plan counts how many members of each group go to each node. It is one linear pass over compact rows for each group: 16 to 32
// bytes a node, so that 100,000 nodes cost about a millisecond and no index has to be kept right beside the rows. See BenchmarkPlace.

// level says what counts as available: what is free now, or what would be if something were given back. A refusal asks
// level by level what would have to change.
type level uint8

const (
	freeNow       level = iota // schedulable nodes, what is free
	freeOrUnknown              // and what is free on nodes that are not heard of
	emptied                    // schedulable nodes, as if only what is quarantined were held
	unquarantined              // schedulable nodes, as if nothing were held
	everything                 // all nodes of the inventory, as if nothing were held
)

// conditions say under which assumptions a plan is made; the zero value is the truth.
type conditions struct {
	level level
	// ignore drops one kind of constraint from group number group.
	ignore Constraint
	group  int
}

type nodeCount struct {
	id      int32
	members int32
}

// failure tells which group could not be planned, and what the groups before it had been given.
type failure struct {
	group int
	// fits is how many of its members would fit.
	fits int
	used map[int32]use
}

// use is what a plan has taken from a node so far.
type use struct {
	cores  int32
	memory int64
}

// planAll plans all groups. Groups that are hard to place come first: a plan is greedy, and a large member placed late finds only gaps.
// When that fails, the order by memory is tried too.
func planAll(v *View, groups []api.Group, c conditions) ([][]nodeCount, *failure) {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	byCores := func(a, b int) int { return cmp.Compare(groups[b].Cores, groups[a].Cores) }
	byMemory := func(a, b int) int { return cmp.Compare(groups[b].Memory, groups[a].Memory) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(byCores(a, b), byMemory(a, b)) })
	counts, failed := planInOrder(v, groups, order, c)
	if failed == nil || len(groups) == 1 {
		return counts, failed
	}
	slices.SortStableFunc(order, byMemory)
	if again, failedAgain := planInOrder(v, groups, order, c); failedAgain == nil {
		return again, nil
	}
	return nil, failed
}

func planInOrder(v *View, groups []api.Group, order []int, c conditions) ([][]nodeCount, *failure) {
	counts := make([][]nodeCount, len(groups))
	var used map[int32]use
	if len(groups) > 1 {
		used = make(map[int32]use)
	}
	for _, gi := range order {
		g := groups[gi]
		found, fits := planGroup(v, g, gi, c, used)
		if found == nil {
			return nil, &failure{group: gi, fits: fits, used: used}
		}
		counts[gi] = found
		if used != nil {
			for _, n := range found {
				u := used[n.id]
				used[n.id] = use{cores: u.cores + n.members*int32(g.Cores), memory: u.memory + int64(n.members)*int64(g.Memory)}
			}
		}
	}
	return counts, nil
}

// candidate is a node that can hold members of the group: members of them, leaving spare cores.
type candidate struct {
	id      int32
	members int32
	spare   int32
	over    bool
}

// planGroup returns how many members go where, in the natural order of the nodes, or nil and how many would fit.
func planGroup(v *View, g api.Group, index int, c conditions, used map[int32]use) ([]nodeCount, int) {
	var candidates []candidate
	total, exclusive, largest := 0, 0, int32(0)
	scan(v, g, index, c, used, func(f candidate) {
		candidates = append(candidates, f)
		total += int(f.members)
		if !f.over {
			exclusive += int(f.members)
		}
		largest = max(largest, f.members)
	})
	if total < g.Size {
		return nil, total
	}
	chosen := make([]nodeCount, 0, min(g.Size, len(candidates)))
	first := min(g.Size, exclusive)
	chosen = choose(chosen, candidates, false, first, largest)
	chosen = choose(chosen, candidates, true, g.Size-first, largest)
	if first > 0 && first < g.Size {
		// Both kinds of nodes were needed: bring them into one order.
		at := make(map[int32]int32, len(chosen))
		for _, n := range chosen {
			at[n.id] = n.members
		}
		chosen = chosen[:0]
		for _, f := range candidates {
			if m, ok := at[f.id]; ok {
				chosen = append(chosen, nodeCount{id: f.id, members: m})
			}
		}
	}
	return chosen, total
}

// scan yields every node that can hold at least one member of the group, in the natural order of names.
func scan(v *View, g api.Group, index int, c conditions, used map[int32]use, yield func(candidate)) {
	ignore := c.ignore
	if index != c.group {
		ignore = ""
	}
	platforms := v.platforms.matching(func(p platform) bool {
		return (ignore == ConstraintStack || p.hasStack(g.Stack)) &&
			(ignore == ConstraintStack || ignore == ConstraintEnvironment || p.hasEnvironment(g.Environment, g.Stack))
	})
	var labels []bool
	if len(g.NodeSelector) > 0 && ignore != ConstraintLabels {
		labels = v.labels.matching(func(l map[string]string) bool { return selects(g.NodeSelector, l) })
	}
	cores, memory := int32(min(g.Cores, math.MaxInt32)), int64(g.Memory)
	if ignore == ConstraintMemory {
		memory = 0
	}
	for _, id := range v.order {
		r := &v.rows[id]
		if c.level == freeNow && (r.state != rowSchedulable || r.freeCores < cores || r.freeMemory < memory) {
			continue
		}
		if !platforms[r.platform] || (labels != nil && !labels[r.labels]) {
			continue
		}
		freeCores, freeMemory, ok := v.available(id, c.level)
		if !ok {
			continue
		}
		if used != nil {
			u := used[id]
			freeCores, freeMemory = freeCores-u.cores, freeMemory-u.memory
		}
		members := freeCores / cores
		if memory > 0 {
			members = int32(max(0, min(int64(members), freeMemory/memory)))
		}
		if members > 0 {
			yield(candidate{id: id, members: members, spare: freeCores - members*cores, over: r.over})
		}
	}
}

// available returns what counts as available on a node at a level.
func (v *View) available(id int32, l level) (cores int32, memory int64, ok bool) {
	r := &v.rows[id]
	switch l {
	case freeNow:
		return r.freeCores, r.freeMemory, r.state == rowSchedulable
	case freeOrUnknown:
		return r.freeCores, r.freeMemory, r.state != rowUnavailable
	case emptied:
		c := &v.cold[id]
		return c.cores - c.quarantinedCores, c.memory - c.quarantinedMemory, r.state == rowSchedulable
	case unquarantined:
		c := &v.cold[id]
		return c.cores, c.memory, r.state == rowSchedulable
	default:
		c := &v.cold[id]
		return c.cores, c.memory, v.nodes[id].availability != Absent
	}
}

// choose appends the nodes that take n members, as few as can be, in order: whole nodes from the roomiest down, and the rest on
// the node it fits most tightly. It takes only nodes of the given kind (over: CPUs are shared).
func choose(chosen []nodeCount, candidates []candidate, over bool, n int, largest int32) []nodeCount {
	if n == 0 {
		return chosen
	}
	room := make([]int, largest+1)
	for _, f := range candidates {
		if f.over == over {
			room[f.members]++
		}
	}
	whole, lastRoom, last := split(room, n)
	lastAt, skip := -1, whole[lastRoom]
	for i, f := range candidates {
		if f.over != over || int(f.members) != lastRoom {
			continue
		}
		if skip > 0 {
			skip--
		} else if lastAt < 0 || f.spare < candidates[lastAt].spare {
			lastAt = i
		}
	}
	for i, f := range candidates {
		switch {
		case f.over != over:
		case i == lastAt:
			chosen = append(chosen, nodeCount{id: f.id, members: int32(last)})
		case whole[f.members] > 0:
			whole[f.members]--
			chosen = append(chosen, nodeCount{id: f.id, members: f.members})
		}
	}
	return chosen
}

// split decides, given how many nodes have room for k members (room[k]), how many of them are filled (whole[k]), and that one
// more, with room for lastRoom, takes the last members. There is room for n in all, and n > 0.
func split(room []int, n int) (whole []int, lastRoom, last int) {
	whole = make([]int, len(room))
	for largest := len(room) - 1; ; {
		for k := n; k < len(room); k++ {
			if room[k] > whole[k] {
				return whole, k, n
			}
		}
		for largest > 0 && room[largest] == whole[largest] {
			largest--
		}
		// Every node left has less room than n: fill as many of the roomiest as leave something for the next round.
		fill := min(room[largest]-whole[largest], (n-1)/largest)
		whole[largest] += fill
		n -= fill * largest
	}
}
