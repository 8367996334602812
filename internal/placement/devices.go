package placement

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// DevicesOn are parts of the devices of one node that a member gets.
type DevicesOn struct {
	Node   string
	Claims []api.DeviceClaim
	// Memory is what a server of these devices takes of the node's memory.
	Memory []api.MemoryClaim
}

// WantsDevices reports whether members of any of the groups get devices. Placement costs nothing for devices when none do.
func WantsDevices(groups []api.Group) bool {
	return slices.ContainsFunc(groups, func(g api.Group) bool { return len(g.Devices) > 0 })
}

// pkeysPerPort is how many partition keys a port of an InfiniBand adapter holds for virtual functions, where the agent does not count them: the 128
// entries of the port's table, less that of the default partition.
const pkeysPerPort = 128 - 1

// counterPKeys counts the entries of a port's table of partition keys. Each virtual function may be in another partition.
const counterPKeys = "pkeys"

// partsFree is what is free of a node's devices: their counters, and which of their equal parts.
type partsFree struct {
	*device.Tree
	// held are the parts with names that somebody has, by device.
	held map[string]map[string]string
	// lost tells, by device, what somebody holds of it that the node does not offer any more.
	lost map[string]string
}

// take takes what an assignment or a member to be holds. The error names what is held twice, or is no device of the node.
func (f *partsFree) take(c api.DeviceClaim, owner string) error {
	if other := f.held[c.Device][c.Part]; c.Part != "" && other != "" {
		return fmt.Errorf("%s of device %s is held by %s", c.Part, c.Device, other)
	}
	if err := f.Tree.Take(device.Part{Device: c.Device, Way: c.Way, Times: c.Times()}); err != nil {
		return err
	}
	f.note(c, owner)
	return nil
}

func (f *partsFree) note(c api.DeviceClaim, owner string) {
	if c.Part == "" {
		return
	}
	if f.held[c.Device] == nil {
		f.held[c.Device] = map[string]string{}
	}
	f.held[c.Device][c.Part] = owner
}

// partOf names the part that a claim gets: the lowest that nobody has. The kernel numbers virtual functions from 0.
func (f *partsFree) partOf(c api.DeviceClaim) string {
	if c.Takes[api.CounterVF] != 1 {
		return ""
	}
	for i := 0; ; i++ {
		part := api.CounterVF + strconv.Itoa(i)
		if f.held[c.Device][part] == "" {
			return part
		}
	}
}

// treeOf makes the tree of a node's devices, with what its holders hold taken. The error names what is held twice.
func treeOf(n *node) (*partsFree, error) {
	root := &device.Device{ID: "", Kind: &device.Kind{}}
	for i := range n.record.Capacity.Devices {
		root.Children = append(root.Children, deviceOf(&n.record.Capacity.Devices[i]))
	}
	tree, err := device.NewTree(root)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.record.Name, err)
	}
	free := &partsFree{Tree: tree, held: map[string]map[string]string{}, lost: map[string]string{}}
	for _, h := range n.holders {
		if err := free.takeHeld(n, &h.assignment); err != nil {
			return nil, err
		}
	}
	return free, nil
}

// deviceOf makes a device of a tree. Its kind's name is its class.
func deviceOf(d *api.Device) *device.Device {
	ways, has := make(map[string]device.Way, len(d.Ways)), device.Counters(d.Counters)
	_, counted := has[counterPKeys]
	limited := d.Class == api.ClassHCA && !counted
	if limited {
		has = maps.Clone(has)
		has[counterPKeys] = pkeysPerPort
	}
	for name, w := range d.Ways {
		takes := device.Counters(w.Takes)
		if limited && takes[api.CounterVF] == 1 {
			takes = maps.Clone(takes)
			takes[counterPKeys] = 1
		}
		ways[name] = device.Way{Mode: w.Mode, Takes: takes}
	}
	return &device.Device{ID: d.ID, Kind: &device.Kind{Name: d.Class, Has: has, Ways: ways}}
}

// wholeHCA reports whether a request is for a whole port of an InfiniBand adapter, which has a GUID of its own.
func wholeHCA(r api.DeviceRequest) bool {
	return r.Class == api.ClassHCA && r.Way == string(api.InterfacePF)
}

func takeClaims(free *partsFree, a *api.Assignment) error {
	for _, c := range a.Devices {
		if err := free.take(c, a.ID); err != nil {
			return fmt.Errorf("assignment %s: node %s: %w", a.ID, a.Node, err)
		}
	}
	return nil
}

// devicesFree returns why the devices of an assignment are not free on its node, or nil.
func (v *View) devicesFree(a *api.Assignment) error {
	if len(a.Devices) == 0 {
		return nil
	}
	_, n := v.nodeOf(a.Node)
	tree, err := treeOf(n)
	if err != nil {
		return err
	}
	tree.withhold(n)
	return takeClaims(tree, a)
}

// devicesHeld returns why an assignment can't hold its devices beside what others hold, or nil. It may hold what its node does not offer any more.
func (v *View) devicesHeld(a *api.Assignment) error {
	if len(a.Devices) == 0 {
		return nil
	}
	_, n := v.nodeOf(a.Node)
	tree, err := treeOf(n)
	if err != nil {
		return err
	}
	return tree.takeHeld(n, a)
}

// inInventory reports whether a node is: of one that is not, no device is known.
func (v *View) inInventory(name string) bool {
	id, ok := v.ids[name]
	return ok && v.nodes[id].availability != Absent
}

// hasWhole reports whether somebody has a node whole.
func (s *Sketch) hasWhole(id int32) bool {
	return s.whole[id] || slices.ContainsFunc(s.view.nodes[id].holders, func(h *holding) bool { return h.assignment.Whole })
}

// freeParts is what is free of a node's devices, less what was taken of them in a sketch; nil when what is held there makes no sense.
func (v *View) freeParts(id int32) *partsFree {
	free, err := treeOf(v.nodes[id])
	if err != nil {
		return nil
	}
	free.withhold(v.nodes[id])
	for _, c := range v.claims[id] {
		if free.take(c, "a member to be") != nil {
			return nil
		}
	}
	return free
}

// TakeDevices takes what FitDevices chose.
func (s *Sketch) TakeDevices(chosen [][]DevicesOn) {
	for _, member := range chosen {
		for _, on := range member {
			if id, ok := s.view.ids[on.Node]; ok {
				// A trial has the former ones, too.
				s.view.claims[id] = append(slices.Clip(s.view.claims[id]), on.Claims...)
				s.view.rows[id].hidden = true // nobody gets it whole
				for _, m := range on.Memory {
					s.view.rows[id].freeMemory -= m.Bytes
				}
			}
		}
	}
}
