package state_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func span(kind api.SpanKind, from, to time.Time) api.UsageSpan {
	return api.UsageSpan{Kind: kind, Node: "node-0", From: from, To: to, Members: 1, Cores: 4, MemoryBytes: 1 << 29}
}

func usageRecord(seq int64, spans ...api.UsageSpan) *api.UsageRecord {
	return &api.UsageRecord{Seq: seq, UID: "uid-c1", Cluster: "c1", Project: "default", User: "eve", Spans: spans}
}

// recorded are the usage records of the store as of the view.
func recorded(t testing.TB, cache *state.Cache) []api.UsageRecord {
	t.Helper()
	var all []api.UsageRecord
	for r, err := range cache.UsageInput(t.Context(), now).Records {
		must(t, err)
		all = append(all, *r)
	}
	return all
}

// first commits the first generation of c1 with so many members, all held.
func (w *world) first(members int) []api.Assignment {
	as := assignments("c1", members, 1)
	for i := range as {
		as[i].TakenAt = now
	}
	w.reach(w.leader.Commit(w.Context(), w.c1(), state.Write{Record: w.generation(1, api.ClusterStarting), Add: []state.Batch{{Assignments: as}}}))
	return as
}

func TestADecisionBecomesTrueInOneCommit(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := w.first(3)
		later := now.Add(time.Minute)
		rec := w.generation(2, api.ClusterDegraded)
		rec.UsageSeq = 1
		quarantine := api.Quarantine{Assignment: as[2], Reason: "stuck", Since: later}
		ended := usageRecord(1, span(api.SpanAllocated, now, later))
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{
			Record:      rec,
			Add:         []state.Batch{{Assignments: as[:1]}, {Assignments: as[1:2], Releasing: true, ReleasedAt: &later}},
			Quarantines: []api.Quarantine{quarantine},
			Usage:       ended,
		}))
		v := w.cache.View()
		equal(t, ids(w.c1().Held()), idsOf(as[:1]))
		equal(t, *v.Quarantines[0], quarantine)
		equal(t, recorded(t, w.cache), []api.UsageRecord{*ended})
		for a, ref := range w.c1().AllWithRef() {
			if releasing := a.ID == as[1].ID; ref.Releasing != releasing || (ref.ReleasedAt != nil) != releasing {
				t.Errorf("%s: %+v", a.ID, *ref)
			} else if releasing && !ref.ReleasedAt.Equal(later) {
				t.Errorf("released at %s, want %s", ref.ReleasedAt, later)
			}
		}
		decided := w.c1().Decision()
		if decided.Intent.UID != "uid-c1" || decided.Record.Generation != 2 || len(decided.Chunks) != 2 ||
			decided.Chunks[1].Ref.ID != decided.Record.Chunks[1].ID || decided.Chunks[1].Assignments[0].ID != as[1].ID {
			t.Errorf("as decisions see it: %+v", decided)
		}
		equal(t, w.c1().HeldTotal().Quota(), api.Quota{Clusters: 1, Members: 1, Cores: 4, Memory: 1 << 29})
		var revisions []int64
		for _, key := range []string{"record/c1", "quarantine/" + as[2].ID, "usage/uid-c1/000000000001"} {
			e, ok, err := s.Get(t.Context(), key)
			if err != nil || !ok {
				t.Fatalf("%s: %v, %v", key, ok, err)
			}
			revisions = append(revisions, e.Revision)
		}
		if revisions[0] != revisions[1] || revisions[0] != revisions[2] {
			t.Errorf("record, quarantine and usage became true at %v, want one commit", revisions)
		}
	})
}

