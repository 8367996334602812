package placement

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// DevicesOn are parts of the devices of one node that a member gets.
type DevicesOn struct {
	Node   string
	Claims []api.DeviceClaim
}

// WantsDevices reports whether members of any of the groups get devices. Placement costs nothing for devices when none do.
func WantsDevices(groups []api.Group) bool {
	return slices.ContainsFunc(groups, func(g api.Group) bool { return len(g.Devices) > 0 })
}

// treeOf makes the tree of a node's devices, with what its holders hold taken. The error names what is held twice, or is no device of the node.
func treeOf(n *node) (*device.Tree, error) {
	root := &device.Device{ID: "", Kind: &device.Kind{}}
	for _, d := range n.record.Capacity.Devices {
		ways := make(map[string]device.Way, len(d.Ways))
		for name, w := range d.Ways {
			ways[name] = device.Way{Mode: w.Mode, Takes: w.Takes}
		}
		root.Children = append(root.Children, &device.Device{ID: d.ID, Kind: &device.Kind{Name: d.Class, Has: d.Counters, Ways: ways}})
	}
	tree, err := device.NewTree(root)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.record.Name, err)
	}
	for _, h := range n.holders {
		if err := takeClaims(tree, &h.assignment); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

func takeClaims(tree *device.Tree, a *api.Assignment) error {
	for _, c := range a.Devices {
		if err := tree.Take(device.Part{Device: c.Device, Way: c.Way}); err != nil {
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
	return takeClaims(tree, a)
}

// inInventory reports whether a node is: of one that is not, no device is known.
func (v *View) inInventory(name string) bool {
	id, ok := v.ids[name]
	return ok && v.nodes[id].availability != Absent
}

// FitDevices chooses devices for members: the n-th is of the n-th group and goes to the n-th node. Those of the member's own node come
// first, then those of other schedulable nodes in natural order, but for those that somebody has whole. The text says what is missing; nothing is
// chosen then. TakeDevices takes what was chosen.
func (s *Sketch) FitDevices(groups []api.Group, f Fit) (chosen [][]DevicesOn, missing string) {
	trees, whole := map[int32]*device.Tree{}, map[int32]bool{}
	for _, share := range f.Shares {
		whole[share.node] = share.whole
	}
	for i := range groups {
		for _, c := range f.counts[i] {
			for range c.members {
				on, missing := s.devicesOf(&groups[i], c.id, whole, trees)
				if missing != "" {
					return nil, missing
				}
				chosen = append(chosen, on)
			}
		}
	}
	return chosen, ""
}

// devicesOf chooses the devices of one member, and takes them in trees. whole are nodes that others are about to get whole.
func (s *Sketch) devicesOf(g *api.Group, home int32, whole map[int32]bool, trees map[int32]*device.Tree) (on []DevicesOn, missing string) {
	for _, r := range g.Devices {
		left := s.choose(r, home, &on, r.Count, trees)
		if r.Remote {
			for _, id := range s.view.order {
				if left == 0 {
					break
				}
				if id != home && s.view.rows[id].state == rowSchedulable && !whole[id] && !s.hasWhole(id) {
					left = s.choose(r, id, &on, left, trees)
				}
			}
		}
		if left > 0 {
			where := "on the node of each member"
			if r.Remote {
				where = "on any node that can be used"
			}
			return nil, fmt.Sprintf("each member of group %q needs %d of device class %q handed out as %q, and too few are free %s", g.Name, r.Count, r.Class, r.Way, where)
		}
	}
	return on, ""
}

// choose takes up to count parts on a node, and returns how many are left to find.
func (s *Sketch) choose(r api.DeviceRequest, id int32, on *[]DevicesOn, count int, trees map[int32]*device.Tree) int {
	n := s.view.nodes[id]
	if len(n.record.Capacity.Devices) == 0 {
		return count
	}
	tree := trees[id]
	if tree == nil {
		tree = s.tree(id)
	}
	if tree == nil {
		return count
	}
	trees[id] = tree
	suits := func(d *device.Device) bool { return d.Kind.Name == r.Class }
	for ; count > 0; count-- {
		parts, refusal := tree.Place([]device.Request{{Way: r.Way, Count: 1, Suits: suits}})
		if refusal != nil || tree.Take(parts[0][0]) != nil {
			break
		}
		claim := api.DeviceClaim{Class: r.Class, Device: parts[0][0].Device, Way: r.Way}
		claim.Takes = takesOf(n, claim)
		i := slices.IndexFunc(*on, func(o DevicesOn) bool { return o.Node == n.record.Name })
		if i < 0 {
			i = len(*on)
			*on = append(*on, DevicesOn{Node: n.record.Name})
		}
		(*on)[i].Claims = append((*on)[i].Claims, claim)
	}
	return count
}

// takesOf returns what a part takes of its device.
func takesOf(n *node, c api.DeviceClaim) map[string]int64 {
	i := slices.IndexFunc(n.record.Capacity.Devices, func(d api.Device) bool { return d.ID == c.Device })
	return n.record.Capacity.Devices[i].Ways[c.Way].Takes
}

// hasWhole reports whether somebody has a node whole.
func (s *Sketch) hasWhole(id int32) bool {
	return s.whole[id] || slices.ContainsFunc(s.view.nodes[id].holders, func(h *holding) bool { return h.assignment.Whole })
}

// tree is a copy of what is free of a node's devices; nil when what is held there makes no sense: nothing is given then.
func (s *Sketch) tree(id int32) *device.Tree {
	n := s.view.nodes[id]
	tree, err := treeOf(n)
	if err != nil {
		return nil
	}
	for _, c := range s.claims[id] {
		if tree.Take(device.Part{Device: c.Device, Way: c.Way}) != nil {
			return nil
		}
	}
	return tree
}

// TakeDevices takes what FitDevices chose.
func (s *Sketch) TakeDevices(chosen [][]DevicesOn) {
	for _, member := range chosen {
		for _, on := range member {
			if id, ok := s.view.ids[on.Node]; ok {
				s.claims[id] = append(s.claims[id], on.Claims...)
				s.view.rows[id].hidden = true // nobody gets it whole
			}
		}
	}
}
