package situation

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAGroupAsksForTheLargestMTUOfItsProjectsNetworks(t *testing.T) {
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view := func(revision int64, err error) *state.View {
		t.Helper()
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		return cache.View()
	}
	view(repo.CreateProject(t.Context(), api.Project{Name: "lab", CreatedAt: noon}))
	for name, mtu := range map[string]int{"wide": 8950, "small": 1400, "any": 0, "lab.wide": 4000} {
		in := api.NetworkIntent{Name: name, UID: name, Project: api.DefaultProject, MTU: mtu, CreatedAt: noon}
		if name == "lab.wide" {
			in.Project = "lab"
		}
		view(repo.CreateNetwork(t.Context(), in))
	}
	wide := api.PortMTU{Network: "project/wide", Bytes: 8950, UnderlayBytes: 9000}
	for _, tt := range []struct {
		project  string
		networks []api.GroupNetwork
		want     api.PortMTU
	}{
		{api.DefaultProject, api.OnNetworks("project/small", "project/wide", "project/any"), wide},
		{"", api.OnNetworks("project/wide", "project/small"), wide},
		{api.DefaultProject, api.OnNetworks("project/any", "wide", "project/gone"), api.PortMTU{}},
		{"lab", api.OnNetworks("project/wide"), api.PortMTU{Network: "project/wide", Bytes: 4000, UnderlayBytes: 4050}},
	} {
		if got := portMTU(cache.View(), &api.ClusterIntent{Project: tt.project}, &api.Group{Networks: tt.networks}, false); got != tt.want {
			t.Errorf("%s, %v: got %+v, want %+v", tt.project, tt.networks, got, tt.want)
		}
	}
	if got, want := portMTU(cache.View(), &api.ClusterIntent{}, &api.Group{Networks: api.OnNetworks("project/wide")}, true).UnderlayBytes, 9060; got != want {
		t.Errorf("with encryption, a network takes %d bytes of the underlay, want %d", got, want)
	}
	at := see(view(repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "c", UID: "u", CreatedAt: noon, Spec: api.ClusterSpec{Groups: []api.Group{
		{Name: "a", Size: 1, Networks: api.OnNetworks("project/wide")}, {Name: "b", Size: 1},
	}}})), nil)
	var room Room
	free, err := room.Update(at.View, at.Available)
	if err != nil {
		t.Fatal(err)
	}
	asked := at.Admission(at.Needs(), free).Requests
	if len(asked) != 1 || asked[0].Groups[0].PortMTU != wide || asked[0].Groups[1].PortMTU != (api.PortMTU{}) {
		t.Errorf("the cluster asks for %+v", asked)
	}
}

func TestAnOwnNetworkOnAVLANNeedsATrunkForPortsOnBridges(t *testing.T) {
	intent := api.ClusterIntent{Name: "lab.c1", Spec: api.ClusterSpec{Technology: api.TechnologyVLAN}}
	if got, want := portMTU(&state.View{}, &intent, &api.Group{}, false), (api.PortMTU{VLAN: "c1", TrunkBytes: 1}); got != want {
		t.Errorf("ports on bridges: got %+v, want %+v", got, want)
	}
	if got := portMTU(&state.View{}, &intent, &api.Group{Interface: api.InterfaceVF}, false); got != (api.PortMTU{}) {
		t.Errorf("ports on functions ask for %+v", got)
	}
	standby := api.Group{Interface: api.InterfaceVF, Standby: true}
	if got, want := portMTU(&state.View{}, &intent, &standby, false), (api.PortMTU{VLAN: "c1", TrunkBytes: 1}); got != want {
		t.Errorf("functions with standbys: got %+v, want %+v", got, want)
	}
}
