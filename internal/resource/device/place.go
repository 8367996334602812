package device

import (
	"cmp"
	"slices"
)

// Request asks for parts of devices.
type Request struct {
	// Way is how the devices are handed out, Count how many parts are needed. Parts of one device may serve the same request.
	Way   string
	Count int
	// Times is as in Part.
	Times int64
	// Suits reports whether a device that has the way is acceptable; nil: any is. It must depend on the device alone.
	Suits func(*Device) bool
}

// Place chooses devices for all parts of all requests, or for none of them. The n-th list is for the n-th request. Of devices that would do
// it prefers the one that has the least to spare, then the first in the order of the tree. Equal trees and requests give equal answers.
func (t *Tree) Place(requests []Request) ([][]Part, *Refusal) {
	s := newSearch(t, requests)
	if s.run() {
		return s.parts(), nil
	}
	return nil, t.refuse(requests, s)
}

// Fit is Place for callers that need no reason, which costs several more searches.
func (t *Tree) Fit(requests []Request) ([][]Part, bool) {
	s := newSearch(t, requests)
	if !s.run() {
		return nil, false
	}
	return s.parts(), true
}

// group is requests that the same parts of the same devices can serve.
type group struct {
	way      string
	times    int64
	requests []int
	count    int
	// needs are what a part takes, by node; nil where the node does not suit.
	needs [][]need
	mode  []int32 // by node, as a number
	// devices is how many can serve it at first, size that of its largest part.
	devices int
	size    int64
}

// need is an amount of one slot.
type need struct {
	slot   int
	amount int64
}

// makeGroups brings together requests that are alike.
func (s *search) makeGroups() {
	for i, r := range s.requests {
		g := group{
			way: r.Way, times: r.Times, count: max(r.Count, 0), requests: []int{i},
			needs: make([][]need, len(s.tree.nodes)), mode: make([]int32, len(s.tree.nodes)),
		}
		for id := range s.tree.nodes {
			d := s.tree.nodes[id].device
			way, ok := d.Kind.Ways[r.Way]
			if !ok || r.Suits != nil && !r.Suits(d) {
				continue
			}
			g.needs[id], g.mode[id] = s.needsOf(id, way, Part{Times: r.Times}), s.numberOf(way.Mode)
		}
		at := slices.IndexFunc(s.groups, func(o group) bool {
			return o.way == g.way && o.times == g.times && slices.EqualFunc(o.needs, g.needs, sameNeeds)
		})
		if at < 0 {
			s.groups = append(s.groups, g)
			continue
		}
		s.groups[at].requests = append(s.groups[at].requests, i)
		s.groups[at].count += g.count
	}
	s.order()
}

// order puts the groups first that the fewest devices can serve, then those whose parts are the largest.
func (s *search) order() {
	for i := range s.groups {
		g := &s.groups[i]
		for id := range g.needs {
			if s.fits(g, id) {
				g.devices++
				g.size = max(g.size, s.sizeOf(g.needs[id]))
			}
		}
	}
	slices.SortStableFunc(s.groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.devices, b.devices), cmp.Compare(b.size, a.size))
	})
}

// sameNeeds reports whether two nodes' needs are equal. No needs at all are not the same as not to suit.
func sameNeeds(a, b []need) bool { return (a == nil) == (b == nil) && slices.Equal(a, b) }

// needsOf are the slots that one part takes; not nil.
func (s *search) needsOf(id int, way Way, part Part) []need {
	needs := make([]need, 0, len(way.Takes))
	for counter, amount := range way.Takes {
		if at, ok := s.tree.slotOf(id, counter); ok {
			needs = append(needs, need{at, part.takes(amount)})
		}
	}
	slices.SortFunc(needs, func(a, b need) int { return cmp.Compare(a.slot, b.slot) })
	return needs
}

// sizeOf is how much of what the devices have a part takes, in thousandths.
func (s *search) sizeOf(needs []need) int64 {
	size := int64(0)
	for _, n := range needs {
		size += thousandths(n.amount, s.tree.slots[n.slot].capacity)
	}
	return size
}

// spare is what a part would leave of what it takes from, in thousandths.
func (s *search) spare(needs []need) int64 {
	size := int64(0)
	for _, n := range needs {
		size += thousandths(s.free[n.slot]-n.amount, s.tree.slots[n.slot].capacity)
	}
	return size
}

// thousandths is n of whole, which are not negative, without overflow.
func thousandths(n, whole int64) int64 {
	const many = 1 << 50
	for whole > many {
		n, whole = n/2, whole/2
	}
	return n * 1000 / max(whole, 1)
}
