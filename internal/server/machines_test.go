package server

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAnAgentSpeaksForTheBootOfItsIdentityOnly(t *testing.T) {
	view := &state.View{Nodes: []*state.Node{
		{Name: "m1", Identity: &api.NodeIdentity{Boot: 3}}, {Name: "m2", Machine: &state.Machine{}}, {Name: "n1", Identity: &api.NodeIdentity{}},
	}}
	for _, tc := range []struct {
		name  string
		boot  int64
		taken bool
	}{
		{"m1", 3, true},
		{"m1", 2, false},
		{"m1", 0, false},
		{"m2", 1, false}, // has no identity
		{"n1", 0, true},
		{"n1", 1, false}, // was not booted from here
		{"nobody", 0, false},
	} {
		if err := ownBoot(view, &api.NodeRecord{Name: tc.name, BootGeneration: tc.boot}); (err == nil) != tc.taken {
			t.Errorf("agent of %s in boot %d: %v", tc.name, tc.boot, err)
		}
	}
}

func TestANodeDoesNotGetThePlaceOfAnotherOnAFabric(t *testing.T) {
	port := func(at string) api.NodeCapacity {
		return api.NodeCapacity{Ports: []api.NodePort{{Name: "p0", Fabric: "ib0", At: at}}}
	}
	view := &state.View{Nodes: []*state.Node{{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Capacity: port("0x1")}}}}
	for name, tt := range map[string]struct {
		node, at string
		refused  bool
	}{"its own": {"n1", "0x1", false}, "a free one": {"n2", "0x2", false}, "another's": {"n2", "0x1", true}} {
		err := ownPorts(view, &api.NodeRecord{Name: tt.node, Capacity: port(tt.at)})
		if (err != nil) != tt.refused || tt.refused && !strings.Contains(err.Error(), "node forget n1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	adapter := api.NodeCapacity{Devices: []api.Device{{ID: "0000:5e:00.0", Class: api.ClassHCA, Cell: "ib0", GUID: "0x1"}}}
	if err := ownPorts(view, &api.NodeRecord{Name: "n2", Capacity: adapter}); err == nil {
		t.Error("an adapter has the GUID of another node's port")
	}
	if err := ownPorts(view, &api.NodeRecord{Name: "n1", Capacity: adapter}); err != nil {
		t.Errorf("the node's adapter has that port: %v", err)
	}
}

func TestWhatIsStoredOfAMachineThatIsAMemberIsWhatWasInspected(t *testing.T) {
	hardware := &api.Hardware{CPU: api.CPU{Threads: 4}, MemoryBytes: 8 << 30}
	view := &state.View{Nodes: []*state.Node{
		{Name: "m1", Identity: &api.NodeIdentity{Member: "c.m-0.1"}, Machine: &state.Machine{Hardware: hardware}}, {Name: "n1", Identity: &api.NodeIdentity{}},
	}}
	claims := api.NodeRecord{
		Name: "m1", BootGeneration: 7, Underlay: "10.0.0.5", Labels: map[string]string{"zone": "theirs"}, InRAM: true, Images: true,
		Capacity: api.NodeCapacity{MemoryBytes: 1 << 50, Ports: []api.NodePort{{Name: "p0", Fabric: "ib0", At: "0x1"}}},
		Stacks:   []api.StackCheck{{Stack: api.StackContainer, OK: true}},
	}
	got := asInspected(view, claims)
	if got.Capacity.MemoryBytes > 8<<30 || len(got.Capacity.Cores) != 4 || len(got.Capacity.Ports) > 0 || len(got.Stacks) > 0 || len(got.Labels) > 0 || got.InRAM || got.Images {
		t.Errorf("stored of it is %+v", got)
	}
	if got.Name != "m1" || got.BootGeneration != 7 || got.Underlay != "10.0.0.5" {
		t.Errorf("it is not known by its name, boot and address: %+v", got)
	}
	claims.Name = "n1"
	if got := asInspected(view, claims); got.Capacity.MemoryBytes != 1<<50 {
		t.Errorf("a node of the site is not believed: %+v", got)
	}
}
