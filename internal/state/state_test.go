package state_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)

// onEveryStore runs a test on each store.
func onEveryStore(t *testing.T, run func(t *testing.T, s store.Store)) {
	t.Run("memory", func(t *testing.T) { t.Parallel(); run(t, openMemory(t)) })
	t.Run("etcd", func(t *testing.T) { t.Parallel(); run(t, openEtcd(t)) })
}

func openMemory(t testing.TB) store.Store {
	s := memory.New()
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// openEtcd opens a store whose leader keeps its lease however busy this machine and its disk are.
func openEtcd(t testing.TB) store.Store {
	s, err := etcd.Open(t.Context(), etcd.Config{Dir: t.TempDir(), LeaderTTL: 2 * time.Minute})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestTheFirstStartWritesTheFormatAndLaterOnesAcceptIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		repo := state.New(s)
		must(t, repo.CheckVersion(t.Context()))
		must(t, repo.CheckVersion(t.Context()))
	})
}

func TestServersThatStartAtOnceAllAcceptWhatOneOfThemWrites(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		const servers = 8
		errs := make(chan error, servers)
		for i := range servers {
			go func() {
				repo := state.New(s)
				err := repo.CheckVersion(t.Context())
				if err == nil {
					_, err = repo.CreateCluster(t.Context(), intent(fmt.Sprint("c", i))) // for those that are slower
				}
				errs <- err
			}()
		}
		for range servers {
			must(t, <-errs)
		}
	})
}

func TestStateOfAnotherVersionIsRefusedAndLeftAlone(t *testing.T) {
	for name, test := range map[string]struct {
		format string // of the stored state; "" for none
		is     error
		says   []string
	}{
		"state of a newer version":   {fmt.Sprintf(`{"format":%d,"more":true}`, state.Format+1), state.ErrNewerFormat, []string{fmt.Sprint("format is ", state.Format+1), fmt.Sprint("up to ", state.Format), "start a newer nearmetal"}},
		"state of an older version":  {`{"format":1}`, state.ErrOlderFormat, []string{"format is 1", fmt.Sprintf("format %d only", state.Format), "empty state directory"}},
		"a store of another program": {"", state.ErrForeignState, []string{"1 keys", `"intent/c1"`, "empty state directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, s store.Store) {
				ctx := t.Context()
				ops := []store.Op{{Key: "intent/c1", Value: []byte(`{"of":"the future"}`)}}
				if test.format != "" {
					ops = append(ops, store.Op{Key: "format", Value: []byte(test.format)})
				}
				rev, err := s.Commit(ctx, nil, ops)
				must(t, err)
				err = state.New(s).CheckVersion(ctx)
				if !errors.Is(err, test.is) {
					t.Fatalf("CheckVersion: %v, want %v", err, test.is)
				}
				for _, want := range append(test.says, "nothing was changed") {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error %q doesn't say %q", err, want)
					}
				}
				snap, err := s.List(ctx, "")
				must(t, err)
				if snap.Revision != rev || len(snap.Entries) != len(ops) {
					t.Errorf("the state was changed: %+v", snap)
				}
			})
		})
	}
}

func TestDamagedStateIsReportedWithItsKey(t *testing.T) {
	s := memory.New()
	_, err := s.Commit(t.Context(), nil, []store.Op{{Key: "node/n1", Value: []byte("{")}})
	must(t, err)
	_, err = state.New(s).OpenCache(t.Context())
	if err == nil || !strings.Contains(err.Error(), `"node/n1"`) {
		t.Errorf("OpenCache: %v, want an error that names the key", err)
	}
}

func TestOfManyCreatesOfOneNameExactlyOneWins(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		const tries = 8
		errs := make(chan error, tries)
		for i := range tries {
			go func() {
				in := intent("c1")
				in.UID = fmt.Sprint("uid-", i)
				_, err := repo.CreateCluster(ctx, in)
				errs <- err
			}()
		}
		won := 0
		for range tries {
			switch err := <-errs; {
			case err == nil:
				won++
			case !errors.Is(err, state.ErrExists):
				t.Errorf("a lost create: %v, want ErrExists", err)
			}
		}
		if won != 1 {
			t.Errorf("%d creates won, want 1", won)
		}
	})
}

func TestADeleteIsRequestedOnce(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		if _, _, err := repo.RequestDelete(ctx, "c1", now); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("delete of what is not there: %v, want ErrNotFound", err)
		}
		in := intent("c1")
		_, err := repo.CreateCluster(ctx, in)
		must(t, err)
		first, rev, err := repo.RequestDelete(ctx, "c1", now)
		must(t, err)
		second, again, err := repo.RequestDelete(ctx, "c1", now.Add(time.Hour))
		must(t, err)
		in.DeleteRequestedAt = &now
		equal(t, first, in)
		equal(t, second, in)
		equal(t, again, rev)
	})
}

