package situation

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
)

// machineOn is a machine that is off, in which inspection found these InfiniBand ports.
func machineOn(name string, guids ...string) *state.Node {
	n := machineWith(name, nil)
	n.Machine.Hardware = &api.Hardware{CPU: api.CPU{Cores: 1}, HCAs: []api.HCA{{Name: "mlx5_0", GUID: "0000:0000:0000:0010", PortGUIDs: guids}}}
	return n
}

func TestTheInfiniBandPortsOfAMachineAreThoseThatAFabricKnowsAndNobodyElseHas(t *testing.T) {
	t.Parallel()
	const known, more, unknown = "0000000000000011", "0000000000000021", "00000000000000ff"
	fabrics := fabricsOf(&leaves{Site: fake.NewSite(&fake.Tables{})})
	ports := func(n *state.Node, others ...*state.Node) []api.NodePort {
		return inspectedPorts(&state.View{Nodes: append([]*state.Node{n}, others...)}, n, fabrics.hosts())
	}
	if got := ports(machineOn("m1", known)); len(got) != 0 {
		t.Errorf("before the fabric was surveyed it offers %+v", got)
	}
	fabrics["ib0"].Chart().Survey(t.Context())
	port := func(guid string) api.NodePort {
		return api.NodePort{Name: guid, Fabric: "ib0", At: guid, Technology: api.FabricInfiniBand}
	}
	agent := &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{Ports: []api.NodePort{{Name: "p", Fabric: "ib0", At: known}}}}}
	adapter := &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{Devices: []api.Device{{ID: "x", Class: api.ClassHCA, GUID: known}}}}}
	for _, tt := range []struct {
		name   string
		others []*state.Node
		want   []api.NodePort
	}{
		{"nobody else has them", nil, []api.NodePort{port(known), port(more)}},
		{"another machine says that it has one", []*state.Node{machineOn("m2", known)}, []api.NodePort{port(more)}},
		{"another node's agent has one", []*state.Node{agent}, []api.NodePort{port(more)}},
		{"another node's adapter is one", []*state.Node{adapter}, []api.NodePort{port(more)}},
	} {
		if diff := cmp.Diff(tt.want, ports(machineOn("m1", known, unknown, more), tt.others...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAMemberWithAWholeMachineIsReadyOnceItsAdaptersAreInItsPartition(t *testing.T) {
	t.Parallel()
	var tables fake.Tables
	l := &leaves{Site: fake.NewSite(&tables)}
	view, fabrics := onFabric(t), fabricsOf(l)
	a := &api.Assignment{ID: "u.m.1", ClusterUID: "u", Node: "n1", Whole: true, HCAs: []api.HCAClaim{{Network: "u", Fabric: "ib0", At: "0000000000000041"}}}
	phase := func() (api.MemberPhase, string) { return fabrics.Limit(view, a, api.MemberReady, "") }
	if got, why := phase(); got != api.MemberUnknown || !strings.Contains(why, "has not been read yet") {
		t.Errorf("before anything was read it is %s: %s", got, why)
	}
	keeper := fabrics["ib0"]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); keeper.Run(ctx) }()
	defer func() { cancel(); <-done }()
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.After(time.Minute); !is(); {
			select {
			case <-keeper.Changed():
			case <-time.After(10 * time.Millisecond):
			case <-deadline:
				phase, why := phase()
				t.Fatalf("never: %s; it is %s: %s", what, phase, why)
			}
		}
	}
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 1}, nil)
	until("it is starting without its partition", func() bool {
		got, why := phase()
		return got == api.MemberStarting && strings.Contains(why, "0000000000000041 is not in its network yet")
	})
	// The index of the cluster's own network.
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 2}, []site.Network{{Number: 7, Ports: []site.Port{{At: "0000000000000041"}}}})
	until("it is ready in its partition", func() bool { got, _ := phase(); return got == api.MemberReady })
	if err := fabrics.unclean(view, a, "ib0"); err == nil {
		t.Error("it is clean, and its port is to be in its partition")
	}
	keeper.Set(lifecycle.Epoch{Term: 1, Revision: 3}, nil)
	until("it is clean out of its partition", func() bool { return fabrics.unclean(view, a, "ib0") == nil })
}

func TestAMembersAdaptersAreShownToThoseWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	fabrics := fabricsOf(&leaves{Site: fake.NewSite(&fake.Tables{})})
	view := onFabric(t)
	for a := range view.Cluster("c").Held() {
		a.Ports = nil
		a.HCAs = []api.HCAClaim{{Network: "u", Fabric: "ib0", At: "port of " + a.Node}}
	}
	all := fabrics.ports(view, "ib0", everybody)
	if w := all["u"]; len(all) != 1 || w.number != 7 || len(w.ports) != 2 || w.ports["port of n1"] {
		t.Errorf("shown are %+v, want both ports, as full members, in the partition with the index of their network", w)
	}
	if others := fabrics.ports(view, "ib0", func(*api.Network) bool { return false }); len(others) != 0 {
		t.Errorf("another tenant sees %+v", others)
	}
	leaving := map[int]*wanted{}
	fabrics.addLeaving(&state.View{Quarantines: []*api.Quarantine{{Assignment: api.Assignment{HCAs: []api.HCAClaim{{Network: "u", Fabric: "ib0", At: "1"}}}}}}, "ib0", leaving)
	if len(leaving) != 0 {
		t.Errorf("a network that is not stored leaves %+v", leaving)
	}
}

func TestAMachineIsPlacedWithItsInfiniBandPorts(t *testing.T) {
	t.Parallel()
	fabrics := fabricsOf(&leaves{Site: fake.NewSite(&fake.Tables{})})
	n := machineOn("m1", "0000000000000041")
	n.Machine.Hardware.MemoryBytes = 8 << 30
	img := &api.Image{Digest: "sha256:1", Stacks: []api.Stack{api.StackMetal}, RootBytes: 1, MetalBytes: 1, KernelVersion: "6.1"}
	view := &state.View{Nodes: []*state.Node{n}, Environments: []*api.EnvironmentRecord{{Name: "e", Digest: img.Digest}}, Images: []*api.Image{img}}
	room := Room{Offers: offer.Site{Metal: true, Fabrics: fabrics.Names()}, Fabrics: fabrics}
	hcas := func() []api.HCAClaim {
		t.Helper()
		free, err := room.Update(view, func(string) placement.Availability { return placement.Asleep })
		if err != nil {
			t.Fatal(err)
		}
		placed, refusal := placement.Place(free, placement.Request{Cluster: "d", Groups: []api.Group{{Name: "d", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "e"}}})
		if refusal != nil {
			t.Fatal(refusal.Message)
		}
		all, err := placement.Assign(placed, placement.Decision{ClusterUID: "u", Cluster: "d", Generation: 1, Networks: []api.Network{{UID: "u", Index: 7, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Gateway: netip.MustParseAddr("10.64.16.1")}}})
		if err != nil {
			t.Fatal(err)
		}
		return all[0].HCAs
	}
	if got := hcas(); len(got) != 0 {
		t.Errorf("before the fabric was surveyed it has %+v", got)
	}
	fabrics["ib0"].Chart().Survey(t.Context())
	if diff := cmp.Diff([]api.HCAClaim{{Network: "u", Fabric: "ib0", At: "0000000000000041"}}, hcas()); diff != "" {
		t.Errorf("after the survey (-want +got):\n%s", diff)
	}
}
