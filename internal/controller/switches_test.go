package controller

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// newSwitched is a led site with managed switches: machine n1 boots from port sw/m1, and has sw/a and sw/b; n2 boots from sw/m2.
func newSwitched(t *testing.T) *wired {
	t.Helper()
	w := &wired{led: newLed(t, memory.New()), tables: &fake.Tables{}}
	w.executor = fake.NewSite(w.tables)
	w.keeper = site.NewKeeper(fake.Switches{Site: w.executor, Managed: map[string]bool{"sw/a": false, "sw/b": false, "sw/m1": true, "sw/m2": true}}, slog.New(slog.DiscardHandler))
	w.fabrics, w.vlans = situation.Fabrics{"lan": w.keeper}, api.VLANPool{First: 100, Last: 101}
	w.campaign()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.keeper.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	ports := map[string][]api.SwitchPort{
		"n1": {{MAC: "52:54:00:00:00:01", Cell: "lan", Port: "sw/m1"}, {MAC: "52:54:00:00:00:0a", Cell: "lan", Port: "sw/a"}, {MAC: "52:54:00:00:00:0b", Cell: "lan", Port: "sw/b"}},
		"n2": {{MAC: "52:54:00:00:00:02", Cell: "lan", Port: "sw/m2"}},
	}
	for i, name := range []string{"n1", "n2"} {
		w.view(w.repo.CreateMachine(t.Context(), api.MachineIntent{Name: name, UID: "u" + name, Spec: api.MachineSpec{MACs: []string{ports[name][0].MAC}, SwitchPorts: ports[name]}}))
		w.view(w.repo.PutNode(t.Context(), api.NodeRecord{
			Name: name, Underlay: fmt.Sprint("198.18.0.", i+1), Stacks: []api.StackCheck{{Stack: api.StackMetal, OK: true}},
			Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true}},
			Capacity:     api.NodeCapacity{Cores: []api.Core{{}}, MemoryBytes: 8 << 30},
		}))
	}
	return w
}

// askWhole asks for a cluster of whole machines.
func (w *wired) askWhole(name string, size int, technology api.Technology) {
	w.t.Helper()
	w.view(w.repo.CreateCluster(w.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: w.now, Spec: api.ClusterSpec{Technology: technology, Groups: []api.Group{{
			Name: "m", Size: size, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "local",
		}}},
	}))
}

// mustHave fails unless the switches have exactly these ports in networks.
func (w *wired) mustHave(want ...string) {
	w.t.Helper()
	var got []string
	for _, n := range w.tables.Networks() {
		for _, p := range n.Ports {
			got = append(got, fmt.Sprintf("%d:%s", n.Number, p.At))
			if (n.Number == fake.IsolatedNumber) != p.Limited {
				w.t.Errorf("port %s of network %d is limited: %v", p.At, n.Number, p.Limited)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("the switches (-want +got):\n%s", diff)
	}
}

func TestAWholeMachineIsInItsVLANAndItsProvisioningPortAlone(t *testing.T) {
	w := newSwitched(t)
	w.tables.Delay()
	w.askWhole("first", 1, api.TechnologyVLAN)
	view := w.passes("placed", placed("first"))
	a := only(t, view.Cluster("first"))
	if p := a.Ports[0]; len(a.Ports) != 1 || p.Fabric != "lan" || p.At != "sw/a" || p.Device != "52:54:00:00:00:0a" || p.MAC != p.Device || len(a.CleanBy) != 2 || a.Node != "n1" || view.Network("ufirst").VLAN != 100 {
		t.Fatalf("on node %s, VLAN %d, it has ports %+v, clean by %v; want sw/a, clean by its agent and the switches", a.Node, view.Network("ufirst").VLAN, a.Ports, a.CleanBy)
	}
	w.report(api.MemberReady)
	w.tables.Stick("sw/m1", true)
	for range 5 {
		if view = w.mustPass(); view.Cluster("first").Record.Phase != api.ClusterStarting {
			t.Fatalf("it is %s before its ports are read back", view.Cluster("first").Record.Phase)
		}
	}
	w.tables.Settle()
	w.passes("ready", func(v *state.View) bool { return v.Cluster("first").Record.Phase == api.ClusterReady })
	w.mustHave("100:sw/a", "4096:sw/m1")
	audit := func(want ...string) {
		t.Helper()
		got, err := w.fabrics.Audit(t.Context(), w.cache.View(), "lan", w.now)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]string{}, want...), got.Drift); diff != "" {
			t.Errorf("drift (-want +got):\n%s", diff)
		}
	}
	audit()
	w.tables.Plant(fake.IsolatedNumber, "sw/m1")
	audit("port sw/m1 of network 4096 (isolated provisioning ports) is a full member, and is to be a limited one")
	w.release(w.cache.View().Cluster("first"))
	w.passes("its VLAN is gone", func(*state.View) bool { return len(w.tables.Networks()) == 1 })
	w.campaign() // the next leader puts right what somebody did
	w.passes("put right", func(*state.View) bool { n := w.tables.Networks(); return len(n) == 1 && n[0].Ports[0].Limited })
	w.mustHave("4096:sw/m1") // until it is clean
	w.tables.Stick("sw/m1", false)
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("gone", func(v *state.View) bool {
		return v.Cluster("first") == nil && v.Network("ufirst") == nil && len(w.tables.Networks()) == 0
	})
}