func TestAnIntentIsReadAsItWasWritten(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		repo := state.New(s)
		in := api.ClusterIntent{
			Name: "c1", UID: "u1", Labels: map[string]string{"team": "a"}, CreatedAt: now,
			Spec: api.ClusterSpec{Egress: true, Groups: []api.Group{{
				Name: "c1", Size: 2, Shape: api.Shape{Cores: 4, Memory: 3 << 29}, Stack: api.StackContainer, Environment: "local",
				NodeSelector: map[string]string{"rack": "1"},
			}}},
		}
		_, err := repo.CreateCluster(t.Context(), in)
		must(t, err)
		got, err := repo.Intent(t.Context(), "c1")
		must(t, err)
		equal(t, got, in)
		all, err := repo.Intents(t.Context())
		must(t, err)
		equal(t, all, []api.ClusterIntent{in})
	})
}

func TestAJobIsTakenOnlyForACluster(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		job := api.Job{ID: "j1", Cluster: "c1", ClusterUID: "uid-c1", Phase: api.JobPending, CreatedAt: now}
		if _, err := repo.CreateJob(ctx, job); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("job of no cluster: %v, want ErrNotFound", err)
		}
		_, err := repo.CreateCluster(ctx, intent("c1"))
		must(t, err)
		_, err = repo.CreateJob(ctx, job)
		must(t, err)
		if _, err := repo.CreateJob(ctx, job); !errors.Is(err, state.ErrExists) {
			t.Errorf("job of a taken ID: %v, want ErrExists", err)
		}
		stranger := api.Job{ID: "j2", Cluster: "c1", ClusterUID: "an earlier c1"}
		if _, err := repo.CreateJob(ctx, stranger); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("job of an earlier cluster of that name: %v, want ErrNotFound", err)
		}
		_, _, err = repo.RequestDelete(ctx, "c1", now)
		must(t, err)
		late := api.Job{ID: "j3", Cluster: "c1", ClusterUID: "uid-c1"}
		if _, err := repo.CreateJob(ctx, late); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("job of a cluster being deleted: %v, want ErrNotFound", err)
		}
		for _, filter := range []string{"", "c1", "uid-c1"} {
			got, err := repo.Jobs(ctx, filter)
			must(t, err)
			equal(t, got, []api.Job{job})
		}
		none, err := repo.Jobs(ctx, "c2")
		must(t, err)
		equal(t, none, nil)
	})
}

func TestAJobIsNotTakenForAClusterThatGoesMeanwhile(t *testing.T) {
	w := newWorld(t, openMemory(t))
	w.store.fail = func([]store.Op) error {
		w.store.fail = nil
		_, _, err := state.New(w.store.Store).RequestDelete(t.Context(), "c1", now) // between the look and the write
		return err
	}
	job := api.Job{ID: "j1", Cluster: "c1", ClusterUID: "uid-c1", Phase: api.JobPending, CreatedAt: now}
	if _, err := w.repo.CreateJob(t.Context(), job); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestConcurrentUpdatesOfAJobAllCount(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		_, err := repo.CreateCluster(ctx, intent("c1"))
		must(t, err)
		_, err = repo.CreateJob(ctx, api.Job{ID: "j1", Cluster: "c1", ClusterUID: "uid-c1"})
		must(t, err)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, _, err := repo.UpdateJob(ctx, "j1", func(j *api.Job) error { j.LogBytes++; return nil })
				if err != nil {
					t.Errorf("update: %v", err)
				}
			})
		}
		wg.Wait()
		job, err := repo.Job(ctx, "j1")
		must(t, err)
		equal(t, job.LogBytes, 10)
		refused := errors.New("ended already")
		if _, _, err := repo.UpdateJob(ctx, "j1", func(*api.Job) error { return refused }); !errors.Is(err, refused) {
			t.Errorf("update that refuses: %v, want its own error", err)
		}
		before, _, err := s.Get(ctx, "job/j1")
		must(t, err)
		_, rev, err := repo.UpdateJob(ctx, "j1", func(*api.Job) error { return nil })
		must(t, err)
		equal(t, rev, before.Revision) // nothing changed, nothing written
		leader, _ := lead(t, repo)
		must(t, leader.DeleteJobs(ctx, []string{"j1", "gone"}))
		if _, err := repo.Job(ctx, "j1"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("deleted job: %v, want ErrNotFound", err)
		}
	})
}

func TestANodeKeepsWhenItWasFirstSeenAndIsWrittenOnlyWhenItChanged(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		node := api.NodeRecord{Name: "n1", FirstSeenAt: now, Labels: map[string]string{"a": "1", "b": "2"}}
		first, err := repo.PutNode(ctx, node)
		must(t, err)
		node.FirstSeenAt = now.Add(time.Hour)
		same, err := repo.PutNode(ctx, node)
		must(t, err)
		equal(t, same, first)
		node.AgentVersion = "2"
		changed, err := repo.PutNode(ctx, node)
		must(t, err)
		if changed <= first {
			t.Errorf("a changed node is at revision %d, want more than %d", changed, first)
		}
		node.FirstSeenAt = now
		nodes, err := repo.Nodes(ctx)
		must(t, err)
		equal(t, nodes, []api.NodeRecord{node})
	})
}

