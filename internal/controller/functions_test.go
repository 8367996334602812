package controller

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// newPartitioned is a led site with one node and network project/ib on fabric ib0. The node's adapter there has one virtual function, its Ethernet
// adapter two. The site has one VLAN.
func newPartitioned(t *testing.T) *wired {
	t.Helper()
	w := &wired{led: newLed(t, memory.New()), tables: &fake.Tables{}}
	w.executor = fake.NewSite(w.tables)
	w.keeper = site.NewKeeper(w.executor, slog.New(slog.DiscardHandler))
	w.fabrics, w.pkeys, w.vlans = situation.Fabrics{"ib0": w.keeper}, api.PKeyPool{First: 0x12, Last: 0x1f}, api.VLANPool{First: 100, Last: 100}
	w.campaign()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.keeper.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	record := api.NodeRecord{
		Name: "n1", Underlay: "198.18.0.1", Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}, {Stack: api.StackVM, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer, api.StackVM}, OK: true}},
		Capacity: api.NodeCapacity{Cores: []api.Core{{}, {Slot: 1, CPU: 1}}, MemoryBytes: 8 << 30, Devices: []api.Device{{
			ID: "0000:3b:00.0", Class: api.ClassHCA, Cell: "ib0", Counters: map[string]int64{"vf": 1, "port": 1},
			Ways: map[string]api.DeviceWay{"vf": {Mode: "sriov", Takes: map[string]int64{"vf": 1}}},
		}, {
			ID: "0000:5e:00.0", Class: api.ClassNIC, Cell: "lan1", Counters: map[string]int64{"vf": 2, "port": 1},
			Ways: map[string]api.DeviceWay{"vf": {Mode: "sriov", Takes: map[string]int64{"vf": 1}}},
		}}},
	}
	w.view(w.repo.PutNode(t.Context(), record))
	w.view(w.repo.CreateNetwork(t.Context(), api.NetworkIntent{
		Name: "ib", UID: "uib", Project: api.DefaultProject, Technology: api.TechnologyInfiniBand, Partition: api.Partition{IPoIB: true}, CreatedAt: w.now,
	}))
	return w
}

// ask asks for a cluster of one member with a virtual function on project/ib.
func (w *wired) ask(name string) {
	w.t.Helper()
	w.askOn(api.StackContainer, name)
}

func (w *wired) askOn(stack api.Stack, name string) {
	w.t.Helper()
	w.askFor(name, api.ClusterSpec{}, func(g *api.Group) {
		g.Stack, g.Networks = stack, []api.GroupNetwork{{Name: "project/ib", Interface: api.InterfaceVF, Limited: true}}
	})
}