func TestACrashBeforeTheHeaderWritesNoUsage(t *testing.T) {
	w := newWorld(t, openMemory(t))
	as := w.first(2)
	crash := errors.New("crash")
	w.store.fail = func(ops []store.Op) error {
		if strings.HasPrefix(ops[0].Key, "record/") {
			return crash
		}
		return nil
	}
	rec := w.generation(2, api.ClusterDegraded)
	rec.UsageSeq = 1
	_, err := w.leader.Commit(t.Context(), w.c1(), state.Write{
		Record: rec, Add: []state.Batch{{Assignments: as}}, Usage: usageRecord(1, span(api.SpanAllocated, now, now)),
		Quarantines: []api.Quarantine{{Assignment: as[0]}},
	})
	if !errors.Is(err, crash) {
		t.Fatalf("got %v, want the crash", err)
	}
	later, err := w.repo.OpenCache(t.Context())
	must(t, err)
	if v := later.View(); len(recorded(t, later)) != 0 || len(v.Quarantines) != 0 || v.Cluster("c1").Record.Generation != 1 {
		t.Errorf("half a decision is true: %+v", v)
	}
}

func TestUsageThatIsNotCountedIsRefused(t *testing.T) {
	w := newWorld(t, openMemory(t))
	w.first(1)
	spans := span(api.SpanAllocated, now, now)
	stranger := usageRecord(1, spans)
	stranger.UID = "another"
	for name, tt := range map[string]struct {
		counted int64
		usage   *api.UsageRecord
	}{
		"a number left out":      {2, usageRecord(2, spans)},
		"written, not counted":   {0, usageRecord(1, spans)},
		"counted, not written":   {1, nil},
		"of another cluster":     {1, stranger},
		"a number of the past":   {0, usageRecord(0, spans)},
		"counted, another one's": {1, usageRecord(2, spans)},
	} {
		rec := *w.c1().Record
		rec.UsageSeq = tt.counted
		before := w.cache.Revision()
		if _, err := w.leader.Commit(t.Context(), w.c1(), state.Write{Record: rec, Usage: tt.usage}); err == nil || errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
		snap, err := w.store.List(t.Context(), "")
		must(t, err)
		if snap.Revision != before {
			t.Errorf("%s: something was written", name)
		}
	}
}

func TestAClusterIsForgottenWithItsLastUsage(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := w.first(1)
		last := usageRecord(1, span(api.SpanCleaning, now, now.Add(time.Second)))
		forget := state.Write{Forget: true, Usage: last}
		if _, err := w.leader.Commit(t.Context(), w.c1(), forget); err == nil || !strings.Contains(err.Error(), "not confirmed clean") {
			t.Errorf("a cluster that holds something: %v, want a refusal", err)
		}
		rec := w.generation(2, api.ClusterDeleting)
		rec.Chunks = append([]api.ChunkRef(nil), w.c1().Record.Chunks...)
		rec.Chunks[0].Releasing, rec.Clean = true, idsOf(as)
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{Record: rec}))
		for name, bad := range map[string]state.Write{
			"new assignments":  {Forget: true, Add: []state.Batch{{Assignments: as}}},
			"new quarantines":  {Forget: true, Quarantines: []api.Quarantine{{Assignment: as[0]}}},
			"uncounted usage":  {Forget: true, Usage: usageRecord(7)},
			"a stranger's use": {Forget: true, Usage: &api.UsageRecord{Seq: 1, UID: "another"}},
		} {
			if _, err := w.leader.Commit(t.Context(), w.c1(), bad); err == nil {
				t.Errorf("forgotten with %s", name)
			}
		}
		w.reach(w.leader.Commit(t.Context(), w.c1(), forget))
		if w.c1() != nil {
			t.Error("the cluster is still there")
		}
		equal(t, recorded(t, w.cache), []api.UsageRecord{*last})
		equal(t, w.chunks(), 0)
	})
}

