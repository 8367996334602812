package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// Availability reports whether members may be placed on a node, or why not.
type Availability string

// What a node can be to placement. A Schedulable one gets new members, an Asleep or a Warm one a member that takes it whole; the others keep what they hold.
const (
	Schedulable Availability = "schedulable"
	Unknown     Availability = "unknown" // not heard of, not yet given up
	Down        Availability = "down"
	Asleep      Availability = "asleep"    // a machine that is off and at rest: it may be given away whole, and gets nothing else
	Warm        Availability = "warm"      // the same, but on: it waits in its boot agent, and is had sooner
	Returning   Availability = "returning" // a machine that is cleaned, inspected or switched off, and asleep or warm after that by itself
	Drained     Availability = "drained"
	Unencrypted Availability = "unencrypted" // the site's underlay is encrypted, and the node's kernel can't
	Absent      Availability = "absent"      // holds something, but is not in the inventory
)

// AvailabilityOf translates a node's phase; a drained node is drained whatever its phase.
func AvailabilityOf(phase api.NodePhase, drained bool) Availability {
	switch {
	case drained:
		return Drained
	case phase == api.NodeReady:
		return Schedulable
	case phase == api.NodeDown:
		return Down
	default:
		return Unknown
	}
}

// View is what is free: inventory minus what is held. What is free is never stored: it is what no holding covers, and a holding
// ends in one way only, by Free after Release or Quarantine. So an assignment that is being released can't be handed out: there is
// no value of View in which its slots are free.
//
// Methods that change a view must not run together with any other; any number of Place may.
type View struct {
	ids map[string]int32
	// rows, cold and nodes are indexed by node ID; rows is all that a placement that succeeds reads of most nodes.
	rows  []row
	cold  []coldRow
	nodes []*node
	// besides is indexed by node ID, too. changed is what is free of some nodes in a sketch, nil in a view.
	besides []besides
	changed map[int32]resource.Vector
	free    []int32
	// claims are the devices that were taken in a sketch, by node; nil in a view. Copies of a sketch share them.
	claims map[int32][]api.DeviceClaim
	// order lists the IDs in the natural order of names: n2 before n10.
	order []int32
	// mostCores is at least the number of cores of every node.
	mostCores int

	holdings  map[string]*holding
	layouts   map[string]*layout
	platforms *intern[platform]
	labels    *intern[map[string]string]
	leaves    *intern[leaf]
	// measures are what was measured of nodes that hand out GPUs, by name; now is the time by which that is fresh.
	measures map[string]*api.NodeMeasures
	now      time.Time
	// pods number the pods of leaf switches.
	pods map[string]int32
	// placed counts the nodes whose leaf switch is known, by fabric.
	placed [fabrics]int
}

// row is the part of a node that a scan reads.
type row struct {
	freeMemory int64
	freeCores  int32
	platform   int32
	labels     int32
	// leaves are the numbers of the node's leaf switches, by fabric; -1: not known.
	leaves [fabrics]int32
	// window is when the node's maintenance begins, in seconds since 1970; 0: none is announced.
	window int64
	state  rowState
	over   bool
	// hidden: something is held there that the numbers do not show.
	hidden bool
}

// coldRow is what a refusal reads besides.
type coldRow struct {
	memory, quarantinedMemory int64
	cores, quarantinedCores   int32
}

// rowState is Availability as a small number.
type rowState uint8

const (
	rowSchedulable rowState = iota
	rowAsleep
	rowUnknown
	rowReturning
	rowUnavailable
)

// node is everything about one node.
type node struct {
	record       api.NodeRecord
	key          string
	availability Availability
	layout       *layout
	taken        bitset
	holders      []*holding
}

// holding is an assignment whose resources are not free.
type holding struct {
	assignment  api.Assignment
	releasing   bool
	quarantined bool
}