func TestEventsAreNumberedPerClusterAndTheNewestAreKept(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		cache, err := repo.OpenCache(ctx)
		must(t, err)
		const n = state.EventsKept + 100
		var batch []api.Event
		for i := range n {
			batch = append(batch, api.Event{Cluster: "c1", Reason: fmt.Sprint(i + 1)})
		}
		batch = slices.Insert(batch, 50, api.Event{Cluster: "c2", Reason: "other"})
		_, err = repo.AppendEvents(ctx, batch...)
		must(t, err)
		rev, err := repo.AppendEvents(ctx, api.Event{Cluster: "c1", Reason: fmt.Sprint(n + 1)})
		must(t, err)
		_, err = cache.WaitRevision(ctx, rev)
		must(t, err)
		stored := eventsOf(t, cache, "c1")
		equal(t, len(stored), state.EventsKept)
		for i, e := range stored {
			if want := int64(n + 1 - state.EventsKept + 1 + i); e.Seq != want || e.Reason != fmt.Sprint(want) {
				t.Fatalf("event %d is %+v, want number %d", i, e, want)
			}
		}
		for _, tt := range []struct{ after, limit, first, last int }{{n, 5, n + 1, n + 1}, {n - 5, 3, n - 4, n - 2}, {0, 1, 102, 102}} {
			page, err := repo.Events(ctx, "c1", int64(tt.after), tt.limit)
			must(t, err)
			equal(t, page, stored[tt.first-102:tt.last-101])
		}
		none, err := repo.Events(ctx, "c1", n+1, 5)
		must(t, err)
		equal(t, len(none), 0)
		equal(t, eventsOf(t, cache, "c2"), []api.Event{{Seq: 1, Cluster: "c2", Reason: "other"}})
		equal(t, len(eventsOf(t, cache, "c")), 0)
		opened, err := repo.OpenCache(ctx)
		must(t, err)
		equal(t, eventsOf(t, opened, "c1"), stored)
	})
}

// eventsOf are the stored events of a log, of which a current cache knows where they begin and end.
func eventsOf(t testing.TB, c *state.Cache, log string) []api.Event {
	t.Helper()
	events, err := c.Events(t.Context(), log, 0, 2*state.EventsKept)
	must(t, err)
	first, last := c.EventLog(log)
	var ends [2]int64
	if len(events) > 0 {
		ends = [2]int64{events[0].Seq, events[len(events)-1].Seq}
	}
	equal(t, [2]int64{first, last}, ends)
	return events
}

func TestConcurrentAppendsLeaveNoGapInTheNumbers(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		repo := state.New(s)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := repo.AppendEvents(ctx, api.Event{Cluster: "c"}, api.Event{Cluster: "c"}); err != nil {
					t.Errorf("append: %v", err)
				}
			})
		}
		wg.Wait()
		events, err := repo.Events(ctx, "c", 0, 99)
		must(t, err)
		equal(t, len(events), 16)
		for i, e := range events {
			equal(t, e.Seq, int64(i+1))
		}
	})
}

func intent(name string) api.ClusterIntent {
	return api.ClusterIntent{Name: name, UID: "uid-" + name, CreatedAt: now}
}

// assignments of the cluster, realistic in size.
func assignments(cluster string, n int, generation int64) []api.Assignment {
	as := make([]api.Assignment, n)
	for i := range as {
		member := fmt.Sprintf("%s-%d", cluster, i)
		as[i] = api.Assignment{
			ID: fmt.Sprintf("uid-%s.%s.%d", cluster, member, generation), ClusterUID: "uid-" + cluster, Cluster: cluster,
			Generation: generation, Group: cluster, Member: member, Rank: i, Node: fmt.Sprintf("node-%d", i),
			Slots: []int{0, 1, 2, 3}, CPUs: []int{0, 1, 2, 3}, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 1 << 29}},
			Ports: []api.PortClaim{{Address: netip.AddrFrom4([4]byte{10, 64, byte(i >> 8), byte(i)}), MAC: fmt.Sprintf("02:00:00:00:%02x:%02x", i>>8, i&255)}},
			Stack: api.StackContainer, Environment: "local",
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

func equal[T any](t testing.TB, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// lead wins the election for the repo.
func lead(t testing.TB, repo *state.Repo) (*state.Leader, store.Leadership) {
	t.Helper()
	won, err := repo.Store().Campaign(context.WithoutCancel(t.Context()), "server-1")
	must(t, err)
	return repo.AsLeader(won), won
}
