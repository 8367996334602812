package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// The numbers that networks of adapters' functions can have. Keys begin with indexes of networks, which are of the same range of numbers.
var (
	vlans = api.VLANPool{First: 100, Last: 300}
	pkeys = api.PKeyPool{First: 3, Last: 300}
)

// The networks of the default project on which members' ports are virtual functions.
const (
	wireNetwork, partitionNetwork = "wire", "ib"
	vfsPerAdapter                 = 2
)

// The adapters on the site's fabric, one on each of its rails.
var hcas = []string{"0000:5e:00.0", "0000:af:00.0"}

// hca is a port of an adapter on a rail of the site's fabric.
func hca(rail int) api.Device {
	return api.Device{
		ID: hcas[rail], Class: api.ClassHCA, NUMANode: rail, Rail: rail, Cell: cell, Counters: map[string]int64{"vf": vfsPerAdapter, "port": 1},
		Ways: map[string]api.DeviceWay{
			"vf": {Mode: "sriov", Takes: map[string]int64{"vf": 1}},
			"pf": {Mode: "whole", Takes: map[string]int64{"vf": vfsPerAdapter, "port": 1}},
		},
	}
}

// addAdapters gives most nodes one or two adapters on the fabric, if the site has one, and a trunk.
func (w *world) addAdapters(record *api.NodeRecord) {
	if w.cfg.Kinds.Has(Functions) && w.hasTrunk(record.Name) {
		record.Trunk = &api.Trunk{Interface: "eth1", MTU: 1500}
	}
	if w.fabric != nil && w.cfg.Kinds.Has(Functions) && w.drawnFor(record.Name+" adapter", 4) > 0 {
		record.Capacity.Devices = append(record.Capacity.Devices, hca(0))
		if w.drawnFor(record.Name+" second adapter", 2) > 0 {
			record.Capacity.Devices = append(record.Capacity.Devices, hca(1))
		}
	}
}

// hasTrunk reports whether a node is one of those with a trunk.
func (w *world) hasTrunk(node string) bool { return w.drawnFor(node+" trunk", 4) > 0 }

// makeFunctionNetworks makes the networks of functions, which last until all clusters are deleted.
func (w *world) makeFunctionNetworks(repo *state.Repo) {
	if !w.cfg.Kinds.Has(Functions) {
		return
	}
	for name, technology := range map[string]api.Technology{wireNetwork: api.TechnologyVLAN, partitionNetwork: api.TechnologyInfiniBand} {
		if technology == api.TechnologyInfiniBand && w.fabric == nil {
			continue
		}
		_, err := repo.CreateNetwork(w.ctx, api.NetworkIntent{
			Name: state.NetworkIntentName(api.DefaultProject, name), UID: name, Project: api.DefaultProject, Technology: technology, CreatedAt: time.Now(),
		})
		w.must(err)
	}
}

// drawFunctions lets some groups have virtual functions on a network of the default project. Spares can't hold any.
func (w *world) drawFunctions(cluster, project string, groups []api.Group) {
	if !w.cfg.Kinds.Has(Functions) || project != api.DefaultProject {
		return
	}
	for i := range groups {
		g := &groups[i]
		if g.Stack == api.StackMetal || w.drawnFor(cluster+" "+g.Name+" functions", 3) > 0 {
			continue
		}
		on := api.GroupNetwork{Name: api.ProjectNetwork(wireNetwork), Interface: api.InterfaceVF}
		if w.fabric != nil && w.drawnFor(cluster+" "+g.Name+" partition", 3) > 0 {
			on.Name, on.Limited = api.ProjectNetwork(partitionNetwork), w.drawnFor(cluster+" "+g.Name+" limited", 2) == 0
		}
		on.Adapter = w.drawAdapter(cluster+" "+g.Name, on.Name)
		on.Standby = on.Name == api.ProjectNetwork(wireNetwork) && g.Stack == api.StackVM && w.drawnFor(cluster+" "+g.Name+" standby", 2) == 0
		g.Spares, g.Networks = 0, append(g.Networks[:len(g.Networks):len(g.Networks)], on)
	}
}

// drawAdapter narrows the adapters of some ports: to one that some nodes have, or to a NUMA node or a rail.
func (w *world) drawAdapter(port, network string) (c api.DeviceChoice) {
	number := w.drawnFor(port+" which adapter", 2)
	switch w.drawnFor(port+" adapter", 6) {
	case 0:
		if c.Device = fmt.Sprint("nic", number); network == api.ProjectNetwork(partitionNetwork) {
			c.Device = hcas[number]
		}
	case 1:
		c.NUMANode = &number
	case 2:
		c.Rail = &number
	}
	return c
}

// checkChoices checks that the ports of a member are on adapters that its group chose.
func (m *mirror) checkChoices(g *api.Group, a *api.Assignment) {
	for _, on := range g.Functions() {
		if on.Adapter == (api.DeviceChoice{}) {
			continue
		}
		for i := range a.Ports {
			p := &a.Ports[i]
			if n := m.networks[p.Network]; n == nil || n.OwnName() != on.Name {
				continue
			}
			m.w.happened("adapter chosen")
			d, _ := m.w.device(deviceOf{a.Node, p.Device}, api.DeviceClaim{Class: functionsOf(&api.Group{Networks: []api.GroupNetwork{on}})[0].Class, Way: string(on.Interface)})
			c := on.Adapter
			if d == nil || c.Device != "" && c.Device != d.ID || c.NUMANode != nil && *c.NUMANode != d.NUMANode || c.Rail != nil && *c.Rail != d.Rail {
				m.w.fail("functions", "%s asked for a port on %s, and has it on %+v", a.ID, on, d)
			}
		}
	}
}

