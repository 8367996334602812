package state_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// withOwnHome is a cluster whose home is a volume of its own, and that volume.
func withOwnHome(name string) (api.ClusterIntent, api.VolumeIntent) {
	in := intent(name)
	in.Spec.Home.Size = 1 << 30
	home := volumeIntent(api.DefaultProject, api.ClusterHomeName(in.UID))
	home.Home, home.Cluster, home.ClusterUID = true, in.Name, in.UID
	return in, home
}

func TestAClusterAndItsHomeAreStoredTogether(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		in, home := withOwnHome("h1")
		refused := errors.New("over the quota")
		if _, err := w.repo.CreateClusterWithHome(ctx, in, home, func([]api.VolumeIntent) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("a home that the quota has no room for: %v", err)
		}
		if _, err := w.repo.Intent(ctx, "h1"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("the cluster is there without its home: %v", err)
		}
		w.reach(w.repo.CreateClusterWithHome(ctx, in, home, anyVolume))
		v := w.cache.View().VolumeNamed(home.Name)
		if v == nil || v.UID() != home.UID || w.cache.View().EndedOwner(v) {
			t.Fatalf("the home is %+v", v)
		}
		if users := w.cache.View().ClustersWithVolume(v); len(users) != 1 || users[0].Name() != "h1" {
			t.Errorf("the home is that of %v", users)
		}
		if _, err := w.repo.CreateClusterWithHome(ctx, in, home, anyVolume); !errors.Is(err, state.ErrExists) {
			t.Errorf("a second cluster of the name: %v", err)
		}
		if _, err := w.deletes(home.Name); !errors.Is(err, state.ErrInUse) {
			t.Errorf("a home is deleted below its cluster: %v", err)
		}
		_, err := w.repo.CreateCluster(ctx, attaching("h2", home.Name+"/ro"))
		if !errors.Is(err, state.ErrOwned) || !strings.Contains(err.Error(), "is the home of cluster h1, and no other cluster can have it attached") {
			t.Errorf("another cluster attaches the home: %v", err)
		}
		if _, err := w.changesVolume(home.Name, func(v *api.VolumeIntent) { v.Cluster, v.ClusterUID = "", "" }); err == nil {
			t.Error("a home was taken from its cluster")
		}
		_, revision, err := w.repo.RequestDelete(ctx, "h1", time.Unix(1, 0))
		w.reach(revision, err)
		if !w.cache.View().EndedOwner(w.cache.View().VolumeNamed(home.Name)) {
			t.Error("the home of a cluster that is being deleted is kept")
		}
	})
}

func TestAHomeOfOneClusterIsNotMadeWithAnother(t *testing.T) {
	w := newWorld(t, openMemory(t))
	for what, change := range map[string]func(*api.VolumeIntent){
		"another cluster's UID":  func(v *api.VolumeIntent) { v.ClusterUID = "other" },
		"another cluster's name": func(v *api.VolumeIntent) { v.Cluster = "other" },
		"another name":           func(v *api.VolumeIntent) { v.Name = "data" },
		"another project":        func(v *api.VolumeIntent) { v.Project = "lab" },
	} {
		in, home := withOwnHome("h1")
		change(&home)
		if _, err := w.repo.CreateClusterWithHome(w.Context(), in, home, anyVolume); err == nil {
			t.Errorf("%s: the home was made", what)
		}
	}
}

func TestAHomeEndsWithItsClusterOnly(t *testing.T) {
	at := time.Unix(1, 0)
	home := &state.Volume{Intent: api.VolumeIntent{UID: "v", Cluster: "c1", ClusterUID: "u1"}}
	cluster := func(uid string, deleted *time.Time, record *api.ClusterRecord) *state.View {
		return &state.View{Clusters: []*state.Cluster{{Intent: api.ClusterIntent{Name: "c1", UID: uid, DeleteRequestedAt: deleted}, Record: record}}}
	}
	for what, test := range map[string]struct {
		view *state.View
		want bool
	}{
		"the cluster is pending":              {cluster("u1", nil, nil), false},
		"the cluster is ready":                {cluster("u1", nil, &api.ClusterRecord{Phase: api.ClusterReady}), false},
		"the cluster was refused":             {cluster("u1", nil, &api.ClusterRecord{Phase: api.ClusterRefused}), false},
		"the cluster's deletion is asked for": {cluster("u1", &at, nil), true},
		"the cluster is over after its limit": {cluster("u1", nil, &api.ClusterRecord{Phase: api.ClusterDeleting}), true},
		"another cluster has the name":        {cluster("u2", nil, nil), true},
		"the cluster is gone":                 {(&state.View{}), true},
	} {
		if got := test.view.EndedOwner(home); got != test.want {
			t.Errorf("%s: ended is %t, want %t", what, got, test.want)
		}
	}
	if (&state.View{}).EndedOwner(&state.Volume{Intent: api.VolumeIntent{UID: "v"}}) {
		t.Error("a volume of no cluster has ended with one")
	}
}
