package controller

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAClusterOfAnotherProjectJoinsASharedNetwork(t *testing.T) {
	w := newPartitioned(t)
	w.view(w.repo.CreateProject(t.Context(), api.Project{Name: "lab", CreatedAt: w.now}))
	w.view(w.repo.CreateNetwork(t.Context(), api.NetworkIntent{
		Name: "storage", UID: "ustorage", Project: api.DefaultProject, Technology: api.TechnologyInfiniBand, SharedWith: []string{"lab"}, CreatedAt: w.now,
	}))
	spec := api.ClusterSpec{Groups: []api.Group{{
		Name: "c", Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		Networks: []api.GroupNetwork{{Name: "project/default.storage", Interface: api.InterfaceVF, Limited: true}},
	}}}
	w.view(w.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "lab.c", UID: "uc", Project: "lab", CreatedAt: w.now, Spec: spec}))
	view := w.passes("placed", func(v *state.View) bool { r := v.Cluster("lab.c").Record; return r != nil && r.PlacedAt != nil })
	if p := only(t, view.Cluster("lab.c")).Ports[1]; p.Network != "ustorage" || p.Fabric != "ib0" || !p.Limited {
		t.Errorf("the member's port is %+v, want a limited one on the shared network", p)
	}
	w.view(w.repo.CreateProject(t.Context(), api.Project{Name: "astro", CreatedAt: w.now}))
	if _, err := w.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "astro.c", UID: "ua", Project: "astro", CreatedAt: w.now, Spec: spec}); !errors.Is(err, state.ErrNoNetwork) {
		t.Errorf("a project that the network is not shared with joins it: %v", err)
	}
}

func TestMembersOfASharedNetworkLearnNoNamesOfOtherProjects(t *testing.T) {
	n := &api.Network{UID: "ustorage", Project: "infra"}
	cluster := func(name string) *state.Cluster { return &state.Cluster{Intent: api.ClusterIntent{Name: name}} }
	for _, row := range []struct {
		to, of string
		want   bool
	}{
		{"lab.c1", "lab.c2", true},
		{"lab.c1", "infra.files", true},
		{"lab.c1", "astro.c1", false},
		{"infra.files", "lab.c1", false},
		{"c1", "c2", true},
		{"c1", "lab.c1", false},
	} {
		if got := mayName(n, cluster(row.to), cluster(row.of)); got != row.want {
			t.Errorf("members of %s learn the names of %s: %v, want %v", row.to, row.of, got, row.want)
		}
	}
}