// drawOwnNetwork lets some clusters have an own network on a VLAN, or a partition of their own.
func (w *world) drawOwnNetwork(cluster string, spec *api.ClusterSpec) {
	metal := func(g api.Group) bool { return g.Stack == api.StackMetal }
	if !w.cfg.Kinds.Has(Functions) || slices.ContainsFunc(spec.Groups, metal) || w.drawnFor(cluster+" own network", 4) > 0 {
		return
	}
	if w.fabric == nil || w.drawnFor(cluster+" own partition", 4) == 0 {
		spec.Technology, spec.Groups[0].Interface, spec.Groups[0].Spares = api.TechnologyVLAN, api.InterfaceVF, 0
		spec.Groups[0].Standby = spec.Groups[0].Stack == api.StackVM
		return
	}
	spec.Technology, spec.Cell = api.TechnologyInfiniBand, cell
	for i := range spec.Groups {
		g := &spec.Groups[i]
		g.Spares, g.Networks = 0, append([]api.GroupNetwork{{Name: api.OwnPartition, Interface: api.InterfaceVF}}, g.Networks...)
	}
}

// functionsOf are the devices that each member of a group gets for its ports.
func functionsOf(g *api.Group) []api.DeviceRequest {
	var requests []api.DeviceRequest
	for _, on := range g.Functions() {
		r := api.FunctionRequest(on, api.TechnologyVLAN, "")
		if on.Name == api.ProjectNetwork(partitionNetwork) || on.Name == api.OwnPartition {
			r = api.FunctionRequest(on, api.TechnologyInfiniBand, cell)
		}
		requests = append(requests, r)
	}
	return requests
}

// checkFunctions checks that a port is on just the part of an adapter that its member holds, and that nobody else has its GUID.
func (m *mirror) checkFunctions(a *api.Assignment, holders map[any]string) {
	type guid string
	for i := range a.Ports {
		p := &a.Ports[i]
		n := m.networks[p.Network]
		if n != nil && n.Technology == api.TechnologyInfiniBand && !a.Spare && (p.GUID == "" || p.Fabric != n.Cell || p.At != p.GUID) {
			m.w.fail("functions", "%s has port %+v on InfiniBand", a.ID, p)
		}
		if p.GUID != "" {
			m.w.happened("partition joined")
			member := a.ClusterUID + " " + a.Member // takes it along when it goes on elsewhere
			if other, taken := holders[guid(p.GUID)]; taken && other != member {
				m.w.fail("double allocation", "GUID %s is allocated twice: to %s and %s", p.GUID, other, a.ID)
			}
			holders[guid(p.GUID)] = member
		}
		if !p.OnFunction(a.Whole) {
			continue
		}
		if p.Standby {
			m.w.happened("standby held")
			if p.Kind != api.PortVF || p.GUID != "" || !m.w.hasTrunk(a.Node) {
				m.w.fail("functions", "%s has port %+v with a standby on node %s", a.ID, p, a.Node)
			}
		}
		if a.Saved {
			m.w.happened("function let go")
			if p.Device != "" || p.Part != "" || len(a.Devices) > 0 {
				m.w.fail("saved", "%s is saved, and has port %+v and devices %+v", a.ID, p, a.Devices)
			}
			continue
		}
		held := false
		for _, c := range a.Devices {
			held = held || c.Device == p.Device && c.Part == p.Part
		}
		m.w.happened("function held")
		if !held || p.Part == "" {
			m.w.fail("functions", "%s has a port on %q of %s, and holds %+v", a.ID, p.Part, p.Device, a.Devices)
		}
	}
}

// functionsHeld are the functions of adapters that an assignment holds on its node.
func functionsHeld(a *api.Assignment) (functions []api.DeviceClaim) {
	for _, c := range a.Devices {
		if c.Part != "" {
			functions = append(functions, c)
		}
	}
	return functions
}

// letGo lets the functions of a saved member go, unless the node does not get to it at first.
func (a *agent) letGo(h *hostMember, first bool) {
	if h.holds = first && len(h.functions) > 0 && a.n.w.random.IntN(2) == 0; h.holds {
		a.n.w.happened("function held by a saved member")
		return
	}
	h.functions = nil
}

// checkHostFunctions checks that no function of an adapter is used by two on its node: a saved member that holds one uses it, too.
func (w *world) checkHostFunctions() {
	w.read(func(m *mirror) {
		for _, n := range w.nodes {
			if !n.box.carries(n.life) || n.box.excused() {
				continue
			}
			users := map[string]string{}
			for id, h := range n.host {
				for _, c := range h.functions {
					function := c.Device + " " + c.Part
					if other, used := users[function]; used && m.live[id] && m.live[other] {
						w.fail("functions", "%s of %s is used by %s and by %s", function, n.record.Name, min(id, other), max(id, other))
					}
					users[function] = id
				}
			}
		}
	})
}
