package state_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// world is a leader with its view, and a cluster c1 that is only intended yet.
type world struct {
	*testing.T
	store  *faulty
	repo   *state.Repo
	leader *state.Leader
	won    store.Leadership
	cache  *state.Cache
}

func newWorld(t *testing.T, s store.Store) *world {
	w := &world{T: t, store: &faulty{Store: s}}
	w.repo = state.New(w.store)
	must(t, w.repo.CheckVersion(t.Context()))
	w.leader, w.won = lead(t, w.repo)
	var err error
	w.cache, err = w.repo.OpenCache(t.Context())
	must(t, err)
	rev, err := w.repo.CreateCluster(t.Context(), intent("c1"))
	w.reach(rev, err)
	return w
}

// reach waits until the view holds a commit that must have succeeded.
func (w *world) reach(revision int64, err error) {
	w.Helper()
	must(w, err)
	_, err = w.cache.WaitRevision(w.Context(), revision)
	must(w, err)
}

func (w *world) c1() *state.Cluster { return w.cache.Cluster("c1") }

// chunks are the keys of the chunks in the store.
func (w *world) chunks() int {
	snap, err := w.store.List(w.Context(), "chunk/")
	must(w, err)
	return len(snap.Entries)
}

func (w *world) generation(n int64, phase api.ClusterPhase) api.ClusterRecord {
	return api.ClusterRecord{Name: "c1", UID: "uid-c1", Generation: n, Phase: phase, ChangedAt: now}
}

// ids lists assignments.
func ids(seq func(func(*api.Assignment) bool)) []string {
	all := []string{}
	for a := range seq {
		all = append(all, a.ID)
	}
	return all
}

func idsOf(as []api.Assignment) []string {
	all := []string{}
	for _, a := range as {
		all = append(all, a.ID)
	}
	return all
}

func TestAGenerationIsSeenAsItWasCommitted(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := assignments("c1", 150, 1)
		rec := w.generation(1, api.ClusterStarting)
		rec.Networks, rec.UserIDs = []api.NetworkRef{{UID: "u1", Prefix: netip.MustParsePrefix("10.64.48.0/20")}}, api.IDRange{First: 1 << 20, Count: 1 << 16}
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{Record: rec, Add: []state.Batch{{Assignments: as}}}))

		c := w.c1()
		if got := len(c.Record.Chunks); got != 3 || w.chunks() != 3 {
			t.Errorf("%d chunks named, %d stored, want 3 of at most 64 assignments each", got, w.chunks())
		}
		rec.Chunks = c.Record.Chunks
		equal(t, *c.Record, rec)
		var held []api.Assignment
		for a := range c.Held() {
			held = append(held, *a)
		}
		equal(t, held, as)

		// A cache that starts later sees the same.
		later, err := w.repo.OpenCache(t.Context())
		must(t, err)
		equal(t, ids(later.Cluster("c1").Held()), idsOf(as))
		equal(t, later.View().Leader, "server-1")
	})
}

func TestALifeEndsWithNothingStored(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		as := assignments("c1", 70, 1)
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}}))
		_, rev, err := w.repo.RequestDelete(ctx, "c1", now)
		w.reach(rev, err)

		rec := *w.c1().Record
		rec.Generation, rec.Phase = 2, api.ClusterDeleting
		rec.Chunks = append([]api.ChunkRef(nil), rec.Chunks...)
		for i := range rec.Chunks {
			rec.Chunks[i].Releasing = true
		}
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec}))
		equal(t, ids(w.c1().Held()), []string{})
		equal(t, ids(w.c1().Releasing()), idsOf(as))
		if _, err := w.leader.Commit(ctx, w.c1(), state.Write{Forget: true}); err == nil || !strings.Contains(err.Error(), "not confirmed clean") {
			t.Errorf("Forget of a cluster that holds assignments: %v, want a refusal", err)
		}

		rec.Clean = idsOf(as[:69])
		quarantined := api.Quarantine{Assignment: as[69], Reason: "would not unmount", Since: now}
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec, Quarantines: []api.Quarantine{quarantined}}))
		equal(t, ids(w.c1().All()), idsOf(as[69:]))
		equal(t, w.c1().Confirmed(as[0].ID), true)
		rec.Clean = idsOf(as)
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec}))
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Forget: true}))

		if w.c1() != nil || len(w.cache.View().Clusters) != 0 {
			t.Errorf("the view still has the cluster: %+v", w.c1())
		}
		equal(t, *w.cache.View().Quarantines[0], quarantined)
		w.reach(w.leader.Unquarantine(ctx, as[69].ID))
		equal(t, len(w.cache.View().Quarantines), 0)
		snap, err := w.store.List(ctx, "")
		must(t, err)
		for _, e := range snap.Entries {
			if e.Key != "format" && e.Key != store.ElectionKey {
				t.Errorf("left behind: %s", e.Key)
			}
		}
		rev, err = w.repo.CreateCluster(ctx, intent("c1")) // the name is free again
		w.reach(rev, err)
	})
}

