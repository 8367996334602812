package state_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/storetest"
)

func TestAViewNeverChangesAndADiffTellsWhatDid(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		for _, name := range []string{"c3", "c2"} {
			rev, err := w.repo.CreateCluster(ctx, intent(name))
			w.reach(rev, err)
		}
		before := w.cache.View()
		if w.cache.View() != before {
			t.Error("a second View without a change in between is another")
		}
		names := func(cs []*state.Cluster) (all []string) {
			for _, c := range cs {
				all = append(all, c.Name())
			}
			return all
		}
		equal(t, names(before.Clusters), []string{"c1", "c2", "c3"})

		rev, err := w.repo.CreateCluster(ctx, intent("c0"))
		w.reach(rev, err)
		w.reach(w.leader.Commit(ctx, w.cache.Cluster("c2"), state.Write{Forget: true}))
		rec := api.ClusterRecord{Name: "c3", UID: "uid-c3", Phase: api.ClusterRefused}
		w.reach(w.leader.Commit(ctx, w.cache.Cluster("c3"), state.Write{Record: rec}))

		after := w.cache.View()
		equal(t, names(before.Clusters), []string{"c1", "c2", "c3"})
		equal(t, names(after.Clusters), []string{"c0", "c1", "c3"})
		if before.Cluster("c3").Record != nil || after.Cluster("c3").Record == nil {
			t.Error("the record of c3 is not only in the later view")
		}
		changed, gone := state.Diff(before.Clusters, after.Clusters, (*state.Cluster).Name)
		equal(t, names(changed), []string{"c0", "c3"})
		equal(t, names(gone), []string{"c2"})
	})
}

func TestWaitReturnsWhenSomethingChanged(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		at := w.cache.Revision()
		type result struct {
			revision int64
			err      error
		}
		woken := make(chan result, 1)
		go func() {
			rev, err := w.cache.Wait(t.Context(), at)
			woken <- result{rev, err}
		}()
		rev, err := w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"})
		must(t, err)
		got := <-woken
		if got.err != nil || got.revision < rev {
			t.Errorf("Wait: %+v, want revision %d", got, rev)
		}
		if w.cache.View().Agent("n1") == nil {
			t.Error("the change that woke the waiter is not in the view")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.cache.Wait(ctx, w.cache.Revision()); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with an ended context: %v", err)
		}
	})
}

func TestACacheWhoseHistoryIsGoneReadsEverythingAgain(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		// The watch starts only when the test says so, after the history it asks for was compacted away.
		slow := &slowWatch{Store: s, start: make(chan struct{})}
		cache, err := state.New(slow).OpenCache(ctx)
		must(t, err)
		repo := state.New(s)
		var rev int64
		for i := range 5 {
			_, err = repo.CreateCluster(ctx, intent(fmt.Sprint("c", i)))
			must(t, err)
			rev, err = repo.PutNode(ctx, api.NodeRecord{Name: fmt.Sprint("n", i)})
			must(t, err)
		}
		must(t, s.(storetest.Compactor).Compact(ctx, rev))
		equal(t, len(cache.View().Clusters), 0)
		close(slow.start)
		_, err = cache.WaitRevision(ctx, rev)
		must(t, err)
		equal(t, len(cache.View().Clusters), 5)
		rev, err = repo.PutNode(ctx, api.NodeRecord{Name: "n9"})
		must(t, err)
		_, err = cache.WaitRevision(ctx, rev)
		must(t, err)
		equal(t, len(cache.View().Nodes), 6)
	})
}

func TestACacheThatEndedTellsWhoWaits(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		cache, err := state.New(s).OpenCache(ctx)
		must(t, err)
		cancel()
		if _, err := cache.WaitRevision(t.Context(), 1<<40); !errors.Is(err, context.Canceled) {
			t.Errorf("WaitRevision: %v, want why the cache ended", err)
		}
	})
}

type slowWatch struct {
	store.Store
	start chan struct{}
}

func (s *slowWatch) Watch(ctx context.Context, prefix string, after int64) store.Watch {
	<-s.start
	return s.Store.Watch(ctx, prefix, after)
}

func BenchmarkListAThousandClusters(b *testing.B) {
	s := openMemory(b)
	repo := state.New(s)
	var rev int64
	for i := range 1000 {
		var err error
		rev, err = repo.CreateCluster(b.Context(), intent(fmt.Sprintf("c%d", i)))
		must(b, err)
	}
	cache, err := repo.OpenCache(b.Context())
	must(b, err)
	_, err = cache.WaitRevision(b.Context(), rev)
	must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if len(cache.View().Clusters) != 1000 {
			b.Fatal("not all")
		}
	}
}

// BenchmarkCommitGeneration commits generations of 1,000 members durably, until they are visible in the cache: what agents wait
// for.
func BenchmarkCommitGeneration(b *testing.B) {
	for _, clusters := range []int{1, 8} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) { benchmarkCommit(b, clusters, 1000) })
	}
}