func TestMoreQuarantinesThanACommitTakesAreNeverFreeInBetween(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := w.first(230)
		var quarantines []api.Quarantine
		for _, a := range as {
			quarantines = append(quarantines, api.Quarantine{Assignment: a, Reason: "stuck", Since: now})
		}
		rec := w.generation(2, api.ClusterDeleting)
		rec.UsageSeq = 1
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{
			Record: rec, Quarantines: quarantines, Usage: usageRecord(1, span(api.SpanCleaning, now, now)),
		}))
		equal(t, len(w.cache.View().Quarantines), 230)
		equal(t, ids(w.c1().All()), []string{})

		// Those that go ahead are decided on the same view as the rest.
		base := w.c1()
		_, rev, err := w.repo.RequestDelete(t.Context(), "c1", now)
		w.reach(rev, err)
		for i := range quarantines {
			quarantines[i].Assignment.ID += "x"
		}
		if _, err := w.leader.Commit(t.Context(), base, state.Write{Record: *base.Record, Quarantines: quarantines}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("an old view: %v, want ErrConflict", err)
		}
		snap, err := s.List(t.Context(), "quarantine/")
		must(t, err)
		equal(t, len(snap.Entries), 230)
	})
}

func TestTheEndOfAQuarantineIsWrittenDownOnce(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := w.first(2)
		rec := w.generation(2, api.ClusterDeleting)
		rec.UsageSeq = 1
		var quarantines []api.Quarantine
		for _, a := range as {
			quarantines = append(quarantines, api.Quarantine{Assignment: a, Reason: "stuck", Since: now})
		}
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{
			Record: rec, Quarantines: quarantines, Usage: usageRecord(1, span(api.SpanAllocated, now, now)),
		}))
		end := now.Add(time.Hour)
		for _, q := range quarantines {
			w.reach(w.leader.Unquarantine(t.Context(), q.Assignment.ID, decision.EndQuarantine(q, end).Spans...))
			w.reach(w.leader.Unquarantine(t.Context(), q.Assignment.ID, decision.EndQuarantine(q, end.Add(time.Hour)).Spans...))
		}
		equal(t, len(w.cache.View().Quarantines), 0)
		got := recorded(t, w.cache)
		equal(t, len(got), 3)
		for i, u := range got[1:] {
			want := usageRecord(1_000_000_001+int64(i), decision.EndQuarantine(quarantines[i], end).Spans...)
			equal(t, u, *want)
		}
		// The cluster's own records go on counting where they were.
		rec.Generation, rec.UsageSeq = 3, 2
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{Record: rec, Usage: usageRecord(2, span(api.SpanCleaning, now, now))}))
		equal(t, len(recorded(t, w.cache)), 4)
	})
}