func TestACrashBeforeTheHeaderLeavesThePreviousGenerationTrue(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		first := assignments("c1", 3, 1)
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: first}}}))

		crash := errors.New("crash")
		w.store.fail = func(ops []store.Op) error {
			if strings.HasPrefix(ops[0].Key, "record/") {
				return crash
			}
			return nil
		}
		_, err := w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(2, api.ClusterStarting), Add: []state.Batch{{Assignments: assignments("c1", 130, 2)}}})
		if !errors.Is(err, crash) {
			t.Fatalf("CommitGeneration: %v, want the crash", err)
		}
		w.store.fail = nil
		equal(t, w.chunks(), 4)

		// The server that crashed is started again: same name, new term, new view.
		leader, _ := lead(t, w.repo)
		cache, err := w.repo.OpenCache(ctx)
		must(t, err)
		equal(t, cache.Cluster("c1").Record.Generation, 1)
		equal(t, ids(cache.Cluster("c1").Held()), idsOf(first))
		removed, err := leader.CollectGarbage(ctx)
		must(t, err)
		equal(t, removed, 3)
		equal(t, w.chunks(), 1)
		again, err := w.repo.OpenCache(ctx)
		must(t, err)
		equal(t, ids(again.Cluster("c1").Held()), idsOf(first))
	})
}

func TestACrashAfterTheHeaderLeavesTheNewGenerationTrue(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		crash := errors.New("crash")
		w.store.failAfter = func(ops []store.Op) error {
			if strings.HasPrefix(ops[0].Key, "record/") {
				return crash
			}
			return nil
		}
		as := assignments("c1", 5, 1)
		_, err := w.leader.Commit(t.Context(), w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}})
		if !errors.Is(err, crash) {
			t.Fatalf("CommitGeneration: %v, want the crash", err)
		}
		leader, _ := lead(t, w.repo)
		cache, err := w.repo.OpenCache(t.Context())
		must(t, err)
		equal(t, ids(cache.Cluster("c1").Held()), idsOf(as))
		removed, err := leader.CollectGarbage(t.Context())
		must(t, err)
		equal(t, removed, 0)
	})
}

func TestADeposedLeaderWritesNothing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		as := assignments("c1", 3, 1)
		base := w.c1()
		_, err := w.repo.CreateJob(ctx, api.Job{ID: "j1", Cluster: "c1", ClusterUID: base.UID(), Phase: api.JobPending})
		must(t, err)
		_, err = w.repo.CreateBuild(ctx, api.Build{ID: "b1", Phase: api.BuildPending})
		must(t, err)
		must(t, w.won.Resign(ctx))
		_, err = s.Campaign(ctx, "server-2")
		must(t, err)
		_, err = s.Commit(ctx, nil, []store.Op{{Key: "usage/u/000000000001", Value: []byte(`{"seq":1,"uid":"u"}`)}})
		must(t, err)
		before, err := s.List(ctx, "")
		must(t, err)
		rec := w.generation(1, api.ClusterStarting)
		attempts := map[string]func() error{
			"CommitGeneration": func() error {
				_, err := w.leader.Commit(ctx, base, state.Write{Record: rec, Add: []state.Batch{{Assignments: as}}})
				return err
			},
			"CommitRecord": func() error { _, err := w.leader.Commit(ctx, base, state.Write{Record: rec}); return err },
			"Forget":       func() error { _, err := w.leader.Commit(ctx, base, state.Write{Forget: true}); return err },
			"Quarantine": func() error {
				_, err := w.leader.Quarantine(ctx, api.Quarantine{Assignment: as[0]})
				return err
			},
			"Unquarantine": func() error { _, err := w.leader.Unquarantine(ctx, as[0].ID); return err },
			"CommitNodeSpan": func() error {
				_, err := w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "n1"}, now)
				return err
			},
			"UpdateJob": func() error {
				_, _, err := w.leader.UpdateJob(ctx, "j1", func(j *api.Job) error { j.Phase = api.JobRunning; return nil })
				return err
			},
			"UpdateJobs": func() error {
				return w.leader.UpdateJobs(ctx, []state.JobUpdate{{ID: "j1", Change: func(j *api.Job) error { j.Phase = api.JobRunning; return nil }}})[0].Err
			},
			"DeleteJobs": func() error { return w.leader.DeleteJobs(ctx, []string{"j1"}) },
			"UpdateBuild": func() error {
				_, _, err := w.leader.UpdateBuild(ctx, "b1", func(b *api.Build) error { b.Phase = api.BuildRunning; return nil })
				return err
			},
			"PruneUsage": func() error { _, _, err := w.leader.PruneUsage(ctx, "", now); return err },
		}
		for name, attempt := range attempts {
			if err := attempt(); !errors.Is(err, store.ErrNotLeader) {
				t.Errorf("%s: %v, want ErrNotLeader", name, err)
			}
		}
		after, err := s.List(ctx, "")
		must(t, err)
		equal(t, after, before)
	})
}