// askFor asks for a cluster of one member with ports as they are set.
func (w *wired) askFor(name string, spec api.ClusterSpec, ports func(g *api.Group)) {
	w.t.Helper()
	g := api.Group{Name: name, Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local"}
	ports(&g)
	spec.Groups = []api.Group{g}
	w.view(w.repo.CreateCluster(w.t.Context(), api.ClusterIntent{Name: name, UID: "u" + name, Project: api.DefaultProject, CreatedAt: w.now, Spec: spec}))
}

func TestTheLastFunctionHasOneOwnerUntilItIsProvedClean(t *testing.T) {
	w := newPartitioned(t)
	w.ask("first")
	w.ask("second")
	view := w.passes("answered", func(v *state.View) bool {
		first, second := v.Cluster("first").Record, v.Cluster("second").Record
		return first != nil && first.PlacedAt != nil && second != nil && second.Phase == api.ClusterRefused
	})
	if why := view.Cluster("second").Record.Message; !strings.Contains(why, "node n1: all 1 virtual functions of 0000:3b:00.0 are taken") {
		t.Errorf("the second is refused with %q, want the adapter's port named", why)
	}
	n, a := view.Network("uib"), only(t, view.Cluster("first"))
	if n.PKey != 0x12 || n.Cell != "ib0" || n.Index == 0x12 {
		t.Errorf("network project/ib is %+v, want partition key 0x12 in cell ib0", n)
	}
	p := a.Ports[1]
	if p.Kind != api.PortVF || p.Device != "0000:3b:00.0" || p.Part != "vf0" || p.Fabric != "ib0" || p.GUID == "" || !p.Limited || len(a.CleanBy) != 2 {
		t.Errorf("its port is %+v, clean by %v", p, a.CleanBy)
	}
	w.report(api.MemberReady)
	w.passes("ready", func(v *state.View) bool { return v.Cluster("first").Record.Phase == api.ClusterReady })
	tables := w.tables.Networks()
	if len(tables) != 1 || tables[0].Number != 0x12 || len(tables[0].Ports) != 1 || tables[0].Ports[0] != (site.Port{At: p.GUID, Limited: true}) {
		t.Errorf("the fabric has %+v, want GUID %s as a limited member of partition 0x12", tables, p.GUID)
	}
	var told bool
	for _, network := range w.agents.desired["n1"].Networks {
		for _, port := range network.Ports {
			told = told || network.UID == "uib" && port.Function.Device == "0000:3b:00.0" && port.Function.Part == "vf0" && port.Function.GUID == p.GUID
		}
	}
	if !told {
		t.Errorf("the node is not told of the function: %+v", w.agents.desired["n1"].Networks)
	}
	w.tables.Stick(p.GUID, true)
	w.release(w.cache.View().Cluster("first"))
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("the agent's proof is stored", func(v *state.View) bool { return len(v.Cluster("first").Record.Proved) == 1 })
	w.ask("third")
	w.passes("refused", func(v *state.View) bool {
		third := v.Cluster("third").Record
		return third != nil && third.Phase == api.ClusterRefused && strings.Contains(third.Message, "0000:3b:00.0 are taken")
	})
	w.tables.Stick(p.GUID, false)
	w.passes("free", func(v *state.View) bool {
		return v.Cluster("first").Record == nil || len(v.Cluster("first").Record.Chunks) == 0
	})
	w.ask("fourth")
	view = w.passes("given again", func(v *state.View) bool {
		return v.Cluster("fourth").Record != nil && v.Cluster("fourth").Record.PlacedAt != nil
	})
	if again := only(t, view.Cluster("fourth")).Ports[1]; again.Part != "vf0" {
		t.Errorf("once the function is clean, it is given as %+v", again)
	}
}

func TestANetworkGetsNoPartitionKeyOfTheOperators(t *testing.T) {
	w := newPartitioned(t)
	w.tables.Own(0x12)
	w.executor.Fail("Check", errors.New("the operator's file can't be read"))
	w.view(w.repo.CreateNetwork(t.Context(), api.NetworkIntent{
		Name: "own", UID: "uown", Project: api.DefaultProject, Technology: api.TechnologyInfiniBand, PKey: 0x12, CreatedAt: w.now,
	}))
	if view := w.mustPass(); view.Network("uib") != nil || view.Network("uown") != nil {
		t.Fatalf("networks have numbers although nobody knows which the operator has: %+v, %+v", view.Network("uib"), view.Network("uown"))
	}
	w.executor.Fail("Check", nil)
	view := w.passes("numbered", func(v *state.View) bool { return v.Network("uib") != nil && v.Network("uown") != nil })
	if n := view.Network("uib"); n.PKey != 0x13 || n.Refused != "" {
		t.Errorf("network project/ib has partition key %#x, %q; want 0x13, since 0x12 is the operator's", n.PKey, n.Refused)
	}
	if n := view.Network("uown"); n.PKey != 0 || !strings.Contains(n.Refused, "fabric ib0: network 18 is the operator's") {
		t.Errorf("network project/own, which asks for the operator's key, has %#x, %q", n.PKey, n.Refused)
	}
}

// waits checks that a cluster is queued although nodes have room for it, and told why.
func (w *wired) waits(name, why string) {
	w.t.Helper()
	view := w.passes(name+" waits", func(v *state.View) bool { return v.Cluster(name).Record != nil })
	if r := view.Cluster(name).Record; r.Phase != api.ClusterQueued || r.Message != "nodes have room, but "+why {
		w.t.Errorf("%s is %s: %q; want it queued, told %q", name, r.Phase, r.Message, why)
	}
}

func TestAQueuedClusterIsToldWhyItsNetworkHasNoKeyAndGetsItsPlaceOnceThatHasOne(t *testing.T) {
	w := newPartitioned(t)
	w.executor.Fail("Check", errors.New("the operator's file can't be read"))
	w.askFor("c", api.ClusterSpec{Queue: true}, func(g *api.Group) {
		g.Networks = []api.GroupNetwork{{Name: "project/ib", Interface: api.InterfaceVF}}
	})
	w.waits("c", "network project/ib has no partition key yet: its fabric can't be asked now: fabric ib0: the operator's file can't be read")
	w.executor.Fail("Check", nil)
	w.passes("placed", func(v *state.View) bool { return v.Cluster("c").Record.PlacedAt != nil })
}

func TestAQueuedClusterIsToldThatNoVLANIsFree(t *testing.T) {
	w := newPartitioned(t)
	onVLAN := func(g *api.Group) { g.Interface = api.InterfaceVF }
	w.askFor("first", api.ClusterSpec{Technology: api.TechnologyVLAN}, onVLAN)
	w.passes("placed", func(v *state.View) bool { r := v.Cluster("first").Record; return r != nil && r.PlacedAt != nil })
	w.askFor("second", api.ClusterSpec{Technology: api.TechnologyVLAN, Queue: true}, onVLAN)
	w.waits("second", "all VLANs of the site's pool (100-100) are in use: delete a network, or a cluster, on one")
}

func TestASavedMembersFunctionIsFreeAndItGoesOnWithWhatIsFreeThen(t *testing.T) {
	w := newPartitioned(t)
	w.askOn(api.StackVM, "first")
	record := func(v *state.View, name string) *api.ClusterRecord { return v.Cluster(name).Record }
	w.passes("placed", func(v *state.View) bool { return record(v, "first") != nil && record(v, "first").PlacedAt != nil })
	w.report(api.MemberReady)
	a := only(t, w.passes("ready", func(v *state.View) bool { return record(v, "first").Phase == api.ClusterReady }).Cluster("first"))
	guid := a.Ports[1].GUID
	w.wantSaved("first", true)
	w.passes("saving", func(v *state.View) bool { return record(v, "first").Phase == api.ClusterSaving })
	w.report(api.MemberSaved)
	view := w.passes("saved", func(v *state.View) bool { return record(v, "first").Phase == api.ClusterSaved })
	if saved := only(t, view.Cluster("first")); len(saved.Devices) > 0 || saved.Ports[1].Device != "" || saved.Ports[1].GUID != guid {
		t.Errorf("the saved member holds %+v, with port %+v; want its GUID and no function", saved.Devices, saved.Ports[1])
	}

	w.ask("second")
	view = w.passes("its function is another's", func(v *state.View) bool { return record(v, "second") != nil && record(v, "second").PlacedAt != nil })
	second := only(t, view.Cluster("second"))
	if p := second.Ports[1]; p.Part != "vf0" || p.GUID == guid {
		t.Errorf("the second has port %+v, want function vf0 and a GUID of its own", p)
	}
	w.wantSaved("first", false)
	w.passes("waits for a function", func(v *state.View) bool {
		return strings.Contains(record(v, "first").Message, "(devices)")
	})

	w.agents.members[second.ID] = monitor.MemberState{Phase: api.MemberReady, Current: true, Since: w.now}
	w.release(w.cache.View().Cluster("second"))
	w.agents.clean = map[string][]string{"n1": {second.ID}}
	next := ""
	view = w.passes("has a place", func(v *state.View) bool {
		for b := range v.Cluster("first").Held() {
			if b.IsSuccessor() {
				next = b.ID
			}
		}
		return next != ""
	})
	for b := range view.Cluster("first").Held() {
		if p := b.Ports[1]; b.ID == next && (p.Part != "vf0" || p.GUID != guid || p.At != guid || len(b.Devices) != 1) {
			t.Errorf("it goes on with port %+v of %+v, want function vf0 and its GUID", p, b.Devices)
		}
	}
	w.agents.members[next] = monitor.MemberState{Phase: api.MemberReady, Current: true, Since: w.now}
	w.passes("took over", func(v *state.View) bool { return record(v, "first").Phase == api.ClusterReady })
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("what it left is clean, though its GUID stays in its partition", func(v *state.View) bool {
		for b := range v.Cluster("first").All() {
			if b.ID == a.ID {
				return false
			}
		}
		return true
	})
	if tables := w.tables.Networks(); len(tables) != 1 || len(tables[0].Ports) != 1 || tables[0].Ports[0].At != guid {
		t.Errorf("the fabric has %+v, want GUID %s in its partition", tables, guid)
	}
}