func TestANodesSpansFollowEachOtherWithoutAGap(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		next := func(node string, cores int, from time.Time) *api.NodeSpan {
			return &api.NodeSpan{Node: node, Cores: cores, MemoryBytes: 1 << 30, From: from}
		}
		open := func(node string) *api.NodeSpan { return w.cache.View().NodeSpan(node) }
		for _, node := range []string{"n1", "n10", "n1-b", "n"} {
			w.reach(w.leader.CommitNodeSpan(ctx, open(node), next(node, 4, now), time.Time{}))
		}
		stale := open("n1")
		w.reach(w.leader.CommitNodeSpan(ctx, stale, next("n1", 8, now.Add(time.Hour)), time.Time{}))
		if _, err := w.leader.CommitNodeSpan(ctx, stale, next("n1", 9, now.Add(2*time.Hour)), time.Time{}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("on an old view: %v, want ErrConflict", err)
		}
		if _, err := w.leader.CommitNodeSpan(ctx, nil, next("n1", 9, now), time.Time{}); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a first span of a node that has one: %v, want ErrConflict", err)
		}
		if _, err := w.leader.CommitNodeSpan(ctx, open("n1"), next("n1", 9, now), time.Time{}); err == nil || !strings.Contains(err.Error(), "can't end before") {
			t.Errorf("a span that ends before it began: %v, want a refusal", err)
		}
		if _, err := w.leader.CommitNodeSpan(ctx, open("n1"), next("n10", 9, now.Add(time.Hour)), time.Time{}); err == nil {
			t.Error("a span of n10 followed one of n1")
		}
		if _, err := w.leader.CommitNodeSpan(ctx, nil, nil, now); err == nil {
			t.Error("nothing was committed without an error")
		}
		gone, back := now.Add(3*time.Hour), now.Add(4*time.Hour)
		w.reach(w.leader.CommitNodeSpan(ctx, open("n1"), nil, gone))
		w.reach(w.leader.CommitNodeSpan(ctx, open("n1"), next("n1", 2, back), time.Time{}))
		hour := now.Add(time.Hour)
		want := []api.NodeSpan{
			{Node: "n1", Cores: 4, MemoryBytes: 1 << 30, From: now, To: &hour},
			{Node: "n1", Cores: 8, MemoryBytes: 1 << 30, From: hour, To: &gone},
			{Node: "n1", Cores: 2, MemoryBytes: 1 << 30, From: back},
		}
		spans := func(since time.Time) (got []api.NodeSpan) {
			in := w.cache.UsageInput(ctx, back)
			for s, err := range in.Former(since) {
				must(t, err)
				got = append(got, *s)
			}
			for _, s := range in.Nodes {
				if s.Node == "n1" {
					got = append(got, *s)
				}
			}
			return got
		}
		equal(t, spans(now), want)
		equal(t, spans(hour.Add(time.Nanosecond)), want[1:])
		equal(t, len(w.cache.View().NodeSpans), 4) // those that are over are in no view
		for _, node := range []string{"n1", "n10", "n1-b", "n"} {
			if s := open(node); s == nil || s.Node != node || s.To != nil {
				t.Errorf("the present span of %s is %+v", node, s)
			}
		}
		for _, node := range []string{"", "n0", "n2", "n1-"} {
			if s := open(node); s != nil {
				t.Errorf("the present span of %q is %+v, want none", node, *s)
			}
		}
	})
}

func TestOldUsageGoesAndWhatIsStillCountedStays(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	limit := now.Add(time.Hour)
	spans := map[int64][]api.UsageSpan{
		1: {span(api.SpanAllocated, now, now.Add(time.Minute))},
		2: {span(api.SpanAllocated, now, now.Add(time.Minute)), span(api.SpanAllocated, now, limit)},
		3: {span(api.SpanCleaning, now, limit.Add(time.Hour))},
	}
	for seq := int64(1); seq <= 3; seq++ {
		rec := w.generation(seq, api.ClusterReady)
		rec.UsageSeq = seq
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec, Usage: usageRecord(seq, spans[seq]...)}))
	}
	for i, node := range []string{"n1", "n1", "n1", "gone", "stays"} {
		at := now.Add(time.Duration(i) * time.Minute)
		w.reach(w.leader.CommitNodeSpan(ctx, w.cache.View().NodeSpan(node), &api.NodeSpan{Node: node, From: at}, at))
	}
	w.reach(w.leader.CommitNodeSpan(ctx, w.cache.View().NodeSpan("gone"), nil, now.Add(4*time.Minute)))
	w.reach(w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "late", From: now}, now))
	w.reach(w.leader.CommitNodeSpan(ctx, w.cache.View().NodeSpan("late"), nil, limit))
	prune := func(view *state.View) (records, spans int) {
		t.Helper()
		next, records, err := w.leader.PruneUsage(ctx, "", limit)
		must(t, err)
		equal(t, next, "")
		spans, err = w.leader.PruneNodeSpans(ctx, view, limit)
		must(t, err)
		return records, spans
	}
	records, nodes := prune(w.cache.View())
	equal(t, []int{records, nodes}, []int{1, 3})
	later, err := w.repo.OpenCache(ctx)
	must(t, err)
	var left []string
	for _, u := range recorded(t, later) {
		left = append(left, fmt.Sprintf("%s/%012d", u.UID, u.Seq))
	}
	for _, s := range later.View().NodeSpans {
		left = append(left, state.NodeSpanKey(s))
	}
	for s, err := range later.UsageInput(ctx, limit).Former(time.Time{}) {
		must(t, err)
		left = append(left, "former "+state.NodeSpanKey(s))
	}
	equal(t, left, []string{
		"uid-c1/000000000002", "uid-c1/000000000003", "n1/000000000000", "stays/000000000000", "former late/000000000000",
	})
	records, nodes = prune(later.View())
	equal(t, []int{records, nodes}, []int{0, 0})
}

