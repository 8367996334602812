package placement

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// Devices of members' own nodes are chosen node by node, then those that may lie elsewhere. On a node, each choice leaves what the other requests
// there need: a request that takes any adapter does not get the one that another names.

// FitDevices chooses devices for members: the n-th is of the n-th group and goes to the n-th node. Those of the member's own node come
// first, then those of other schedulable nodes in natural order, but for those that somebody has whole. mates are members of the groups that
// have theirs. The text says what is missing; nothing is chosen then. TakeDevices takes what was chosen.
func (s *Sketch) FitDevices(groups []api.Group, f Fit, mates ...Mate) (chosen [][]DevicesOn, missing string) {
	c := s.newChooser(groups, f)
	if wantOwnDevices(groups) {
		for i, near := range s.nearCPUs(groups, f) {
			c.members[i].near = near
		}
		c.planes = make([][]*plane, len(groups))
		for g := range groups {
			for r := range groups[g].Devices {
				c.planes[g] = append(c.planes[g], c.choosePlane(g, r, mates))
			}
		}
		for _, id := range c.nodes {
			if missing := c.chooseOwn(id); missing != "" {
				return nil, missing
			}
		}
	}
	for _, m := range c.members {
		for i, r := range groups[m.group].Devices {
			if r.Remote && !c.chooseAnywhere(m, i) {
				return nil, c.missing(m.group, r)
			}
		}
		chosen = append(chosen, c.byNode(m))
	}
	return chosen, ""
}

// chooser chooses the devices of the members of a fit.
type chooser struct {
	s       *Sketch
	groups  []api.Group
	members []*member
	// nodes are those that members go to, each once, and at the members there.
	nodes []int32
	at    map[int32][]*member
	// trees are what is free, less what was chosen. whole are nodes that somebody is about to get whole.
	trees map[int32]*partsFree
	whole map[int32]bool
	// planes are preferred, by group and request.
	planes [][]*plane
	// taken is what members and servers of the fit take of the nodes' memory, in bytes.
	taken map[int32]int64
	// shared is how many members of the fit have a part of a GPU.
	shared map[deviceOn]int
	// servers are the nodes that may serve requests for remote GPUs. trips are the shortest round trips that were measured; nil: nobody asked.
	servers []*servers
	trips   *[distances]float64
	// running: the members run already.
	running bool
}

// member is one that is to get devices.
type member struct {
	group int
	home  int32
	// near are the NUMA nodes of its CPUs.
	near []int
	// parts are what was chosen, by request of its group.
	parts [][]partOn
}

type partOn struct {
	node  int32
	claim api.DeviceClaim
}

func emptyChooser(s *Sketch, groups []api.Group) *chooser {
	return &chooser{s: s, groups: groups, at: map[int32][]*member{}, trees: map[int32]*partsFree{}, whole: map[int32]bool{}, taken: map[int32]int64{}, shared: map[deviceOn]int{}}
}

func (s *Sketch) newChooser(groups []api.Group, f Fit) *chooser {
	c := emptyChooser(s, groups)
	for _, share := range f.Shares {
		c.whole[share.node] = share.whole
		c.taken[share.node] += share.memory
	}
	for g := range groups {
		for _, count := range f.counts[g] {
			if len(c.at[count.id]) == 0 {
				c.nodes = append(c.nodes, count.id)
			}
			for range count.members {
				m := &member{group: g, home: count.id, parts: make([][]partOn, len(groups[g].Devices))}
				c.members, c.at[count.id] = append(c.members, m), append(c.at[count.id], m)
			}
		}
	}
	return c
}

// tree is what is free of a node's devices; nil when what is held there makes no sense: nothing is given then.
func (c *chooser) tree(id int32) *partsFree {
	tree, known := c.trees[id]
	if !known {
		tree = c.s.view.freeParts(id)
		c.trees[id] = tree
	}
	return tree
}

// serving are the devices of a node that serve a request, whatever is free of them.
func (c *chooser) serving(id int32, r api.DeviceRequest) []*api.Device {
	n := c.s.view.nodes[id]
	var all []*api.Device
	for i := range n.record.Capacity.Devices {
		if d := &n.record.Capacity.Devices[i]; serves(n, d, r) {
			all = append(all, d)
		}
	}
	return all
}

// demand is what members of one node have yet to get of devices that serve the same request.
type demand struct {
	group   int
	request api.DeviceRequest
	serving []*api.Device
	left    int
}

func (d *demand) parts(count int, from []*api.Device) device.Request {
	return device.Request{Way: d.request.Way, Count: count, Times: d.request.Times(), Suits: among(from)}
}

// demands are those of the members of a node, and of each group's requests the one that it belongs to.
func (c *chooser) demands(id int32) (all []*demand, of map[[2]int]*demand) {
	of = map[[2]int]*demand{}
	for _, m := range c.at[id] {
		for i, r := range c.groups[m.group].Devices {
			if r.Remote {
				continue
			}
			at := [2]int{m.group, i}
			if of[at] == nil {
				k := slices.IndexFunc(all, func(d *demand) bool { return sameDevices(d.request, r) })
				if k < 0 {
					k = len(all)
					all = append(all, &demand{group: m.group, request: r, serving: c.serving(id, r)})
				}
				of[at] = all[k]
			}
			of[at].left += r.Count
		}
	}
	return all, of
}

// sameDevices reports whether the same devices serve two requests, handed out in the same way.
func sameDevices(a, b api.DeviceRequest) bool {
	return a.Class == b.Class && a.Way == b.Way && a.Cell == b.Cell && a.Model == b.Model && a.Memory == b.Memory && a.Same(b.DeviceChoice)
}

