// Package device counts what the devices of one machine have, and decides which of them a member gets.
//
// A device is a node of the machine's tree, with counters. A way to hand it out (whole, a virtual function, a MIG profile, a share) takes
// amounts of them, from the device itself or else from the nearest ancestor that has the counter. What excludes what follows from that
// arithmetic alone. It is pure: no I/O, no clock, no chance, and Place leaves the tree as it was. It must never reset or bind a device,
// nor give back by itself what was not reported clean.
//
// Two designs were compared: a flow network for whole devices with packing rules for parts, and one search over states in which equal
// devices are one choice. The search is the simpler: it is exact for parts and for shared counters too, where a flow is not, and a state
// that failed is never entered twice.
//
// Start with Tree here, then place.go (requests), search.go (how), refusal.go (why not).
package device

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Counters are amounts by name, such as "vf" or "memory_bytes".
type Counters map[string]int64

// Way is how a device is handed out.
type Way struct {
	// Mode is what a device must be in for this way, such as "mig". All parts of a device have the same mode; a device of which nothing is
	// held can take any.
	Mode string
	// Takes are the amounts that one part takes. All are positive.
	Takes Counters
}

// Kind is what devices built alike have in common.
type Kind struct {
	Name string
	// Has is what one device of the kind has, when nothing of it is held.
	Has  Counters
	Ways map[string]Way
}

// Device is a node of a machine's tree: a NUMA node, a PCI root, a switch or a function.
type Device struct {
	ID       string
	Kind     *Kind
	Children []*Device
}

// Part is a device that is handed out in one way.
type Part struct {
	Device, Way string
	// Times is how many times the amounts of the way the part takes; 0 is once.
	Times int64
}

// takes is how much of a counter the part takes, where the way takes an amount. What does not fit into 64 bits is more than any device has.
func (p Part) takes(amount int64) int64 {
	if p.Times > 1 && amount > math.MaxInt64/p.Times {
		return math.MaxInt64
	}
	return amount * max(p.Times, 1)
}

// Tree is a machine's devices and what is free of them. Methods that change it must not run together with any other.
type Tree struct {
	nodes []node // parents before their children
	ids   map[string]int
	slots []slot
	free  []int64 // by slot
	held  map[Part]int
}

// node is a device in a tree.
type node struct {
	device *Device
	parent int // -1: none
	// own are the slots of its counters.
	own map[string]int
	// mode is that of the parts that are held; holders counts them.
	mode    string
	holders int
}

// slot is one counter of one device.
type slot struct {
	node     int
	counter  string
	capacity int64
}

// NewTree makes the tree of a machine, of which nothing is held. The error names two devices with the same ID, a negative counter, or a
// way that takes anything but a positive amount of a counter that the device or one of its ancestors has.
func NewTree(machine *Device) (*Tree, error) {
	t := &Tree{ids: map[string]int{}, held: map[Part]int{}}
	if err := t.add(machine, -1); err != nil {
		return nil, err
	}
	for i := range t.nodes {
		d := t.nodes[i].device
		for _, name := range slices.Sorted(maps.Keys(d.Kind.Ways)) {
			takes := d.Kind.Ways[name].Takes
			for _, counter := range slices.Sorted(maps.Keys(takes)) {
				if _, ok := t.slotOf(i, counter); !ok {
					return nil, fmt.Errorf("device %s can't be handed out as %q: neither it nor a device above it has counter %q", d.ID, name, counter)
				}
				if n := takes[counter]; n <= 0 {
					return nil, fmt.Errorf("device %s can't be handed out as %q: a part would take %d of counter %q", d.ID, name, n, counter)
				}
			}
		}
	}
	return t, nil
}

