package state_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestALifeFromIntentToForgotten(t *testing.T) {
	ctx := t.Context()
	repo := state.New(memory.New())
	must(t, repo.CheckVersion(ctx))
	cache, err := repo.OpenCache(ctx)
	must(t, err)
	rev, err := repo.CreateCluster(ctx, intent("c1"))
	must(t, err)
	_, err = cache.WaitRevision(ctx, rev)
	must(t, err)
	if _, err := repo.CreateCluster(ctx, intent("c1")); !errors.Is(err, state.ErrExists) {
		t.Fatalf("second create of a name: %v, want ErrExists", err)
	}
	won, err := repo.Store().Campaign(ctx, "server-1")
	must(t, err)
	leader := repo.AsLeader(won)
	base := cache.Cluster("c1")
	rec := api.ClusterRecord{Name: "c1", UID: base.UID(), Generation: 1, Phase: api.ClusterStarting}
	rev, err = leader.CommitGeneration(ctx, base, rec, state.Batch{Assignments: assignments("c1", 100, 1)})
	must(t, err)
	_, err = cache.WaitRevision(ctx, rev)
	must(t, err)
	base = cache.Cluster("c1")
	n := 0
	for range base.Held() {
		n++
	}
	if n != 100 || len(base.Record.Chunks) != 2 {
		t.Fatalf("%d held in %d chunks, want 100 in 2", n, len(base.Record.Chunks))
	}
}

func intent(name string) api.ClusterIntent {
	return api.ClusterIntent{Name: name, UID: "uid-" + name, CreatedAt: time.Unix(1e9, 0).UTC()}
}

func assignments(cluster string, n int, generation int64) []api.Assignment {
	as := make([]api.Assignment, n)
	for i := range as {
		member := fmt.Sprintf("%s-%d", cluster, i)
		as[i] = api.Assignment{
			ID: fmt.Sprintf("uid-%s.%s.%d", cluster, member, generation), ClusterUID: "uid-" + cluster, Cluster: cluster,
			Generation: generation, Group: cluster, Member: member, Rank: i, Node: fmt.Sprintf("node-%d", i), Slots: []int{0},
			CPUs: []int{0}, NUMANodes: []int{0}, MemoryBytes: 1 << 29, Stack: api.StackContainer, Environment: "local",
		}
	}
	return as
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