// NewView returns a view without nodes.
func NewView() *View {
	return &View{
		ids: map[string]int32{}, holdings: map[string]*holding{}, layouts: map[string]*layout{},
		platforms: newIntern[platform](), labels: newIntern[map[string]string](), leaves: newIntern[leaf](), pods: map[string]int32{}, measures: map[string]*api.NodeMeasures{},
	}
}

// Ports are the ports that an assignment gets of its node: its own when it has the whole node.
func (v *View) Ports(a *api.Assignment) []api.NodePort {
	if id, ok := v.ids[a.Node]; ok && a.Whole {
		return v.nodes[id].record.Capacity.Ports
	}
	return nil
}

// SetNode adds a node or brings it up to date. What it holds stays held, also when its capacity has changed.
func (v *View) SetNode(rec api.NodeRecord, a Availability) {
	id, n := v.nodeOf(rec.Name)
	if !slices.Equal(n.record.Capacity.Cores, rec.Capacity.Cores) || n.layout == nil {
		n.layout = v.layoutOf(rec.Capacity.Cores)
	}
	// The cores are in the layout, shared by nodes built alike.
	rec.Capacity.Cores = n.layout.cores
	n.record, n.availability = rec, a
	v.describe(id)
}

// SetAvailability changes only whether the node may get new members. It tells whether the node is in the view.
func (v *View) SetAvailability(name string, a Availability) bool {
	id, ok := v.ids[name]
	if !ok || v.nodes[id].availability == Absent {
		return false
	}
	v.nodes[id].availability = a
	v.rows[id].state = stateOf(a)
	return true
}

// RemoveNode takes a node out of the inventory. What is still held there stays held: when the node comes back, it isn't free.
func (v *View) RemoveNode(name string) {
	id, ok := v.ids[name]
	if !ok {
		return
	}
	n := v.nodes[id]
	n.record, n.layout, n.availability = api.NodeRecord{Name: name}, v.layoutOf(nil), Absent
	v.describe(id)
	v.dropIfEmpty(id)
}

// Take gives the assignment what it names. It refuses, and changes nothing, when the ID is held already, when a slot is held by
// another (a *Collision), or when the node does not offer the slots or the memory.
func (v *View) Take(a api.Assignment) error {
	id, known := v.ids[a.Node]
	if !known || v.nodes[id].availability == Absent {
		return fmt.Errorf("assignment %s: node %s is not in the inventory", a.ID, a.Node)
	}
	if err := v.collision(a); err != nil {
		return err
	}
	for _, s := range a.Slots {
		if _, ok := v.nodes[id].layout.position(s); !ok {
			return fmt.Errorf("assignment %s: node %s has no core slot %d", a.ID, a.Node, s)
		}
	}
	if free := v.rows[id].freeMemory; a.NodeMemoryBytes() > free {
		return fmt.Errorf("assignment %s: node %s has %s of memory free, not %s", a.ID, a.Node, api.Bytes(max(free, 0)), api.Bytes(a.NodeMemoryBytes()))
	}
	if class, short := shortBesides(resource.HeldOnNode(&a), v.besides[id].free); short {
		free := max(v.besides[id].free[class], 0)
		return fmt.Errorf("assignment %s: node %s has %s free, not %s", a.ID, a.Node, class.Text(free), class.Text(resource.HeldOnNode(&a)[class]))
	}
	if err := v.devicesFree(&a); err != nil {
		return err
	}
	v.hold(&holding{assignment: a})
	return nil
}

// Release marks an assignment as being released. It keeps all it holds until Free.
func (v *View) Release(id string) error {
	h, ok := v.holdings[id]
	if !ok {
		return fmt.Errorf("assignment %s holds nothing", id)
	}
	h.releasing = true
	return nil
}

// Quarantine keeps what an assignment holds, out of use until its executor, late, confirms it clean.
func (v *View) Quarantine(id string) error {
	h, ok := v.holdings[id]
	if !ok {
		return fmt.Errorf("assignment %s holds nothing", id)
	}
	h.quarantined = true
	v.recount(v.ids[h.assignment.Node])
	return nil
}

