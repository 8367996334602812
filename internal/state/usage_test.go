package state_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// paged is a store on which something happens before each page is read.
type paged struct {
	store.Store
	before func(prefix, after string)
}

func (p *paged) Page(ctx context.Context, prefix, after string, limit int) (store.Snapshot, error) {
	if p.before != nil {
		p.before(prefix, after)
	}
	return p.Store.Page(ctx, prefix, after, limit)
}

// used is a record of somebody's use that ended some time ago.
func used(uid, project, user string, ago, length time.Duration, cores int) api.UsageRecord {
	return api.UsageRecord{Seq: 1, UID: uid, Cluster: "c" + uid, Project: project, User: user, Spans: []api.UsageSpan{
		{Kind: api.SpanAllocated, Node: "n", From: now.Add(-ago - length), To: now.Add(-ago), Members: 1, Cores: cores},
		{Kind: api.SpanCleaning, Node: "n", From: now.Add(-ago), To: now.Add(time.Second - ago), Members: 1, Cores: cores},
	}}
}

// storeUsage writes a record as a leader's commit does.
func storeUsage(ctx context.Context, s store.Store, r api.UsageRecord) (int64, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	return s.Commit(ctx, nil, []store.Op{{Key: fmt.Sprintf("usage/%s/%012d", r.UID, r.Seq), Value: data}})
}

// sameUse compares what two views say of use until a time.
func sameUse(t rapid.TB, at time.Time, got, want *state.View) {
	t.Helper()
	is, be := usage.Decay(at, got.Past, got.Open()), usage.Decay(at, want.Past, want.Open())
	if len(is) != len(be) {
		t.Fatalf("projects %v, want %v", is, be)
	}
	for project, d := range be {
		if len(is[project].ByUser) != len(d.ByUser) || math.Abs(is[project].Total-d.Total) > 1e-9*d.Total {
			t.Fatalf("%s: %+v, want %+v", project, is[project], d)
		}
		for user, seconds := range d.ByUser {
			if math.Abs(is[project].ByUser[user]-seconds) > 1e-9*seconds {
				t.Fatalf("%s of %s: %g, want %g", user, project, is[project].ByUser[user], seconds)
			}
		}
	}
	if !got.UsedUntil.Equal(want.UsedUntil) {
		t.Fatalf("used until %s, want %s", got.UsedUntil, want.UsedUntil)
	}
}

func TestACacheThatIsOpenedKnowsTheUseThatOneKnowsWhichWatched(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &paged{Store: openMemory(t)}
		repo := state.New(s)
		watched, err := repo.OpenCache(ctx)
		must(t, err)
		written, newest := 0, int64(0)
		write := func() {
			written++
			uid := fmt.Sprintf("%c%d", "0az"[rapid.IntRange(0, 2).Draw(rt, "uid")], written)
			record := used(uid, rapid.SampledFrom([]string{"", "physics"}).Draw(rt, "project"), rapid.SampledFrom([]string{"ann", "bob"}).Draw(rt, "user"),
				time.Duration(rapid.IntRange(0, 90*24*60).Draw(rt, "ago"))*time.Minute, time.Duration(rapid.IntRange(1, 24*60).Draw(rt, "length"))*time.Minute,
				rapid.IntRange(1, 64).Draw(rt, "cores"))
			newest, err = storeUsage(ctx, s, record)
			must(t, err)
		}
		for range rapid.SampledFrom([]int{0, 1, 7, 40}).Draw(rt, "records") {
			write()
		}
		// What is written while the records are read is not read, or not counted, and comes with the watch.
		s.before = func(string, string) {
			for range rapid.IntRange(0, 2).Draw(rt, "meanwhile") {
				write()
			}
		}
		opened, err := repo.OpenCache(ctx)
		must(t, err)
		s.before = nil
		write()
		for _, cache := range []*state.Cache{watched, opened} {
			_, err := cache.WaitRevision(ctx, newest)
			must(t, err)
		}
		later := now.Add(time.Duration(rapid.IntRange(-30, 30*24*60).Draw(rt, "later")) * time.Minute)
		sameUse(rt, later, opened.View(), watched.View())
		total := 0.0
		for _, p := range usage.Decay(now.Add(usage.HalfLife), opened.View().Past, opened.View().Open()) {
			total += p.Total
		}
		if total == 0 || math.IsNaN(total) {
			rt.Fatalf("%g core-seconds in all of %d records", total, written)
		}
	})
}