func TestTheEventsOfAClusterThatIsLongGoneGo(t *testing.T) {
	onEveryStore(t, func(t *testing.T, st store.Store) {
		w := newWorld(t, st)
		ctx := t.Context()
		event := func(cluster string, at time.Time) {
			t.Helper()
			w.reach(w.repo.AppendEvents(ctx, api.Event{Cluster: cluster, Time: at, Reason: "Placed"}, api.Event{Cluster: cluster, Time: at, Reason: "Deleted"}))
		}
		event("c1", now)
		event("lab.old", now)
		event("lab.old-2", now.Add(time.Hour))
		event("lab.o", now.Add(time.Hour))
		for _, want := range []int{1, 0} {
			removed, err := w.leader.PruneEvents(ctx, w.cache, now.Add(time.Minute))
			must(t, err)
			equal(t, removed, want)
			event("c1", now)
		}
		left, err := st.List(ctx, "event")
		must(t, err)
		for _, e := range left.Entries {
			if strings.HasPrefix(e.Key, "event/lab.old/") || e.Key == "events/lab.old" {
				t.Errorf("%s is left", e.Key)
			}
		}
		for cluster, want := range map[string]int{"c1": 6, "lab.old": 0, "lab.old-2": 2, "lab.o": 2} {
			equal(t, len(eventsOf(t, w.cache, cluster)), want)
		}
		event("lab.old", now)
		equal(t, len(eventsOf(t, w.cache, "lab.old")), 2)
	})
}

func TestPruningIsBounded(t *testing.T) {
	w := newWorld(t, openMemory(t))
	const n = 2100
	for i := range n { // every second one is old
		value := fmt.Appendf(nil, `{"seq":1,"uid":"u%d","spans":[{"to":%q}]}`, i, now.Add(time.Duration(i%2*2-1)*time.Hour).Format(time.RFC3339))
		_, err := w.store.Commit(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("usage/u%04d/000000000001", i), Value: value}})
		must(t, err)
	}
	after := ""
	for _, want := range []struct {
		removed int
		next    string
	}{{500, "usage/u0999/000000000001"}, {500, "usage/u1999/000000000001"}, {50, ""}} {
		next, removed, err := w.leader.PruneUsage(t.Context(), after, now)
		must(t, err)
		equal(t, removed, want.removed)
		equal(t, next, want.next)
		after = next
	}
	later, err := w.repo.OpenCache(t.Context())
	must(t, err)
	if left := recorded(t, later); len(left) != n/2 {
		t.Errorf("%d records are left, want those that are not old, %d", len(left), n/2)
	}
}