func TestAWholeMachineIsNotReadyWhileItsProvisioningPortIsOpen(t *testing.T) {
	w := newSwitched(t)
	w.askWhole("first", 1, api.TechnologyVLAN)
	view := w.passes("placed", placed("first"))
	a := only(t, view.Cluster("first"))
	w.passes("in its VLAN", func(v *state.View) bool { p, _ := w.keeper.Attached(100, "sw/a"); return p == site.Present })
	for attached, want := range map[string]api.MemberPhase{"": api.MemberReady, "the switch is off": api.MemberUnknown} {
		w.tables.Blind("sw/m1", attached)
		w.campaign() // the next leader has the fabric read anew
		w.passes("read anew", func(*state.View) bool {
			phase, why := w.fabrics.Limit(w.cache.View(), &a, api.MemberReady, "")
			return phase == want && strings.Contains(why, attached)
		})
	}
	open := site.NewKeeper(fake.Switches{Site: fake.NewSite(&fake.Tables{}), Managed: map[string]bool{"sw/a": false, "sw/m1": true}}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); open.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	open.Set(lifecycle.Epoch{Term: 1, Revision: 1}, []site.Network{{Number: 100, Ports: []site.Port{{At: "sw/a"}}}})
	<-open.Changed()
	for {
		phase, why := situation.Fabrics{"lan": open}.Limit(w.cache.View(), &a, api.MemberReady, "")
		if phase == api.MemberStarting && strings.Contains(why, "provisioning port sw/m1 is not isolated yet") {
			return
		}
		if phase == api.MemberReady {
			t.Fatal("it is ready while other machines hear the port that it booted from")
		}
		<-open.Changed()
	}
}

func TestAWholeMachineWithoutAManagedPortIsInNoVLAN(t *testing.T) {
	w := newSwitched(t)
	w.askWhole("both", 2, api.TechnologyVLAN)
	view := w.passes("answered", refused("both"))
	if why := view.Cluster("both").Record.Message; !strings.Contains(why, "n2: 0 of its ports are on switches that the site manages, and 1 are needed; name them with: nearmetal node set n2 --switch-port") {
		t.Errorf("it is refused with %q", why)
	}
	w.askWhole("shared", 2, api.TechnologyVXLAN)
	view = w.passes("placed", placed("shared"))
	for a := range view.Cluster("shared").Held() {
		if p := a.Ports[0]; p.Fabric != "" || len(a.CleanBy) != 1 {
			t.Errorf("on a network of tunnels, %s has port %+v", a.Node, p)
		}
	}
	w.passes("isolated", func(*state.View) bool { return len(w.tables.Networks()) == 1 })
	w.mustHave("4096:sw/m1", "4096:sw/m2")
}

