package state_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// netIntent is what a user wants of a project's network.
func netIntent(project, name string) api.NetworkIntent {
	full := state.NetworkIntentName(project, name)
	return api.NetworkIntent{Name: full, UID: "net-" + full, Project: project, CreatedAt: now}
}

// onNetworks is the intent of a cluster that names networks of its project.
func onNetworks(name string, networks ...string) api.ClusterIntent {
	in := intent(name)
	in.Spec.Groups = []api.Group{{Name: "g", Size: 1, Networks: api.OnNetworks(networks...)}}
	return in
}

func TestAClusterNamesNetworksOfItsProjectThatExist(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
		w.reach(w.repo.CreateNetwork(ctx, netIntent("physics", "lab")))
		if _, err := w.repo.CreateNetwork(ctx, netIntent("physics", "lab")); !errors.Is(err, state.ErrExists) {
			t.Errorf("a second network of one name: %v", err)
		}
		if _, err := w.repo.CreateNetwork(ctx, netIntent("nobody", "lab")); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("a network of a project that does not exist: %v", err)
		}
		if _, err := w.repo.CreateCluster(ctx, onNetworks("c2", "project/lab")); !errors.Is(err, state.ErrNoNetwork) {
			t.Errorf("a cluster that names another project's network: %v", err)
		}
		sim := onNetworks("physics.sim", "storage", "project/lab")
		sim.Project = "physics"
		w.reach(w.repo.CreateCluster(ctx, sim))
		if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) {
			t.Errorf("a project with a cluster and a network is deleted: %v", err)
		}
	})
}

func TestANetworkIsNotDeletedWhileAClusterNamesIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateNetwork(ctx, netIntent("default", "lab")))
		w.reach(w.repo.CreateCluster(ctx, onNetworks("c2", "project/lab")))
		_, err := w.repo.RequestNetworkDelete(ctx, "lab", now)
		if !errors.Is(err, state.ErrInUse) || !strings.HasSuffix(err.Error(), "1 cluster (c2); delete it first") {
			t.Errorf("a network that c2 names is to be deleted: %v", err)
		}
		w.reach(w.repo.CreateNetwork(ctx, netIntent("default", "free")))
		w.reach(w.repo.RequestNetworkDelete(ctx, "free", now))
		w.reach(w.repo.RequestNetworkDelete(ctx, "free", now.Add(time.Hour)))
		if at := w.cache.View().NetworkIntent("free").DeleteRequestedAt; at == nil || !at.Equal(now) {
			t.Errorf("deletion was requested at %v, want the first time, %v", at, now)
		}
		if _, err := w.repo.CreateCluster(ctx, onNetworks("c3", "project/free")); !errors.Is(err, state.ErrNoNetwork) {
			t.Errorf("a cluster names a network that is being deleted: %v", err)
		}
		if _, err := w.repo.RequestNetworkDelete(ctx, "none", now); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a network that does not exist is to be deleted: %v", err)
		}
	})
}

func TestADeletionAndANewClusterDoNotPassEachOther(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		for _, name := range []string{"one", "two"} {
			w.reach(w.repo.CreateNetwork(ctx, netIntent("default", name)))
		}
		w.meanwhile(func() error {
			_, err := w.repo.CreateCluster(ctx, onNetworks("c2", "project/one"))
			return err
		})
		if _, err := w.repo.RequestNetworkDelete(ctx, "one", now); !errors.Is(err, state.ErrInUse) {
			t.Errorf("a cluster was created between look and deletion: %v", err)
		}
		w.meanwhile(func() error {
			_, err := w.repo.RequestNetworkDelete(ctx, "two", now)
			return err
		})
		if _, err := w.repo.CreateCluster(ctx, onNetworks("c3", "project/two")); !errors.Is(err, state.ErrNoNetwork) {
			t.Errorf("the network was deleted between look and creation: %v", err)
		}
	})
}

func TestTwoClustersAreNotGivenPortsOnANetworkByOneView(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateNetwork(ctx, netIntent("default", "lab")))
		for _, name := range []string{"c2", "c3", "c4"} {
			w.reach(w.repo.CreateCluster(ctx, onNetworks(name, "project/lab")))
		}
		view := w.cache.View()
		join := func(name string) state.Decided {
			c := view.Cluster(name)
			rec := api.ClusterRecord{
				Name: name, UID: c.UID(), Generation: 1, Phase: api.ClusterStarting,
				Joined: []api.NetworkRef{{UID: "net-lab", Name: "project/lab", Prefix: netip.MustParsePrefix("10.64.48.0/20")}},
			}
			return state.Decided{Base: c, Write: state.Write{Record: rec, Joins: []state.NetworkJoin{view.NetworkJoin("net-lab")}}}
		}
		for _, outcome := range w.leader.CommitAll(ctx, []state.Decided{join("c2"), join("c3")}) { // who decided both knew of both
			w.reach(outcome.Revision, outcome.Err)
		}
		if outcome := w.leader.CommitAll(ctx, []state.Decided{join("c4")})[0]; !errors.Is(outcome.Err, store.ErrConflict) {
			t.Errorf("a third is given ports by a view in which nobody has any: %v", outcome.Err)
		}
		on := w.cache.View().ClustersOnNetwork("net-lab")
		if len(on) != 2 || on[0].Name() != "c2" || on[1].Name() != "c3" {
			t.Errorf("on the network are %v, want c2 and c3", on)
		}
	})
}

func TestANetworkIsNotForgottenWhenSomethingBeganToUseIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		lab := netIntent("default", "lab")
		w.reach(w.repo.CreateNetwork(ctx, lab))
		w.reach(w.leader.PutNetworks(ctx, api.Network{UID: lab.UID, Name: "project/lab", Index: 9}))
		if _, err := w.leader.PutNetworks(ctx, api.Network{UID: lab.UID, Name: "project/lab", Index: 8}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a network gets other numbers: %v", err)
		}
		before := w.cache.View()
		w.reach(w.repo.CreateCluster(ctx, onNetworks("c2", "project/lab")))
		if _, err := w.leader.ForgetNetwork(ctx, before, &lab); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a network is forgotten by a view without its new cluster: %v", err)
		}
		w.reach(w.leader.ForgetNetwork(ctx, w.cache.View(), &lab))
		if v := w.cache.View(); v.NetworkIntent("lab") != nil || v.Network(lab.UID) != nil || v.NetworkJoin(lab.UID) != (state.NetworkJoin{UID: lab.UID}) {
			t.Error("something of a forgotten network is left")
		}
	})
}