func (t *Tree) add(d *Device, parent int) error {
	if _, twice := t.ids[d.ID]; twice {
		return fmt.Errorf("device %s appears twice in the machine's tree", d.ID)
	}
	id := len(t.nodes)
	t.ids[d.ID] = id
	t.nodes = append(t.nodes, node{device: d, parent: parent, own: make(map[string]int, len(d.Kind.Has))})
	for _, counter := range slices.Sorted(maps.Keys(d.Kind.Has)) {
		if d.Kind.Has[counter] < 0 {
			return fmt.Errorf("device %s has %d of counter %q", d.ID, d.Kind.Has[counter], counter)
		}
		t.nodes[id].own[counter] = len(t.slots)
		t.slots = append(t.slots, slot{id, counter, d.Kind.Has[counter]})
		t.free = append(t.free, d.Kind.Has[counter])
	}
	for _, child := range d.Children {
		if err := t.add(child, id); err != nil {
			return err
		}
	}
	return nil
}

// slotOf finds the counter of a device, or that of its nearest ancestor.
func (t *Tree) slotOf(id int, counter string) (int, bool) {
	for ; id >= 0; id = t.nodes[id].parent {
		if s, ok := t.nodes[id].own[counter]; ok {
			return s, true
		}
	}
	return 0, false
}

// Take takes a part. The error names the counter or the mode that stands against it, and changes nothing.
func (t *Tree) Take(p Part) error {
	n, way, err := t.find(p)
	if err != nil {
		return err
	}
	if n.holders > 0 && n.mode != way.Mode {
		return fmt.Errorf("device %s is in mode %q, so it can't be handed out as %q", p.Device, n.mode, p.Way)
	}
	for _, counter := range slices.Sorted(maps.Keys(way.Takes)) {
		s, _ := t.slotOf(t.ids[p.Device], counter)
		if amount := p.takes(way.Takes[counter]); t.free[s] < amount {
			return fmt.Errorf("device %s can't be handed out as %q: %d of %s are free, not %d", p.Device, p.Way, t.free[s], counter, amount)
		}
	}
	for counter, amount := range way.Takes {
		s, _ := t.slotOf(t.ids[p.Device], counter)
		t.free[s] -= p.takes(amount)
	}
	n.mode, n.holders = way.Mode, n.holders+1
	t.held[p]++
	return nil
}

// Give gives back a part that was taken and is clean. The error says that no such part is held.
func (t *Tree) Give(p Part) error {
	n, way, err := t.find(p)
	if err != nil {
		return err
	}
	if t.held[p] == 0 {
		return fmt.Errorf("nothing of device %s is held as %q", p.Device, p.Way)
	}
	for counter, amount := range way.Takes {
		s, _ := t.slotOf(t.ids[p.Device], counter)
		t.free[s] += p.takes(amount)
	}
	n.holders--
	if t.held[p]--; t.held[p] == 0 {
		delete(t.held, p)
	}
	return nil
}

// Free returns how much of a counter is free on a device; false when it has no such counter of its own.
func (t *Tree) Free(id, counter string) (int64, bool) {
	i, ok := t.ids[id]
	if !ok {
		return 0, false
	}
	s, ok := t.nodes[i].own[counter]
	if !ok {
		return 0, false
	}
	return t.free[s], true
}

// Room returns how many parts like p could be taken now if nothing else were.
func (t *Tree) Room(p Part) int {
	n, way, err := t.find(p)
	if err != nil || n.holders > 0 && n.mode != way.Mode {
		return 0
	}
	room := int64(math.MaxInt32)
	for counter, amount := range way.Takes {
		s, _ := t.slotOf(t.ids[p.Device], counter)
		room = min(room, t.free[s]/p.takes(amount))
	}
	return int(room)
}

func (t *Tree) find(p Part) (*node, Way, error) {
	id, ok := t.ids[p.Device]
	if !ok {
		return nil, Way{}, fmt.Errorf("device %s is not in the machine's tree", p.Device)
	}
	way, ok := t.nodes[id].device.Kind.Ways[p.Way]
	if !ok {
		return nil, Way{}, fmt.Errorf("device %s can't be handed out as %q", p.Device, p.Way)
	}
	return &t.nodes[id], way, nil
}
