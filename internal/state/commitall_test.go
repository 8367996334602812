package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// crowd makes so many clusters more, and returns a first decision for each of all: assignments for every other one.
func (w *world) crowd(n int) []state.Decided {
	w.Helper()
	names := []string{"c1"}
	for i := range n - 1 {
		name := fmt.Sprintf("d%d", i)
		rev, err := w.repo.CreateCluster(w.Context(), intent(name))
		w.reach(rev, err)
		names = append(names, name)
	}
	var all []state.Decided
	for i, name := range names {
		rec := api.ClusterRecord{Name: name, UID: "uid-" + name, Generation: 1, Phase: api.ClusterStarting, ChangedAt: now}
		write := state.Write{Record: rec}
		if i%2 == 0 {
			write.Add = []state.Batch{{Assignments: assignments(name, 2, 1)}}
		}
		all = append(all, state.Decided{Base: w.cache.Cluster(name), Write: write})
	}
	return all
}

// commits counts those that write a record.
func (w *world) commits() *int {
	n := 0
	w.store.fail = func(ops []store.Op) error {
		if strings.HasPrefix(ops[0].Key, "record/") {
			n++
		}
		return nil
	}
	return &n
}

func TestDecisionsAboutDifferentClustersGoTogether(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		all := w.crowd(60)
		commits := w.commits()
		for i, outcome := range w.leader.CommitAll(t.Context(), all) {
			w.reach(outcome.Revision, outcome.Err)
			c := w.cache.Cluster(all[i].Base.Name())
			if c.Record == nil || len(ids(c.Held())) != 2*((i+1)%2) {
				t.Errorf("%s is %+v", c.Name(), c.Record)
			}
		}
		// Two conditions each, and one for all, of which a commit has 100.
		if *commits != 2 {
			t.Errorf("60 decisions took %d commits, want 2", *commits)
		}
	})
}

func TestADecisionOnAnOldViewHarmsNoOtherOfItsCommit(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		all := w.crowd(4)
		_, rev, err := w.repo.RequestDelete(t.Context(), "d1", now)
		w.reach(rev, err)
		_, rev, err = w.repo.RequestDelete(t.Context(), "c1", now)
		w.reach(rev, err)
		for i, outcome := range w.leader.CommitAll(t.Context(), all) {
			name := all[i].Base.Name()
			if name == "d1" || name == "c1" {
				if !errors.Is(outcome.Err, store.ErrConflict) {
					t.Errorf("%s: %v, want ErrConflict", name, outcome.Err)
				}
				continue
			}
			w.reach(outcome.Revision, outcome.Err)
			if w.cache.Cluster(name).Record == nil {
				t.Errorf("%s has no record", name)
			}
		}
		removed, err := w.leader.CollectGarbage(t.Context())
		must(t, err)
		equal(t, removed, 2) // those of c1 and d1, which will never be true
	})
}

func TestADeposedLeaderCommitsNoneOfMany(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		all := w.crowd(3)
		lead(t, w.repo)
		for i, outcome := range w.leader.CommitAll(t.Context(), all) {
			if !errors.Is(outcome.Err, store.ErrNotLeader) {
				t.Errorf("%s: %v, want ErrNotLeader", all[i].Base.Name(), outcome.Err)
			}
		}
	})
}

func TestWhatIsRefusedOfManyIsRefusedAlone(t *testing.T) {
	w := newWorld(t, openMemory(t))
	all := w.crowd(3)
	all[1].Write.Record.UID = "another"
	outcomes := w.leader.CommitAll(t.Context(), all)
	if outcomes[1].Err == nil {
		t.Error("a record of another UID was committed")
	}
	for _, i := range []int{0, 2} {
		must(t, outcomes[i].Err)
	}
}

func TestChunksOfManyWhoseFateIsUnknownAreKept(t *testing.T) {
	w := newWorld(t, openMemory(t))
	all := w.crowd(3)
	timeout := errors.New("timeout")
	var headers []store.Op
	w.store.fail = func(ops []store.Op) error {
		if strings.HasPrefix(ops[0].Key, "record/") {
			headers = ops
			return timeout
		}
		return nil
	}
	for _, outcome := range w.leader.CommitAll(t.Context(), all) {
		if !errors.Is(outcome.Err, timeout) {
			t.Fatal(outcome.Err)
		}
	}
	w.store.fail = nil
	removed, err := w.leader.CollectGarbage(t.Context())
	must(t, err)
	equal(t, removed, 0)
	w.reach(w.store.Commit(t.Context(), nil, headers)) // it lands after all
	equal(t, len(ids(w.c1().Held())), 2)
}

func TestEventsOfDifferentClustersGoTogether(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		commits := 0
		w.store.fail = func([]store.Op) error { commits++; return nil }
		var events []api.Event
		for i := range 60 {
			events = append(events, api.Event{Cluster: fmt.Sprintf("d%d", i%30), Reason: fmt.Sprint(i)})
		}
		w.reach(w.repo.AppendEvents(t.Context(), events...))
		if commits != 2 {
			t.Errorf("60 events of 30 clusters took %d commits, want 2", commits)
		}
		for i := range 30 {
			log := eventsOf(t, w.cache, fmt.Sprintf("d%d", i))
			if len(log) != 2 || log[0].Seq != 1 || log[0].Reason != fmt.Sprint(i) || log[1].Seq != 2 || log[1].Reason != fmt.Sprint(i+30) {
				t.Errorf("events of d%d: %+v", i, log)
			}
		}
	})
}
