package placement

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// Where a request leaves a choice, members of one group get devices on one plane, so that their traffic stays there, and else on the NUMA node
// of their CPUs. Both are preferences: nothing is refused for them, and the plan of nodes does not know them.

// plane is a rail of a cell: ports on one reach each other without leaving it.
type plane struct {
	cell string
	rail int
}

func planeOf(d *api.Device) plane { return plane{d.Cell, d.Rail} }

// Mate is a member of a group that has its devices already. Members that are placed later prefer its planes.
type Mate struct {
	Group, Node string
	// Claims are those on its own node, in the order of its group's requests.
	Claims []api.DeviceClaim
}

// MateOf returns an assignment as a mate.
func MateOf(a *api.Assignment) Mate { return Mate{Group: a.Group, Node: a.Node, Claims: a.Devices} }

// Mates returns the members of a fit of one group as mates, with the devices that were chosen for them.
func (s *Sketch) Mates(group string, f Fit, chosen [][]DevicesOn) []Mate {
	var mates []Mate
	for _, c := range f.counts[0] {
		node := s.view.nodes[c.id].record.Name
		for range c.members {
			if len(mates) == len(chosen) {
				return mates
			}
			mate := Mate{Group: group, Node: node}
			for _, on := range chosen[len(mates)] {
				if on.Node == node {
					mate.Claims = on.Claims
				}
			}
			mates = append(mates, mate)
		}
	}
	return mates
}

// nearCPUs returns the NUMA nodes of the CPUs that each member of a fit is about to get, in the order of the members.
func (s *Sketch) nearCPUs(groups []api.Group, f Fit) [][]int {
	slots := map[int32]occupancy{}
	for _, counts := range f.counts {
		for _, c := range counts {
			if had, ok := s.slots[c.id]; ok {
				slots[c.id] = had.clone()
			}
		}
	}
	placed := layOut(&s.view, groups, f.counts, slots)
	near := make([][]int, len(placed))
	for i := range placed {
		near[i] = placed[i].NUMANodes
	}
	return near
}

// prefer narrows devices that serve a request of a member, the best choice first, and ends with all of them.
func prefer(n *node, all []*api.Device, on *plane, near []int) [][]*api.Device {
	only := func(from []*api.Device, is func(*api.Device) bool) []*api.Device {
		var some []*api.Device
		for _, d := range from {
			if is(d) {
				some = append(some, d)
			}
		}
		return some
	}
	nearby := only(all, func(d *api.Device) bool { return slices.Contains(near, numaNodeOf(n, d)) })
	levels := [][]*api.Device{nearby, all}
	if on != nil {
		same := only(all, func(d *api.Device) bool { return planeOf(d) == *on })
		both := only(same, func(d *api.Device) bool { return slices.Contains(nearby, d) })
		levels = [][]*api.Device{both, same, nearby, all}
	}
	last := 0
	return slices.DeleteFunc(levels, func(level []*api.Device) bool {
		useless := len(level) == 0 || last == len(all) // everything was tried
		if !useless {
			last = len(level)
		}
		return useless
	})
}

// among suits the devices of a list.
func among(list []*api.Device) func(*device.Device) bool {
	return func(d *device.Device) bool {
		return slices.ContainsFunc(list, func(one *api.Device) bool { return one.ID == d.ID })
	}
}

// choosePlane returns the plane on which most members of a group can have what one of its requests asks for, those that have theirs already
// included; of equals the one that is nearest to most members' CPUs. nil: all devices that serve it are on one plane, or the request names one.
func (c *chooser) choosePlane(group, request int, mates []Mate) *plane {
	r := c.groups[group].Devices[request]
	if r.Remote || r.Rail != nil || r.Device != "" {
		return nil
	}
	scores := map[plane]*score{}
	for _, id := range c.nodes {
		for _, d := range c.serving(id, r) {
			scores[planeOf(d)] = &score{}
		}
	}
	if len(scores) < 2 {
		return nil
	}
	for _, id := range c.nodes {
		n, tree := c.s.view.nodes[id], c.tree(id)
		members := slices.DeleteFunc(slices.Clone(c.at[id]), func(m *member) bool { return m.group != group })
		if len(members) == 0 || tree == nil {
			continue
		}
		room, near := map[plane]int{}, map[plane][]int{}
		for _, d := range c.serving(id, r) {
			p := planeOf(d)
			room[p] += tree.Room(device.Part{Device: d.ID, Way: r.Way, Times: r.Times()})
			near[p] = append(near[p], numaNodeOf(n, d))
		}
		for p := range room {
			scores[p].room += min(room[p]/max(r.Count, 1), len(members))
			for _, m := range members {
				if slices.ContainsFunc(m.near, func(node int) bool { return slices.Contains(near[p], node) }) {
					scores[p].near++
				}
			}
		}
	}
	for _, mate := range mates {
		if d := c.mateDevice(group, request, mate); d != nil && scores[planeOf(d)] != nil {
			scores[planeOf(d)].room++
		}
	}
	return bestOf(scores)
}

// score is for how many members a plane has room, and to how many members' CPUs it is near.
type score struct{ room, near int }

// bestOf returns the plane with the best score; of equals the lowest rail, and then the first cell.
func bestOf(scores map[plane]*score) *plane {
	var best *plane
	for p, s := range scores {
		if best == nil {
			best = &p
			continue
		}
		b := scores[*best]
		if cmp.Or(cmp.Compare(s.room, b.room), cmp.Compare(s.near, b.near), cmp.Compare(best.rail, p.rail), cmp.Compare(best.cell, p.cell)) > 0 {
			best = &p
		}
	}
	return best
}

// mateDevice returns the device that a mate has for a request of its group; nil where it has none, or its node is not known.
func (c *chooser) mateDevice(group, request int, mate Mate) *api.Device {
	g := &c.groups[group]
	if mate.Group != g.Name {
		return nil
	}
	// Its last claims are those for its own node's devices, in the order of the requests.
	at := len(mate.Claims)
	for i := len(g.Devices) - 1; i >= request; i-- {
		if !g.Devices[i].Remote {
			at -= g.Devices[i].Count
		}
	}
	id, known := c.s.view.ids[mate.Node]
	if at < 0 || !known || mate.Claims[at].Way != g.Devices[request].Way || mate.Claims[at].Class != g.Devices[request].Class {
		return nil
	}
	return recordOf(c.s.view.nodes[id], mate.Claims[at].Device)
}
