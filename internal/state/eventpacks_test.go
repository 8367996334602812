package state_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// packs has a world's leader pack events until there is nothing to be packed.
func packs(w *world, at time.Time) {
	w.Helper()
	for n := 1; n > 0; {
		var err error
		n, err = w.leader.PackEvents(w.Context(), w.cache, at)
		must(w, err)
		snap, err := w.store.List(w.Context(), "nothing/")
		w.reach(snap.Revision, err) // the cache has what was packed
	}
}

func keysBelow(t testing.TB, st store.Store, prefix string) (n int) {
	t.Helper()
	found, err := st.List(t.Context(), prefix)
	must(t, err)
	return len(found.Entries)
}

func TestPackedEventsReadAsBefore(t *testing.T) {
	onEveryStore(t, func(t *testing.T, st store.Store) {
		w := newWorld(t, st) // it has cluster c1
		random := rand.New(rand.NewPCG(7, 7))
		var want []api.Event
		for range 60 {
			var batch []api.Event
			for range 1 + random.IntN(90) {
				batch = append(batch, api.Event{Cluster: "c1", Time: now, Message: fmt.Sprint(random.Uint64())})
			}
			w.reach(w.repo.AppendEvents(t.Context(), batch...))
			for i := range batch {
				batch[i].Seq = int64(len(want) + 1 + i)
			}
			want = append(want, batch...)
			if random.IntN(3) == 0 {
				packs(w, now.Add(time.Hour))
			}
			all, err := w.cache.Events(t.Context(), "c1", 0, 1<<20)
			must(t, err)
			if len(all) < min(len(want), state.EventsKept) || len(all) > state.EventsKept+600 || !slices.EqualFunc(all, want[len(want)-len(all):], sameEvent) {
				t.Fatalf("%d of %d events, or others than were appended", len(all), len(want))
			}
			after, limit := all[random.IntN(len(all))].Seq, 1+random.IntN(300)
			page, err := w.cache.Events(t.Context(), "c1", after, limit)
			must(t, err)
			if rest := want[after:]; !slices.EqualFunc(page, rest[:min(limit, len(rest))], sameEvent) {
				t.Fatalf("after %d, at most %d: %d events, or others than were appended", after, limit, len(page))
			}
		}
		packs(w, now.Add(time.Hour))
		if n := keysBelow(t, st, "event/c1/") + keysBelow(t, st, "eventpack/c1/"); n > 80 {
			t.Errorf("%d keys for the events of one cluster", n)
		}
	})
}

func sameEvent(a, b api.Event) bool { return a.Seq == b.Seq && a.Message == b.Message }

func TestTheEventsOfAFormerClusterAreOneKey(t *testing.T) {
	onEveryStore(t, func(t *testing.T, st store.Store) {
		w := newWorld(t, st)
		say := func(cluster string, n int) {
			t.Helper()
			w.reach(w.repo.AppendEvents(t.Context(), slices.Repeat([]api.Event{{Cluster: cluster, Time: now, Reason: "Placed"}}, n)...))
		}
		if none, err := w.cache.Events(t.Context(), "lab.old", 0, 10); err != nil || none == nil || len(none) > 0 {
			t.Errorf("events of nobody: %v, %v", none, err)
		}
		say("lab.old", 30)
		say("lab.old-2", 1)
		say("c1", 30) // it goes on
		packs(w, now.Add(30*time.Second))
		if n := keysBelow(t, st, "event/lab.old/"); n != 30 {
			t.Errorf("%d events are left while more may come", n)
		}
		packs(w, now.Add(time.Hour))
		for prefix, want := range map[string]int{"event/lab.old/": 0, "eventpack/lab.old/": 1, "event/lab.old-2/": 1, "eventpack/lab.old-2/": 0, "event/c1/": 30, "eventpack/c1/": 0} {
			if n := keysBelow(t, st, prefix); n != want {
				t.Errorf("%s: %d keys, want %d", prefix, n, want)
			}
		}
		say("lab.old", 2) // another cluster of that name
		events := eventsOf(t, w.cache, "lab.old")
		if len(events) != 32 || events[31].Seq != 32 {
			t.Errorf("%d events, the last is %+v", len(events), events[len(events)-1])
		}
		removed, err := w.leader.PruneEvents(t.Context(), w.cache, now.Add(2*time.Hour))
		must(t, err)
		if left, err := st.List(t.Context(), "event"); err != nil || slices.ContainsFunc(left.Entries, func(e store.Entry) bool { return strings.Contains(e.Key, "lab.old") }) {
			t.Errorf("events are left after %d logs were removed (%v)", removed, err)
		}
	})
}

func TestEventsThatArePackedMeanwhileAreReadOnce(t *testing.T) {
	w := newWorld(t, openMemory(t))
	const n = 900
	for range n / 30 {
		w.reach(w.repo.AppendEvents(t.Context(), slices.Repeat([]api.Event{{Cluster: "c1", Time: now}}, 30)...))
	}
	ctx, cancel := context.WithCancel(t.Context())
	read := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		for once := false; ctx.Err() == nil; once = true {
			events, err := w.repo.Events(t.Context(), "c1", 0, 1000)
			if err == nil && len(events) != n {
				err = fmt.Errorf("%d events", len(events))
			}
			for i := range events {
				if events[i].Seq != int64(i+1) {
					err = fmt.Errorf("event %d is number %d", i+1, events[i].Seq)
				}
			}
			if err != nil {
				read <- err
				break
			}
			if !once {
				close(begun)
			}
		}
		close(read)
	}()
	<-begun
	packs(w, now)
	cancel()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if keysBelow(t, w.store, "eventpack/c1/") == 0 {
		t.Error("nothing was packed")
	}
}