// A cluster of a whole machine, a container and a virtual machine is on one VLAN: on the machine's own port, and on the trunk of the node of the others.
func TestAWholeMachineIsInOneVLANWithMembersOnTheTrunkOfANode(t *testing.T) {
	w := newSwitched(t)
	group := func(name string, stack api.Stack) api.Group {
		return api.Group{Name: name, Size: 1, Shape: api.Shape{Cores: 1, Memory: 256 << 20}, Stack: stack, Environment: "local"}
	}
	host := api.NodeRecord{
		Name: "n3", Underlay: "198.18.0.3", Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}, {Stack: api.StackVM, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer, api.StackVM}, OK: true}},
		Capacity:     api.NodeCapacity{Cores: []api.Core{{}, {Slot: 1, CPU: 1}}, MemoryBytes: 8 << 30},
	}
	w.view(w.repo.PutNode(t.Context(), host))
	ask := func(name string) {
		w.view(w.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: name, UID: "u" + name, CreatedAt: w.now, Spec: api.ClusterSpec{
				Technology: api.TechnologyVLAN, Groups: []api.Group{group("c", api.StackContainer), group("m", api.StackMetal), group("v", api.StackVM)},
			},
		}))
	}
	ask("early")
	if why := w.passes("answered", refused("early")).Cluster("early").Record.Message; !strings.Contains(why, "n3: it has no trunk for the VLAN") {
		t.Errorf("without a trunk, it is refused with %q", why)
	}
	host.Trunk = &api.Trunk{Interface: "eth1", MTU: 1500}
	w.view(w.repo.PutNode(t.Context(), host))
	ask("x")
	view := w.passes("placed", placed("x"))
	got := map[string]string{}
	for a := range view.Cluster("x").Held() {
		p := a.Ports[0]
		got[a.Member] = fmt.Sprintf("%s %s %s %s %d", a.Node, p.Kind, p.Network, p.At, len(a.Ports))
	}
	want := map[string]string{"c-0": "n3 veth ux  1", "m-0": "n1 pf ux sw/a 1", "v-0": "n3 tap ux  1"}
	if diff := cmp.Diff(want, got); diff != "" || view.Network("ux").VLAN != 100 {
		t.Errorf("on VLAN %d, members have nodes and ports (-want +got):\n%s", view.Network("ux").VLAN, diff)
	}
	w.passes("in its VLAN", func(*state.View) bool { return len(w.tables.Networks()) == 2 })
	w.mustHave("100:sw/a", "4096:sw/m1")
}

func TestAMachineInQuarantineStaysIsolated(t *testing.T) {
	w := newSwitched(t)
	w.askWhole("first", 1, api.TechnologyVLAN)
	w.passes("placed", placed("first"))
	w.report(api.MemberReady)
	w.passes("ready", func(v *state.View) bool { return v.Cluster("first").Record.Phase == api.ClusterReady })
	w.release(w.cache.View().Cluster("first"))
	w.now = w.now.Add(w.lead.cfg.Deadlines.Clean * 2)
	w.passes("quarantined", func(v *state.View) bool {
		return len(v.Quarantines) == 1 && v.Cluster("first") == nil && len(w.tables.Networks()) == 1
	})
	w.mustHave("4096:sw/m1")
}

func TestAVLANThatTheSwitchesDoNotHaveIsPassedOver(t *testing.T) {
	w := newSwitched(t)
	w.tables.Own(100)
	w.askWhole("first", 1, api.TechnologyVLAN)
	if n := w.passes("placed", placed("first")).Network("ufirst"); n.VLAN != 101 {
		t.Errorf("it has VLAN %d", n.VLAN)
	}
}