func TestALeaderDeposedBetweenChunksAndHeaderMakesNothingTrue(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.store.fail = func(ops []store.Op) error {
			if strings.HasPrefix(ops[0].Key, "record/") { // the header is about to be committed
				w.store.fail = nil
				return w.won.Resign(context.WithoutCancel(t.Context()))
			}
			return nil
		}
		_, err := w.leader.Commit(t.Context(), w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: assignments("c1", 3, 1)}}})
		if !errors.Is(err, store.ErrNotLeader) {
			t.Fatalf("CommitGeneration: %v, want ErrNotLeader", err)
		}
		leader, _ := lead(t, w.repo)
		removed, err := leader.CollectGarbage(t.Context())
		must(t, err)
		equal(t, removed, 1)
	})
}

func TestADecisionOnAnOldViewIsAConflict(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		rec := w.generation(1, api.ClusterStarting)
		beforeDecision := w.c1()
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec}))
		beforeDelete := w.c1()
		// The intent is still the same here: only the record tells that the decision is old.
		if _, err := w.leader.Commit(ctx, beforeDecision, state.Write{Record: rec}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("the record changed, the intent did not: %v, want ErrConflict", err)
		}
		_, rev, err := w.repo.RequestDelete(ctx, "c1", now)
		w.reach(rev, err)
		for name, base := range map[string]*state.Cluster{"the record changed": beforeDecision, "a delete was requested": beforeDelete} {
			_, err := w.leader.Commit(ctx, base, state.Write{Record: rec, Add: []state.Batch{{Assignments: assignments("c1", 2, 1)}}})
			if !errors.Is(err, store.ErrConflict) {
				t.Errorf("%s: %v, want ErrConflict", name, err)
			}
			if _, err := w.leader.Commit(ctx, base, state.Write{Forget: true}); !errors.Is(err, store.ErrConflict) {
				t.Errorf("Forget, %s: %v, want ErrConflict", name, err)
			}
		}
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Forget: true}))
		forgotten := beforeDelete
		rev, err = w.repo.CreateCluster(ctx, intent("c1"))
		w.reach(rev, err)
		if _, err := w.leader.Commit(ctx, forgotten, state.Write{Record: rec}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("decision on a cluster that was made anew: %v, want ErrConflict", err)
		}
		stranger := rec
		stranger.UID = "another"
		if _, err := w.leader.Commit(ctx, w.c1(), state.Write{Record: stranger}); err == nil {
			t.Error("a record of another UID was committed")
		}
	})
}

func TestAReplacedChunkGoesInTheCommitThatReplacesIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		as := assignments("c1", 70, 1)
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}}))
		// Heal: member 1 is lost. The first chunk is rewritten, the second stays.
		fresh := assignments("c1", 2, 2)[1]
		rec := *w.c1().Record
		rec.Generation, rec.Chunks = 2, rec.Chunks[1:]
		healed := append([]api.Assignment{as[0], fresh}, as[2:64]...)
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec, Add: []state.Batch{{Assignments: healed}, {Assignments: as[1:2], Releasing: true}}}))
		equal(t, ids(w.c1().Held()), append(idsOf(as[64:]), idsOf(healed)...))
		equal(t, ids(w.c1().Releasing()), idsOf(as[1:2]))
		equal(t, w.chunks(), 3)
	})
}

func TestGarbageIsCollectedBesideCommitsOfTheSameLeader(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		// At every step of every commit, garbage is collected: it must never take what is about to become true.
		w.store.fail = func(ops []store.Op) error {
			if ops[0].Delete { // the collection's own commits
				return nil
			}
			_, err := w.leader.CollectGarbage(ctx)
			return err
		}
		for g := int64(1); g <= 5; g++ {
			as := assignments("c1", 65, g)
			w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(g, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}}))
			equal(t, ids(w.c1().Held()), idsOf(as))
			equal(t, w.chunks(), 2)
		}
	})
}

func TestChunksOfACommitWhoseFateIsUnknownAreKept(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	timeout := errors.New("timeout")
	var header []store.Op
	w.store.fail = func(ops []store.Op) error {
		if strings.HasPrefix(ops[0].Key, "record/") {
			header = ops
			return timeout
		}
		return nil
	}
	as := assignments("c1", 3, 1)
	_, err := w.leader.Commit(ctx, w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}})
	if !errors.Is(err, timeout) {
		t.Fatal(err)
	}
	w.store.fail = nil
	removed, err := w.leader.CollectGarbage(ctx)
	must(t, err)
	equal(t, removed, 0)
	// The commit lands after all.
	w.reach(w.store.Commit(ctx, nil, header))
	equal(t, ids(w.c1().Held()), idsOf(as))
}

// faulty is a store whose commits can be made to fail.
type faulty struct {
	store.Store
	mu sync.Mutex
	// fail tells, before a commit, whether it fails without being written; failAfter, after it was written.
	fail, failAfter func([]store.Op) error
}

func (f *faulty) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	f.mu.Lock()
	fail, failAfter := f.fail, f.failAfter
	f.mu.Unlock()
	if fail != nil {
		if err := fail(ops); err != nil {
			return 0, err
		}
	}
	rev, err := f.Store.Commit(ctx, conds, ops)
	if err == nil && failAfter != nil {
		err = failAfter(ops)
	}
	return rev, err
}
