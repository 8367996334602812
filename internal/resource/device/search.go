package device

import (
	"encoding/binary"
	"slices"
)

// maxSteps bounds a search. Machines whose devices are of few kinds need a few dozen.
const maxSteps = 4_000

// search is one attempt to place requests. Its state is what is free and in which mode devices are, and by that each node has a number:
// nodes with equal numbers are exchangeable, with all that hangs on them. So of devices with equal numbers, under nodes with equal numbers,
// one is tried; and a state is known by the number of the root, so that one that failed is not tried again.
type search struct {
	tree     *Tree
	requests []Request
	groups   []group
	// endless marks slots that never run out; anyMode lets parts of different modes share a device.
	endless []bool
	anyMode bool
	free    []int64
	mode    []int32 // by node; 0: nothing is held
	modes   map[string]int32

	// up is the nearest ancestor whose counters matter, by node; the last entry of numbers is a root above all. below are the nodes that matter,
	// by their up; counts are the slots that matter.
	up     []int
	below  [][]int
	counts [][]int
	kinds  []int32 // by node, as numbers; 0 for nodes that no group wants

	number  []int32
	numbers map[string]int32
	buffer  []byte
	sorted  []int32

	bounds []bound

	failed map[state]bool
	chosen [][]int // by group: the nodes of its parts
	steps  int
}

// state is what decides whether the rest can be placed.
type state struct{ root, group, left int32 }

// newSearch makes a search in which the counters to ignore never run out; Mode among them stands for the modes.
func newSearch(t *Tree, requests []Request, ignore ...string) *search {
	s := &search{
		tree: t, requests: requests, free: slices.Clone(t.free), mode: make([]int32, len(t.nodes)), modes: map[string]int32{},
		endless: make([]bool, len(t.slots)), anyMode: slices.Contains(ignore, Mode), numbers: map[string]int32{}, failed: map[state]bool{},
	}
	for at := range t.slots {
		s.endless[at] = slices.Contains(ignore, t.slots[at].counter)
	}
	for id := range t.nodes {
		if n := &t.nodes[id]; n.holders > 0 {
			s.mode[id] = s.numberOf(n.mode)
		}
	}
	s.makeGroups()
	s.chosen = make([][]int, len(s.groups))
	s.makeBounds()
	s.reduce()
	return s
}

// numberOf is a number, from 1, for a mode.
func (s *search) numberOf(mode string) int32 {
	n, ok := s.modes[mode]
	if !ok {
		n = int32(len(s.modes) + 1)
		s.modes[mode] = n
	}
	return n
}

// reduce finds the nodes and slots that matter to the groups, and numbers the nodes.
func (s *search) reduce() {
	nodes, root := s.tree.nodes, len(s.tree.nodes)
	s.kinds, s.up, s.below, s.counts = make([]int32, root), make([]int, root), make([][]int, root+1), make([][]int, root+1)
	s.number = make([]int32, root+1)
	matters := make([]bool, len(s.free))
	type wants struct {
		kind *Kind
		by   string
	}
	kinds := map[wants]int32{}
	for id := range nodes {
		wanted := s.buffer[:0]
		for g := range s.groups {
			if s.groups[g].needs[id] == nil {
				continue
			}
			wanted = binary.AppendUvarint(wanted, uint64(g)+1)
			for _, n := range s.groups[g].needs[id] {
				matters[n.slot] = !s.endless[n.slot]
			}
		}
		if len(wanted) > 0 {
			// What a part takes follows from the device's kind and the group.
			key := wants{nodes[id].device.Kind, string(wanted)}
			if kinds[key] == 0 {
				kinds[key] = int32(len(kinds) + 1)
			}
			s.kinds[id] = kinds[key]
		}
		s.buffer = wanted
	}
	for at, m := range matters {
		if m {
			n := s.tree.slots[at].node
			s.counts[n] = append(s.counts[n], at)
		}
	}
	for id := range nodes {
		s.up[id] = root
		for a := nodes[id].parent; a >= 0; a = nodes[a].parent {
			if len(s.counts[a]) > 0 {
				s.up[id] = a
				break
			}
		}
		if s.kinds[id] != 0 || len(s.counts[id]) > 0 {
			s.below[s.up[id]] = append(s.below[s.up[id]], id)
		}
	}
	for id := root - 1; id >= 0; id-- {
		s.renumber(id)
	}
	s.renumber(root)
}

// renumber gives a node the number of all nodes that are like it now. Those below it have theirs.
func (s *search) renumber(id int) {
	b := s.buffer[:0]
	if id < len(s.kinds) {
		b = binary.AppendUvarint(b, uint64(s.kinds[id]))
		b = binary.AppendUvarint(b, uint64(s.mode[id]))
	}
	for _, at := range s.counts[id] {
		b = append(append(b, s.tree.slots[at].counter...), 0)
		b = binary.AppendUvarint(b, uint64(s.free[at]))
	}
	s.sorted = s.sorted[:0]
	for _, child := range s.below[id] {
		s.sorted = append(s.sorted, s.number[child])
	}
	slices.Sort(s.sorted)
	b = append(b, 0)
	for _, n := range s.sorted {
		b = binary.AppendUvarint(b, uint64(n))
	}
	s.buffer = b
	n, ok := s.numbers[string(b)]
	if !ok {
		n = int32(len(s.numbers) + 1)
		s.numbers[string(b)] = n
	}
	s.number[id] = n
}