func TestTheNewestTimeIsThatOfWhateverCameLast(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	if got := w.cache.View().NewestTime(); !got.IsZero() {
		t.Errorf("of nothing decided: %s, want zero", got)
	}
	clock := now
	next := func() time.Time { clock = clock.Add(time.Second); return clock }
	check := func(what string) {
		t.Helper()
		if got := w.cache.View().NewestTime(); !got.Equal(clock) {
			t.Errorf("%s: %s, want %s", what, got, clock)
		}
	}
	commit := func(what string, change func(rec *api.ClusterRecord, write *state.Write)) {
		t.Helper()
		write := state.Write{Record: w.generation(1, api.ClusterReady)}
		if was := w.c1().Record; was != nil {
			write.Record = *was
		}
		change(&write.Record, &write)
		w.reach(w.leader.Commit(ctx, w.c1(), write))
		check(what)
	}
	commit("changed", func(rec *api.ClusterRecord, _ *state.Write) { rec.ChangedAt = next() })
	for what, field := range map[string]func(*api.ClusterRecord) **time.Time{
		"ready":   func(r *api.ClusterRecord) **time.Time { return &r.ReadyAt },
		"placed":  func(r *api.ClusterRecord) **time.Time { return &r.PlacedAt },
		"expired": func(r *api.ClusterRecord) **time.Time { return &r.ExpiredAt },
	} {
		commit(what, func(rec *api.ClusterRecord, _ *state.Write) { at := next(); *field(rec) = &at })
	}
	commit("lost", func(rec *api.ClusterRecord, _ *state.Write) { rec.Lost = []api.LostMember{{Since: next()}} })
	commit("taken", func(_ *api.ClusterRecord, write *state.Write) {
		as := assignments("c1", 1, 1)
		as[0].TakenAt = next()
		write.Add = []state.Batch{{Assignments: as}}
	})
	commit("released", func(_ *api.ClusterRecord, write *state.Write) {
		at := next()
		write.Add = []state.Batch{{Assignments: assignments("c1", 1, 2), Releasing: true, ReleasedAt: &at}}
	})
	commit("quarantined", func(_ *api.ClusterRecord, write *state.Write) {
		write.Quarantines = []api.Quarantine{{Assignment: assignments("c1", 1, 2)[0], Since: next()}}
	})
	commit("used", func(rec *api.ClusterRecord, write *state.Write) {
		rec.UsageSeq = 1
		write.Usage = usageRecord(1, span(api.SpanCleaning, now, next()))
	})
	w.reach(w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "n1", From: next()}, now))
	check("node seen")
}

func TestTheInputOfUsageHasAllThatHoldsRoom(t *testing.T) {
	w := newWorld(t, openMemory(t))
	as := w.first(4)
	released, stuck := now.Add(time.Minute), now.Add(time.Hour)
	rec := w.generation(2, api.ClusterDegraded)
	rec.ChangedAt, rec.Clean = now.Add(time.Second), idsOf(as[3:])
	w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{
		Record: rec,
		Add: []state.Batch{
			{Assignments: as[:1]}, {Assignments: as[1:2], Releasing: true, ReleasedAt: &released}, {Assignments: as[2:], Releasing: true},
		},
		Quarantines: []api.Quarantine{{Assignment: as[3], Since: stuck}},
	}))
	type open struct {
		id    string
		since time.Time
	}
	var got []open
	for o := range w.cache.View().Open() {
		since := time.Time{}
		if o.ReleasedAt != nil {
			since = *o.ReleasedAt
		}
		got = append(got, open{o.Assignment.ID, since})
		equal(t, o.UID, "uid-c1")
	}
	// A chunk without its time was written by a version that did not note it.
	want := []open{{as[0].ID, time.Time{}}, {as[1].ID, released}, {as[2].ID, rec.ChangedAt}, {as[3].ID, stuck}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestAQuarantineEndsOnceWhateverHappensMeanwhile(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world, leader *state.Leader, as []api.Assignment) error{
		"it ended": func(w *world, leader *state.Leader, as []api.Assignment) error {
			_, err := leader.Unquarantine(w.Context(), as[0].ID)
			return err
		},
		"another one of the cluster ended": func(w *world, leader *state.Leader, as []api.Assignment) error {
			_, err := leader.Unquarantine(w.Context(), as[1].ID, span(api.SpanCleaning, now, now))
			return err
		},
	} {
		w := newWorld(t, openMemory(t))
		as := assignments("c1", 2, 1)
		for _, a := range as {
			w.reach(w.leader.Quarantine(t.Context(), api.Quarantine{Assignment: a, Since: now}))
		}
		w.store.fail = func([]store.Op) error {
			w.store.fail = nil
			return meanwhile(w, state.New(w.store.Store).AsLeader(w.won), as)
		}
		if _, err := w.leader.Unquarantine(t.Context(), as[0].ID, span(api.SpanCleaning, now, now)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", name, err)
		}
	}
}