func TestUseThatIsNoLongerStoredStaysInTheSum(t *testing.T) {
	s := openMemory(t)
	repo := state.New(s)
	cache, err := repo.OpenCache(t.Context())
	must(t, err)
	_, err = storeUsage(t.Context(), s, used("old", "", "ann", state.UsageKept, 24*time.Hour, 1_000_000))
	must(t, err)
	_, err = storeUsage(t.Context(), s, used("new", "", "ann", 0, time.Hour, 1))
	must(t, err)
	revision, err := s.Commit(t.Context(), nil, []store.Op{{Key: "usage/old/000000000001", Delete: true}})
	must(t, err)
	_, err = cache.WaitRevision(t.Context(), revision)
	must(t, err)
	opened, err := repo.OpenCache(t.Context())
	must(t, err)
	// A day of a million cores, removed as soon as it may be, is less than the rounding of an hour of one core.
	sameUse(t, now, opened.View(), cache.View())
}

func TestAReportIsAsOfOneRevisionWhateverIsWrittenBetweenItsPages(t *testing.T) {
	onEveryStore(t, func(t *testing.T, inner store.Store) {
		ctx := t.Context()
		s := &paged{Store: inner}
		repo := state.New(s)
		must(t, repo.CheckVersion(ctx))
		const records = 3000 // three pages
		for first := 0; first < records; first += 100 {
			var ops []store.Op
			for n := first; n < first+100; n++ {
				uid := fmt.Sprintf("u%04d", n)
				data, err := json.Marshal(used(uid, "", "ann", time.Duration(n)*time.Minute, time.Hour, 2))
				must(t, err)
				ops = append(ops, store.Op{Key: fmt.Sprintf("usage/%s/%012d", uid, 1), Value: data})
			}
			_, err := s.Commit(ctx, nil, ops)
			must(t, err)
		}
		cache, err := repo.OpenCache(ctx)
		must(t, err)
		report := func(in usage.Input) api.UsageReport {
			t.Helper()
			got, err := usage.Report(in, now.AddDate(0, 0, -4), now, usage.Day, usage.ByCluster)
			must(t, err)
			return got
		}
		quiet := report(cache.UsageInput(ctx, now))
		if len(quiet.Rows) < records {
			t.Fatalf("%d rows of %d clusters", len(quiet.Rows), records)
		}
		in := cache.UsageInput(ctx, now)
		meanwhile := 0
		s.before = func(string, string) {
			// Before, among and behind what the next page holds.
			for _, uid := range []string{"u0000-", "u1500-", "u9999-"} {
				meanwhile++
				_, err := storeUsage(ctx, inner, used(fmt.Sprint(uid, meanwhile), "", "eve", 0, time.Hour, 9))
				must(t, err)
			}
		}
		for range 2 { // a long report goes through the records several times
			equal(t, report(in), quiet)
		}
		if meanwhile < 8 {
			t.Errorf("%d records were written meanwhile, want some in each report", meanwhile)
		}
	})
}

// BenchmarkReport reports a day, and 400 days, of a site of 1,000 nodes that keeps 100,000 usage records of 8 spans each in the embedded etcd.
func BenchmarkReport(b *testing.B) {
	const records, nodes, atOnce = 100_000, 1000, 100
	s := openEtcd(b)
	node := func(n int) string { return fmt.Sprint("n", n%nodes) }
	write := func(count int, entry func(n int) (key string, value any)) {
		for first := 0; first < count; first += atOnce {
			var ops []store.Op
			for n := first; n < first+atOnce; n++ {
				key, value := entry(n)
				data, err := json.Marshal(value)
				must(b, err)
				ops = append(ops, store.Op{Key: key, Value: data})
			}
			_, err := s.Commit(b.Context(), nil, ops)
			must(b, err)
		}
	}
	write(nodes, func(n int) (string, any) {
		return fmt.Sprintf("nodespan/%s/%012d", node(n), 1), api.NodeSpan{Seq: 1, Node: node(n), Cores: 64, MemoryBytes: 1 << 36, From: now.Add(-2 * state.UsageKept)}
	})
	write(records, func(n int) (string, any) {
		r := used(fmt.Sprintf("u%06d", n), fmt.Sprint("p", n%50), fmt.Sprint("u", n%200), time.Duration(n)*(state.UsageKept/records), time.Hour, 4)
		one := r.Spans[0]
		r.Spans = nil
		for i := range 8 {
			one.Node = node(8*n + i)
			r.Spans = append(r.Spans, one)
		}
		return fmt.Sprintf("usage/%s/%012d", r.UID, 1), r
	})
	cache, err := state.New(s).OpenCache(b.Context())
	must(b, err)
	for name, days := range map[string]int{"a day": 1, "400 days": 400} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := usage.Report(cache.UsageInput(b.Context(), now), now.AddDate(0, 0, -days), now, usage.Month, usage.ByProject); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