// chooseOwn chooses the devices of a node for the members that go there. The text says what is missing.
func (c *chooser) chooseOwn(id int32) (missing string) {
	all, of := c.demands(id)
	for _, m := range c.at[id] {
		for i, r := range c.groups[m.group].Devices {
			if r.Remote {
				continue
			}
			own := of[[2]int{m.group, i}]
			for range r.Count {
				if !c.takeNearest(m, i, own, all) {
					lacks := c.lacking(id, own, all)
					return c.missing(lacks.group, lacks.request)
				}
				own.left--
			}
		}
	}
	return ""
}

// others are what is left of all demands but one, with the demands.
func others(own *demand, all []*demand) (requests []device.Request, of []*demand) {
	for _, d := range all {
		if d != own && d.left > 0 {
			requests, of = append(requests, d.parts(d.left, d.serving)), append(of, d)
		}
	}
	return requests, of
}

// takeNearest takes one part for a member, the preferred one that leaves enough for the others.
func (c *chooser) takeNearest(m *member, request int, own *demand, all []*demand) bool {
	tree := c.tree(m.home)
	if tree == nil {
		return false
	}
	rest, _ := others(own, all)
	for _, level := range prefer(c.s.view.nodes[m.home], own.serving, c.planes[m.group][request], m.near) {
		if parts, ok := tree.Fit(append([]device.Request{own.parts(1, level)}, rest...)); ok {
			return c.take(m, request, c.groups[m.group].Devices[request], m.home, parts[0][0].Device)
		}
	}
	return false
}

// lacking is the demand for which too little is left.
func (c *chooser) lacking(id int32, own *demand, all []*demand) *demand {
	requests, of := others(own, all)
	tree := c.tree(id)
	if tree == nil {
		return own
	}
	if _, refusal := tree.Place(append([]device.Request{own.parts(1, own.serving)}, requests...)); refusal != nil && refusal.Request > 0 {
		return of[refusal.Request-1]
	}
	return own
}

// chooseAnywhere chooses what a member needs by a request that other nodes may serve, too. It reports whether there is enough.
func (c *chooser) chooseAnywhere(m *member, request int) bool {
	switch r := c.groups[m.group].Devices[request]; {
	case !r.MayBeServed():
		return c.chooseRemote(m, request)
	case r.Way == api.WayAny:
		return c.chooseAny(m, request, r)
	default:
		return c.chooseServer(m, request, r)
	}
}

// chooseRemote chooses what a member needs by a request that any node may serve, its own first. It reports whether there is enough.
func (c *chooser) chooseRemote(m *member, request int) bool {
	r := c.groups[m.group].Devices[request]
	left := r.Count
	from := func(id int32) {
		n := c.s.view.nodes[id]
		if len(n.record.Capacity.Devices) == 0 || c.tree(id) == nil {
			return
		}
		for ; left > 0; left-- {
			parts, ok := c.tree(id).Fit([]device.Request{{Way: r.Way, Count: 1, Suits: serving(n, r)}})
			if !ok || !c.take(m, request, r, id, parts[0][0].Device) {
				return
			}
		}
	}
	from(m.home)
	for _, id := range c.s.view.order {
		if left == 0 {
			break
		}
		if id != m.home && c.s.view.rows[id].state == rowSchedulable && !c.whole[id] && !c.s.hasWhole(id) {
			from(id)
		}
	}
	return left == 0
}

// take takes a part of a device for a member, as the request asks that is met by it.
func (c *chooser) take(m *member, request int, r api.DeviceRequest, id int32, of string) bool {
	n, tree := c.s.view.nodes[id], c.trees[id]
	d := recordOf(n, of)
	claim := api.DeviceClaim{Class: r.Class, Device: d.ID, Way: r.Way, Takes: taken(d.Ways[r.Way].Takes, r.Times())}
	if wholeHCA(r) {
		claim.GUID = d.GUID
	}
	if d.Parent != "" {
		claim.Parent, claim.Profile, claim.Why = d.Parent, d.Profile, "a slice of GPU "+d.Parent
	}
	claim.Part = tree.partOf(claim)
	if tree.take(claim, "a member to be") != nil {
		return false
	}
	m.parts[request] = append(m.parts[request], partOn{id, claim})
	if remoteGPU(r) {
		c.shared[deviceOn{id, d.ID}]++
	}
	c.changed(id)
	return true
}

// byNode returns a member's parts by node, in the order of its requests.
func (c *chooser) byNode(m *member) []DevicesOn {
	var on []DevicesOn
	for _, parts := range m.parts {
		for _, p := range parts {
			name := c.s.view.nodes[p.node].record.Name
			i := slices.IndexFunc(on, func(o DevicesOn) bool { return o.Node == name })
			if i < 0 {
				i = len(on)
				on = append(on, DevicesOn{Node: name})
			}
			on[i].Claims = append(on[i].Claims, p.claim)
		}
	}
	for i := range on {
		on[i].Memory = c.serverMemory(c.s.view.ids[on[i].Node], on[i].Claims)
	}
	return on
}

// missing says which devices members of a group lack.
func (c *chooser) missing(group int, r api.DeviceRequest) string {
	g := &c.groups[group]
	if onFunction(r) {
		return fmt.Sprintf("each member of group %q needs %s: %s", g.Name, functionText(r), c.s.whyNoFunction(r))
	}
	if r.Class == api.ClassGPU && (!r.Remote || r.MayBeServed()) {
		return fmt.Sprintf("each member of group %q needs %s: %s", g.Name, gpuText(r), c.s.whyNoGPU(r, g))
	}
	where := "on the node of each member"
	if r.Remote {
		where = "on any node that can be used"
	}
	return fmt.Sprintf("each member of group %q needs %d of device class %q handed out as %q%s, and too few are free %s", g.Name, r.Count, r.Class, r.Way,
		choiceText(r.DeviceChoice, "device"), where)
}
