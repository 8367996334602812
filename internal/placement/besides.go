package placement

import (
	"math"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// besides is what a node has besides cores and ordinary memory: disk, huge pages and its uplink. It is apart from the rows, as few groups ask for any of it, and a scan
// for the others reads nothing of it.
type besides struct {
	offered, free, quarantined resource.Vector
}

// besidesOf returns what members of a group take of a node besides cores and ordinary memory.
func besidesOf(g *api.Group) resource.Vector {
	if Whole(g.Stack) {
		return resource.Vector{}
	}
	v := resource.OnNode(g)
	v[resource.Cores], v[resource.Memory] = 0, 0
	return v
}

// recountBesides computes what is free from a node's capacity and its holders.
func (v *View) recountBesides(id int32) {
	n := v.nodes[id]
	b := besides{offered: resource.OfferedBesides(&n.record.Capacity)}
	b.free = b.offered
	for _, h := range n.holders {
		takes := resource.HeldOnNode(&h.assignment)
		for c := range takes {
			b.free[c] -= takes[c]
		}
		if h.quarantined {
			b.quarantined = b.quarantined.Plus(takes)
		}
	}
	v.besides[id] = b
}

// availableBesides returns what counts as available on a node at a level.
func (v *View) availableBesides(id int32, l level) resource.Vector {
	b := &v.besides[id]
	switch l {
	case freeNow, freeOrUnknown, freeSoon:
		if changed, ok := v.changed[id]; ok {
			return changed
		}
		return b.free
	case emptied:
		return b.offered.Beyond(b.quarantined)
	default:
		return b.offered
	}
}

// roomBesides is how many members of a group a node can hold by what they take of it besides cores and ordinary memory.
func (f *finder) roomBesides(id int32) int32 {
	room := f.v.availableBesides(id, f.level)
	used := f.used.of(id).besides
	most := int64(math.MaxInt32)
	for c, need := range f.besides {
		if need > 0 {
			most = min(most, max(0, room[c]-used[c])/need)
		}
	}
	return int32(most)
}

// shortBesides returns the first class of which room has less than is needed. Room may be less than nothing of what is not needed.
func shortBesides(need, room resource.Vector) (resource.Class, bool) {
	for c := range need {
		if need[c] > 0 && need[c] > room[c] {
			return resource.Class(c), true
		}
	}
	return 0, false
}

// withoutClasses drops what a constraint counts.
func withoutClasses(v resource.Vector, c Constraint) resource.Vector {
	switch c {
	case ConstraintDisk:
		v[resource.Disk] = 0
	case ConstraintHugePages:
		v[resource.HugePages2MiB], v[resource.HugePages1GiB] = 0, 0
	case ConstraintUplink:
		v[resource.Uplink] = 0
	}
	return v
}

// classOf is the class that a constraint counts for a group.
func classOf(c Constraint, g *api.Group) resource.Class {
	switch c {
	case ConstraintMemory:
		return resource.Memory
	case ConstraintDisk:
		return resource.Disk
	case ConstraintHugePages:
		class, _ := resource.HugePages(int64(g.HugePages))
		return class
	case ConstraintUplink:
		return resource.Uplink
	default:
		return resource.Cores
	}
}

// changeBesides adds to what is free of a node in a sketch, times a sign, up to what the node has. More than there is leaves less than nothing.
func (s *Sketch) changeBesides(id int32, v resource.Vector, sign int64) {
	if v == (resource.Vector{}) {
		return
	}
	free := s.view.availableBesides(id, freeNow)
	for c := range free {
		free[c] = min(free[c]+sign*v[c], s.view.besides[id].offered[c])
	}
	s.view.changed[id] = free
}

// limitBesides leaves no more of a node than the other sketch has.
func (s *Sketch) limitBesides(id int32, o *Sketch) {
	mine, other := s.view.availableBesides(id, freeNow), o.view.availableBesides(id, freeNow)
	if mine == other {
		return
	}
	for c := range mine {
		mine[c] = min(mine[c], other[c])
	}
	s.view.changed[id] = mine
}