func TestAClosedNodeSpanIsNotClosedAgain(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	w.reach(w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "n1", From: now}, now))
	open := w.cache.View().NodeSpan("n1")
	end := func(leader *state.Leader, at time.Time) error {
		_, err := leader.CommitNodeSpan(ctx, open, nil, at)
		return err
	}
	w.store.fail = func([]store.Op) error {
		w.store.fail = nil
		return end(state.New(w.store.Store).AsLeader(w.won), now.Add(time.Minute)) // between our look and our write
	}
	for _, when := range []string{"at the same time", "later"} {
		if err := end(w.leader, now.Add(time.Hour)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", when, err)
		}
	}
	later, err := w.repo.OpenCache(ctx)
	must(t, err)
	var ends []time.Time
	for s, err := range later.UsageInput(ctx, now).Former(now) {
		must(t, err)
		ends = append(ends, *s.To)
	}
	equal(t, ends, []time.Time{now.Add(time.Minute)})
}

func TestAFirstDecisionThatLandsBesideACollectionKeepsItsChunks(t *testing.T) {
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
	// A collector that knows nothing of the commit under way: it lands between the collector's look and its removal.
	w.store.fail = func(ops []store.Op) error {
		if !ops[0].Delete {
			return nil
		}
		w.store.fail = nil
		_, err := w.store.Store.Commit(ctx, nil, header)
		return err
	}
	removed, err := w.repo.AsLeader(w.won).CollectGarbage(ctx)
	must(t, err)
	equal(t, removed, 0)
	later, err := w.repo.OpenCache(ctx)
	must(t, err)
	equal(t, ids(later.Cluster("c1").Held()), idsOf(as))
}

// putSpan stores a span as a version did that left closed ones with the present ones.
func putSpan(t *testing.T, w *world, s api.NodeSpan) {
	t.Helper()
	content, err := json.Marshal(s)
	must(t, err)
	w.reach(w.store.Commit(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("nodespan/%s/%012d", s.Node, s.Seq), Value: content}}))
}

func TestClosedSpansOfAnOlderVersionAreMoved(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		hour := now.Add(time.Hour)
		closed := api.NodeSpan{Node: "n1", Cores: 4, From: now, To: &hour}
		putSpan(t, w, closed)
		putSpan(t, w, api.NodeSpan{Seq: 2, Node: "n1", Cores: 4, Down: true, From: hour})
		gone := api.NodeSpan{Seq: 7, Node: "gone", Cores: 2, From: now, To: &hour}
		putSpan(t, w, gone)
		w.reach(w.leader.CommitNodeSpan(ctx, &gone, nil, now.Add(5*time.Hour))) // which is not when it ended
		moved, err := w.leader.PruneNodeSpans(ctx, w.cache.View(), now)
		must(t, err)
		equal(t, moved, 1)
		later, err := w.repo.OpenCache(ctx)
		must(t, err)
		var former []api.NodeSpan
		for s, err := range later.UsageInput(ctx, now).Former(now) {
			must(t, err)
			former = append(former, *s)
		}
		equal(t, former, []api.NodeSpan{gone, closed})
		equal(t, len(later.View().NodeSpans), 1)
	})
}

func TestASpanThatWasClosedAfterAViewIsReadOnce(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	w.reach(w.leader.CommitNodeSpan(ctx, nil, &api.NodeSpan{Node: "n1", From: now}, now))
	in := w.cache.UsageInput(ctx, now.Add(time.Hour))
	w.reach(w.leader.CommitNodeSpan(ctx, w.cache.View().NodeSpan("n1"), &api.NodeSpan{Node: "n1", Down: true, From: now.Add(time.Minute)}, now))
	for s := range in.Former(now) {
		t.Errorf("the span that was open for the view is there again: %+v", s)
	}
	equal(t, len(in.Nodes), 1)
}