func benchmarkCommit(b *testing.B, clusters, members int) {
	ctx := b.Context()
	repo := state.New(openEtcd(b))
	leader, _ := lead(b, repo)
	cache, err := repo.OpenCache(ctx)
	must(b, err)
	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprint("c", i)
		rev, err := repo.CreateCluster(ctx, intent(names[i]))
		must(b, err)
		_, err = cache.WaitRevision(ctx, rev)
		must(b, err)
	}
	commits := 0
	for b.Loop() {
		errs := make(chan error, clusters)
		for _, name := range names {
			go func() {
				base := cache.Cluster(name)
				rec := api.ClusterRecord{Name: name, UID: base.UID(), Generation: int64(commits + 1), Phase: api.ClusterStarting}
				rev, err := leader.Commit(ctx, base, state.Write{Record: rec, Add: []state.Batch{{Assignments: assignments(name, members, rec.Generation)}}})
				if err == nil {
					_, err = cache.WaitRevision(ctx, rev)
				}
				errs <- err
			}()
		}
		for range names {
			must(b, <-errs)
		}
		commits++
	}
	b.ReportMetric(float64(commits*clusters*members)/b.Elapsed().Seconds(), "members/s")
}

// BenchmarkLeases stores leases of strangers durably, as many at once as the DHCP server does.
func BenchmarkLeases(b *testing.B) {
	repo := state.New(openEtcd(b))
	cache, err := repo.OpenCache(b.Context())
	must(b, err)
	leases := repo.LeaseStore(cache)
	const atOnce = 256
	stored := 0
	for b.Loop() {
		errs := make(chan error, atOnce)
		for range atOnce {
			stored++
			mac := fmt.Sprintf("52:54:00:%02x:%02x:%02x", stored>>16&0xff, stored>>8&0xff, stored&0xff)
			go func() { errs <- leases.Keep(b.Context(), api.Lease{MAC: mac}) }()
		}
		for range atOnce {
			must(b, <-errs)
		}
	}
	b.ReportMetric(float64(stored)/b.Elapsed().Seconds(), "leases/s")
}

// manyClusters is a cache of so many placed clusters, each with its usage of the past.
func manyClusters(b *testing.B, clusters, records int) (*state.Repo, *state.Cache) {
	s := openMemory(b)
	for i := range clusters {
		name := fmt.Sprintf("c%05d", i)
		var ops []store.Op
		for kind, v := range map[string]any{
			"intent/": intent(name), "record/": api.ClusterRecord{Name: name, UID: "uid-" + name, Generation: 1, Phase: api.ClusterReady},
		} {
			data, err := json.Marshal(v)
			must(b, err)
			ops = append(ops, store.Op{Key: kind + name, Value: data})
		}
		_, err := s.Commit(b.Context(), nil, ops)
		must(b, err)
	}
	for i := range records {
		data, err := json.Marshal(api.UsageRecord{Seq: 1, UID: fmt.Sprintf("u%06d", i)})
		must(b, err)
		_, err = s.Commit(b.Context(), nil, []store.Op{{Key: fmt.Sprintf("usage/u%06d/000000000001", i), Value: data}})
		must(b, err)
	}
	repo := state.New(s)
	cache, err := repo.OpenCache(b.Context())
	must(b, err)
	return repo, cache
}

// BenchmarkOneChangeAmongMany changes one cluster, or writes one usage record, with a new view and the difference to the last after each.
func BenchmarkOneChangeAmongMany(b *testing.B) {
	b.Run("clusters=10000", func(b *testing.B) {
		repo, cache := manyClusters(b, 10_000, 0)
		before := cache.View()
		n := 0
		for b.Loop() {
			n++
			_, rev, err := repo.UpdateIntent(b.Context(), "c05000", "", func(in *api.ClusterIntent) error { in.Spec.Priority = n; return nil })
			must(b, err)
			_, err = cache.WaitRevision(b.Context(), rev)
			must(b, err)
			after := cache.View()
			if changed, _ := state.Diff(before.Clusters, after.Clusters, (*state.Cluster).Name); len(changed) != 1 {
				b.Fatalf("%d changed", len(changed))
			}
			before = after
		}
	})
	for _, records := range []int{10_000, 100_000} {
		b.Run(fmt.Sprintf("usage=%d", records), func(b *testing.B) {
			repo, cache := manyClusters(b, 0, records)
			n := 0
			for b.Loop() {
				n++
				rev, err := repo.Store().Commit(b.Context(), nil, []store.Op{{Key: fmt.Sprintf("usage/u%d/000000000001", n%records), Value: []byte("{}")}})
				must(b, err)
				_, err = cache.WaitRevision(b.Context(), rev)
				must(b, err)
				cache.View()
			}
		})
	}
}