// Free gives back what an assignment holds, once its executor has confirmed it clean. Only what is being released or is
// quarantined can be freed.
func (v *View) Free(id string) error {
	h, ok := v.holdings[id]
	if !ok {
		return fmt.Errorf("assignment %s holds nothing", id)
	}
	if !h.releasing && !h.quarantined {
		return fmt.Errorf("assignment %s is in use: release it before its resources are freed", id)
	}
	delete(v.holdings, id)
	nodeID := v.ids[h.assignment.Node]
	n := v.nodes[nodeID]
	n.holders = slices.DeleteFunc(n.holders, func(o *holding) bool { return o == h })
	v.recount(nodeID)
	v.dropIfEmpty(nodeID)
	return nil
}

// Holds reports whether the assignment holds resources.
func (v *View) Holds(id string) bool { _, ok := v.holdings[id]; return ok }

// HoldsAs reports whether the assignment holds just what this version of it names: a save and a resize change that.
func (v *View) HoldsAs(a *api.Assignment) bool {
	h, ok := v.holdings[a.ID]
	return ok && h.assignment.Saved == a.Saved && h.assignment.Held().Same(a.Held())
}

// Usage is what is free and taken on a node.
type Usage struct {
	Cores, FreeCores, QuarantinedCores                   int
	MemoryBytes, FreeMemoryBytes, QuarantinedMemoryBytes int64
	// Besides is what is free besides cores and ordinary memory.
	Besides resource.Vector
	// Holders are the IDs of assignments that hold something, sorted.
	Holders []string
}

// Usage returns what is free and taken on a node; false when it is not in the view.
func (v *View) Usage(name string) (Usage, bool) {
	id, ok := v.ids[name]
	if !ok {
		return Usage{}, false
	}
	r, c := v.rows[id], v.cold[id]
	u := Usage{
		Cores: int(c.cores), FreeCores: int(r.freeCores), QuarantinedCores: int(c.quarantinedCores),
		MemoryBytes: c.memory, FreeMemoryBytes: max(r.freeMemory, 0), QuarantinedMemoryBytes: c.quarantinedMemory,
		Besides: v.besides[id].free,
	}
	for _, h := range v.nodes[id].holders {
		u.Holders = append(u.Holders, h.assignment.ID)
	}
	slices.Sort(u.Holders)
	return u, true
}

// Nodes returns the names of the nodes in natural order.
func (v *View) Nodes() []string {
	names := make([]string, 0, len(v.order))
	for _, id := range v.order {
		names = append(names, v.nodes[id].record.Name)
	}
	return names
}

// NodeState is a node as Build takes it.
type NodeState struct {
	Record       api.NodeRecord
	Availability Availability
}

// Held is a live assignment as Build takes it: one that is not confirmed clean.
type Held struct {
	Assignment api.Assignment
	Releasing  bool
}

// Build makes the view of the stored state: inventory - assignments not confirmed clean - quarantined. The error joins every
// double allocation found; the view is then complete all the same, and no slot in dispute is free.
func Build(nodes []NodeState, held []Held, quarantined []api.Quarantine) (*View, error) {
	v := NewView()
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b NodeState) int { return strings.Compare(naturalKey(a.Record.Name), naturalKey(b.Record.Name)) })
	for _, n := range nodes {
		v.SetNode(n.Record, n.Availability)
	}
	var problems []error
	replay := func(h *holding) {
		if err := v.collision(h.assignment); err != nil {
			problems = append(problems, err)
			if v.Holds(h.assignment.ID) {
				return
			}
		}
		if err := v.devicesHeld(&h.assignment); err != nil && v.inInventory(h.assignment.Node) {
			problems = append(problems, err)
		}
		v.hold(h)
	}
	for _, h := range held {
		replay(&holding{assignment: h.Assignment, releasing: h.Releasing})
	}
	for _, q := range quarantined {
		replay(&holding{assignment: q.Assignment, releasing: true, quarantined: true})
	}
	return v, errors.Join(problems...)
}