// run places all groups. It reports false also when it ran out of steps.
func (s *search) run() bool {
	for g := range s.groups {
		if !s.roomFor(g, s.groups[g].count) {
			return false
		}
	}
	return len(s.groups) == 0 || s.enough(0, s.groups[0].count) && s.place(0, s.groups[0].count)
}

// place places the last parts of a group, and all groups behind it.
func (s *search) place(g, left int) bool {
	for left == 0 {
		if g++; g == len(s.groups) {
			return true
		}
		left = s.groups[g].count
	}
	at := state{s.number[len(s.number)-1], int32(g), int32(left)}
	if s.failed[at] || s.steps >= maxSteps {
		return false
	}
	s.steps++
	for _, id := range s.candidates(g) {
		before := s.mode[id]
		s.take(g, id)
		s.chosen[g] = append(s.chosen[g], id)
		if s.hasRoom(g, left-1) && s.place(g, left-1) {
			return true
		}
		s.chosen[g] = s.chosen[g][:len(s.chosen[g])-1]
		s.give(g, id, before)
	}
	s.failed[at] = true
	return false
}

// candidates are the devices for a part of a group, the one with the least to spare first, one of each that are exchangeable.
func (s *search) candidates(g int) []int {
	var found []int
	var spare []int64
	for id := range s.groups[g].needs {
		if !s.fits(&s.groups[g], id) || slices.ContainsFunc(found, func(other int) bool { return s.exchangeable(id, other) }) {
			continue
		}
		left := s.spare(s.groups[g].needs[id])
		at := len(found)
		for at > 0 && spare[at-1] > left {
			at--
		}
		found, spare = slices.Insert(found, at, id), slices.Insert(spare, at, left)
	}
	return found
}

// exchangeable reports whether two devices, and the nodes above them level by level, are alike.
func (s *search) exchangeable(a, b int) bool {
	root := len(s.up)
	for s.number[a] == s.number[b] {
		if a == b || a == root || b == root {
			return a == b
		}
		a, b = s.up[a], s.up[b]
	}
	return false
}

// fits reports whether a node can give a part to the group now.
func (s *search) fits(g *group, id int) bool {
	if g.needs[id] == nil || s.mode[id] != 0 && s.mode[id] != g.mode[id] && !s.anyMode {
		return false
	}
	for _, n := range g.needs[id] {
		if s.free[n.slot] < n.amount && !s.endless[n.slot] {
			return false
		}
	}
	return true
}

func (s *search) take(g, id int) {
	for _, n := range s.groups[g].needs[id] {
		if !s.endless[n.slot] {
			s.free[n.slot] -= n.amount
		}
	}
	s.mode[id] = s.groups[g].mode[id]
	s.renumberFrom(id)
}

func (s *search) give(g, id int, before int32) {
	for _, n := range s.groups[g].needs[id] {
		if !s.endless[n.slot] {
			s.free[n.slot] += n.amount
		}
	}
	s.mode[id] = before
	s.renumberFrom(id)
}

func (s *search) renumberFrom(id int) {
	for ; id < len(s.up); id = s.up[id] {
		s.renumber(id)
	}
	s.renumber(id)
}

// hasRoom reports whether each group that has parts left would have room for them if it were alone: what it says no to is hopeless.
func (s *search) hasRoom(g, left int) bool {
	if !s.roomFor(g, left) || !s.enough(g, left) {
		return false
	}
	for later := g + 1; later < len(s.groups); later++ {
		if !s.roomFor(later, s.groups[later].count) {
			return false
		}
	}
	return true
}

// roomFor reports whether the devices, each for itself, have room for so many parts of a group.
func (s *search) roomFor(g, parts int) bool {
	for id := range s.groups[g].needs {
		if parts <= 0 {
			return true
		}
		if s.fits(&s.groups[g], id) {
			parts -= int(s.most(s.groups[g].needs[id], int64(parts)))
		}
	}
	return parts <= 0
}

// most is how many parts fit on a device, at most so many.
func (s *search) most(needs []need, parts int64) int64 {
	for _, n := range needs {
		if !s.endless[n.slot] {
			parts = min(parts, s.free[n.slot]/n.amount)
		}
	}
	return parts
}

// parts deals the devices that were chosen to the requests of each group.
func (s *search) parts() [][]Part {
	all := make([][]Part, len(s.requests))
	for i, g := range s.groups {
		chosen := s.chosen[i]
		for _, r := range g.requests {
			for range s.requests[r].Count {
				all[r] = append(all[r], Part{s.tree.nodes[chosen[0]].device.ID, g.way, g.times})
				chosen = chosen[1:]
			}
		}
	}
	return all
}
