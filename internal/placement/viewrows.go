package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Collision reports that an assignment would take what others hold.
type Collision struct {
	// Assignment is refused; Holders hold Slots of Node already.
	Assignment, Node string
	Holders          []string
	Slots            []int
	// Whole: one of them has, or would have, the whole machine.
	Whole bool
}

func (c *Collision) Error() string {
	switch {
	case c.Whole:
		return fmt.Sprintf("assignment %s collides with %s on node %s: a whole machine is shared with nobody", c.Assignment, strings.Join(c.Holders, ", "), c.Node)
	case len(c.Slots) == 0:
		return fmt.Sprintf("assignment %s is already held", c.Assignment)
	}
	return fmt.Sprintf("assignment %s collides with %s on node %s: core slots %v would be allocated twice",
		c.Assignment, strings.Join(c.Holders, ", "), c.Node, c.Slots)
}

// collision returns a *Collision when an assignment can't be held next to what is held, else nil.
func (v *View) collision(a api.Assignment) error {
	if v.Holds(a.ID) {
		return &Collision{Assignment: a.ID, Node: a.Node, Holders: []string{a.ID}}
	}
	found := &Collision{Assignment: a.ID, Node: a.Node}
	own := map[int]bool{}
	for _, s := range a.Slots {
		if own[s] {
			found.Slots, found.Holders = append(found.Slots, s), append(found.Holders, a.ID)
		}
		own[s] = true
	}
	if id, ok := v.ids[a.Node]; ok {
		for _, h := range v.nodes[id].holders {
			if (a.Whole || h.assignment.Whole) && !sameMember(&a, &h.assignment) {
				found.Whole, found.Holders = true, append(found.Holders, h.assignment.ID)
			}
			for _, s := range h.assignment.Slots {
				if own[s] {
					found.Slots, found.Holders = append(found.Slots, s), append(found.Holders, h.assignment.ID)
				}
			}
		}
	}
	if len(found.Slots) == 0 && !found.Whole {
		return nil
	}
	slices.Sort(found.Slots)
	slices.Sort(found.Holders)
	found.Slots, found.Holders = slices.Compact(found.Slots), slices.Compact(found.Holders)
	return found
}

// hold records a holding, on a node that stands in for its own when that is not in the inventory.
func (v *View) hold(h *holding) {
	id, n := v.nodeOf(h.assignment.Node)
	if n.layout == nil {
		n.layout = v.layoutOf(nil)
	}
	v.holdings[h.assignment.ID] = h
	n.holders = append(n.holders, h)
	v.recount(id)
}

// nodeOf finds a node or adds an absent one.
func (v *View) nodeOf(name string) (int32, *node) {
	if id, ok := v.ids[name]; ok {
		return id, v.nodes[id]
	}
	n := &node{record: api.NodeRecord{Name: name}, key: naturalKey(name), availability: Absent}
	var id int32
	if last := len(v.free) - 1; last >= 0 {
		id, v.free = v.free[last], v.free[:last]
		v.nodes[id], v.rows[id], v.cold[id] = n, emptyRow(), coldRow{}
		v.besides[id] = besides{}
	} else {
		id = int32(len(v.nodes))
		v.nodes, v.rows, v.cold = append(v.nodes, n), append(v.rows, emptyRow()), append(v.cold, coldRow{})
		v.besides = append(v.besides, besides{})
	}
	v.ids[name] = id
	at, _ := slices.BinarySearchFunc(v.order, n.key, func(o int32, key string) int { return strings.Compare(v.nodes[o].key, key) })
	v.order = slices.Insert(v.order, at, id)
	return id, n
}

// dropIfEmpty forgets an absent node that holds nothing.
func (v *View) dropIfEmpty(id int32) {
	n := v.nodes[id]
	if n.availability != Absent || len(n.holders) > 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(v.order, n.key, func(o int32, key string) int { return strings.Compare(v.nodes[o].key, key) })
	v.order = slices.Delete(v.order, at, at+1)
	v.platforms.drop(v.rows[id].platform)
	v.labels.drop(v.rows[id].labels)
	v.moveLeaves(id, nil)
	delete(v.ids, n.record.Name)
	v.nodes[id] = nil
	v.free = append(v.free, id)
}

// describe brings a node's rows up to date after its record or availability changed.
func (v *View) describe(id int32) {
	n, r := v.nodes[id], &v.rows[id]
	r.state, r.over = stateOf(n.availability), n.record.Oversubscribed || n.layout.shared
	r.platform = v.platforms.swap(r.platform, platformKey(n.record), func() platform { return newPlatform(n.record) })
	v.moveLeaves(id, n.record.Places)
	r.labels = v.labels.swap(r.labels, labelsKey(n.record.Labels), func() map[string]string { return n.record.Labels })
	v.recount(id)
}

// sameMember reports whether one assignment is a part of the other, or both are of the same: what a member holds does not exclude itself.
func sameMember(a, b *api.Assignment) bool {
	of := func(a *api.Assignment) string { return cmp.Or(a.Of, a.ID) }
	return of(a) == of(b)
}

// recount computes what is free on a node from its capacity and its holders: one way to the numbers, whatever changed.
func (v *View) recount(id int32) {
	n, r := v.nodes[id], &v.rows[id]
	c := coldRow{cores: int32(len(n.layout.cores)), memory: n.record.Capacity.MemoryBytes}
	if len(n.taken) == len(newBitset(len(n.layout.cores))) {
		clear(n.taken)
	} else {
		n.taken = newBitset(len(n.layout.cores))
	}
	takenCores, takenMemory, whole := int32(0), int64(0), false
	r.hidden = false
	for _, h := range n.holders {
		before := takenCores
		whole = whole || h.assignment.Whole
		takenMemory += h.assignment.NodeMemoryBytes()
		if h.quarantined {
			c.quarantinedMemory += h.assignment.NodeMemoryBytes()
		}
		for _, s := range h.assignment.Slots {
			p, ok := n.layout.position(s)
			if !ok || n.taken.has(p) {
				continue
			}
			n.taken.set(p)
			takenCores++
			if h.quarantined {
				c.quarantinedCores++
			}
		}
		r.hidden = r.hidden || takenCores == before
	}
	v.cold[id] = c
	v.recountBesides(id)
	r.freeCores, r.freeMemory = c.cores-takenCores, c.memory-takenMemory
	if whole { // also of what the node offers since
		r.freeCores, r.freeMemory = 0, min(r.freeMemory, 0)
	}
}

// open reports whether members of a stack are placed on nodes in a state: those that get the whole node also on one that is off.
func (s rowState) open(stack api.Stack) bool {
	return s == rowSchedulable || s == rowAsleep && Whole(stack)
}

func stateOf(a Availability) rowState {
	switch a {
	case Schedulable:
		return rowSchedulable
	case Asleep, Warm:
		return rowAsleep
	case Unknown:
		return rowUnknown
	case Returning:
		return rowReturning
	default:
		return rowUnavailable
	}
}

func (v *View) layoutOf(cores []api.Core) *layout {
	key := layoutKey(cores)
	if l, ok := v.layouts[key]; ok {
		return l
	}
	l := newLayout(cores)
	v.mostCores = max(v.mostCores, len(l.cores))
	v.layouts[key] = l
	return l
}
