// Package storetest is the conformance suite of the state store: what every implementation of store.Store must do, as tests. It
// must never test what only one of them can do.
//
// Start with Run.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/store"
)

// Compactor is the optional ability to forget history at once.
type Compactor interface {
	Compact(ctx context.Context, revision int64) error
}

// patience is how long something that must happen may take before a test fails; nothing waits for it when all is well.
const patience = 20 * time.Second

// Run tests a store. open gives a new, empty one for every call and closes it when the test ends.
func Run(t *testing.T, open func(*testing.T) store.Store) {
	tests := []struct {
		name string
		run  func(*testing.T, store.Store)
	}{
		{"Get returns what was written last and at which revision", getReturnsTheLastWrite},
		{"List returns a prefix in key order as of one revision", listIsOrdered},
		{"List of several prefixes is as of one revision", listOfSeveral},
		{"pages go through a prefix in key order and say when each entry was written", pages},
		{"a value given or returned can be modified without harm", valuesAreCopies},
		{"a commit whose condition fails writes nothing", failedConditionWritesNothing},
		{"conditions compare the revision of the last write", conditions},
		{"a commit beyond the limits is refused", limits},
		{"a commit of the largest size is taken", largestCommit},
		{"DeletePrefix removes what begins with the key and nothing else", deletePrefix},
		{"deleting what is not there succeeds and changes no revision", deleteNothing},
		{"of many compare-and-swaps at once every success counts", concurrentCompareAndSwap},
		{"a watch delivers whole commits in order from its revision", watchFromRevision},
		{"a watch has no gaps while many write", watchUnderLoad},
		{"a watch of a prefix sees nothing else", watchPrefix},
		{"a watch ends with its context and says so", watchEndsWithContext},
		{"a watch of compacted history says so", watchCompacted},
		{"the first candidate leads, the second waits until it resigns", secondCandidateWaits},
		{"terms grow and the guard of an older term fails", olderTermFails},
		{"a candidate takes the place of its namesake at once", namesakeTakesOver},
		{"a campaign ends with its context", campaignEndsWithContext},
		{"the election key can be read but not written", electionKeyIsReserved},
		{"a closed store says so", closedStore},
		{"concurrent gets and commits are linearizable", linearizable},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.run(t, open(t))
		})
	}
}

func getReturnsTheLastWrite(t *testing.T, s store.Store) {
	ctx := t.Context()
	if _, ok, err := s.Get(ctx, "a"); ok || err != nil {
		t.Fatalf("Get of a missing key: %v, %v; want false, nil", ok, err)
	}
	first := write(t, s, "a", "1")
	second := write(t, s, "a", "2")
	if second <= first {
		t.Fatalf("revisions %d, %d do not grow", first, second)
	}
	write(t, s, "b", "other")
	e, ok, err := s.Get(ctx, "a")
	if !ok || err != nil {
		t.Fatalf("Get: %v, %v", ok, err)
	}
	equal(t, e, store.Entry{Key: "a", Value: []byte("2"), Revision: second})
}

func listIsOrdered(t *testing.T, s store.Store) {
	var want []store.Entry
	revisions := map[string]int64{}
	for _, k := range []string{"x/b", "y", "x/a", "x/a/1", "x", "x0", "x/"} {
		revisions[k] = write(t, s, k, k)
	}
	last := write(t, s, "z", "z")
	for _, k := range []string{"x/", "x/a", "x/a/1", "x/b"} {
		want = append(want, store.Entry{Key: k, Value: []byte(k), Revision: revisions[k]})
	}
	snap, err := s.List(t.Context(), "x/")
	must(t, err)
	equal(t, snap.Entries, want)
	if snap.Revision != last {
		t.Errorf("snapshot as of %d, want the newest revision %d", snap.Revision, last)
	}
	all, err := s.List(t.Context(), "")
	must(t, err)
	if len(all.Entries) != 8 {
		t.Errorf("List of everything: %d entries, want 8", len(all.Entries))
	}
	none, err := s.List(t.Context(), "nothing/")
	must(t, err)
	if len(none.Entries) != 0 {
		t.Errorf("List of nothing: %v", none.Entries)
	}
}

// listOfSeveral lists two prefixes while one commit after another writes the same value under both.
func listOfSeveral(t *testing.T, s store.Store) {
	last := int64(0)
	both := func(n int) error {
		value := fmt.Append(nil, n)
		revision, err := s.Commit(t.Context(), nil, []store.Op{{Key: "b/2", Value: value}, {Key: "a/1", Value: value}, {Key: "between", Value: value}})
		last = revision
		return err
	}
	must(t, both(0))
	const times = 200
	written := make(chan error, 1)
	go func() {
		var err error
		for n := 1; n <= times && err == nil; n++ {
			err = both(n)
		}
		written <- err
	}()
	for done := false; !done; {
		select {
		case err := <-written:
			must(t, err)
			done = true
		default:
		}
		snap, err := s.List(t.Context(), "b/", "a/", "none/")
		must(t, err)
		equal(t, keys(snap), []string{"a/1", "b/2"})
		equal(t, snap.Entries[0].Value, snap.Entries[1].Value)
		equal(t, snap.Entries[0].Revision, snap.Revision)
		if done && (string(snap.Entries[0].Value) != fmt.Sprint(times) || snap.Revision != last) {
			t.Errorf("after the last commit, at %d: %q as of %d", last, snap.Entries[0].Value, snap.Revision)
		}
	}
}

func pages(t *testing.T, s store.Store) {
	revisions := map[string]int64{}
	for _, k := range []string{"x/c", "x/a", "x/b/1", "x/b", "w", "x", "x0", "x/d"} {
		revisions[k] = write(t, s, k, k)
	}
	page := func(after string, limit int, want ...string) store.Snapshot {
		t.Helper()
		snap, err := s.Page(t.Context(), "x/", after, limit)
		must(t, err)
		equal(t, keys(snap), want)
		for _, e := range snap.Entries {
			equal(t, e, store.Entry{Key: e.Key, Value: []byte(e.Key), Revision: revisions[e.Key]})
		}
		return snap
	}
	first := page("", 2, "x/a", "x/b")
	if first.Revision != revisions["x/d"] {
		t.Errorf("the first page is as of %d, want the newest revision %d", first.Revision, revisions["x/d"])
	}
	// Between two pages, the last key that was seen goes, as does one that was not; others are written before and behind it.
	_, err := s.Commit(t.Context(), nil, []store.Op{{Key: "x/b", Delete: true}, {Key: "x/d", Delete: true}})
	must(t, err)
	for _, k := range []string{"x/a", "x/c", "x/e"} {
		revisions[k] = write(t, s, k, k)
	}
	next := page("x/b", 2, "x/b/1", "x/c")
	if e := next.Entries; len(e) == 2 && (e[0].Revision > first.Revision || e[1].Revision <= first.Revision) {
		t.Errorf("revisions %d and %d: only the second was written after the first page, at %d", e[0].Revision, e[1].Revision, first.Revision)
	}
	page("x/c", 2, "x/e")
	page("x/e", 2)
	page("x/z", 2)
	page("", 9, "x/a", "x/b/1", "x/c", "x/e")
}

func valuesAreCopies(t *testing.T, s store.Store) {
	value := []byte("before")
	_, err := s.Commit(t.Context(), nil, []store.Op{{Key: "k", Value: value}})
	must(t, err)
	copy(value, "CHANGE")
	e, _, err := s.Get(t.Context(), "k")
	must(t, err)
	equal(t, string(e.Value), "before")
}

func failedConditionWritesNothing(t *testing.T, s store.Store) {
	ctx := t.Context()
	rev := write(t, s, "a", "1")
	_, err := s.Commit(ctx, []store.Cond{{Key: "a", Revision: rev}, {Key: "missing", Revision: rev}},
		[]store.Op{{Key: "a", Value: []byte("2")}, {Key: "b", Value: []byte("2")}})
	if !errors.Is(err, store.ErrConflict) {
		t.Fatalf("commit: %v, want ErrConflict", err)
	}
	snap, err := s.List(ctx, "")
	must(t, err)
	equal(t, snap, store.Snapshot{Entries: []store.Entry{{Key: "a", Value: []byte("1"), Revision: rev}}, Revision: rev})
}

func conditions(t *testing.T, s store.Store) {
	ctx := t.Context()
	old := write(t, s, "a", "1")
	now := write(t, s, "a", "2")
	write(t, s, "gone", "1")
	_, err := s.Commit(ctx, nil, []store.Op{{Key: "gone", Delete: true}})
	must(t, err)
	for _, tc := range []struct {
		name string
		cond store.Cond
		ok   bool
	}{
		{"the revision it has", store.Cond{Key: "a", Revision: now}, true},
		{"an older revision", store.Cond{Key: "a", Revision: old}, false},
		{"a newer revision", store.Cond{Key: "a", Revision: now + 1}, false},
		{"missing, but it is there", store.Cond{Key: "a"}, false},
		{"missing, and it is", store.Cond{Key: "b"}, true},
		{"missing, and it was deleted", store.Cond{Key: "gone"}, true},
		{"there, but it is missing", store.Cond{Key: "b", Revision: now}, false},
	} {
		_, err := s.Commit(ctx, []store.Cond{tc.cond}, []store.Op{{Key: "elsewhere", Value: []byte("x")}})
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want success %v", tc.name, err, tc.ok)
		}
	}
}

func limits(t *testing.T, s store.Store) {
	many := make([]store.Op, store.MaxOps+1)
	conds := make([]store.Cond, store.MaxOps+1)
	for i := range many {
		many[i], conds[i] = store.Op{Key: fmt.Sprint("k", i)}, store.Cond{Key: fmt.Sprint("k", i)}
	}
	for _, tc := range []struct {
		name  string
		conds []store.Cond
		ops   []store.Op
	}{
		{"no writes", nil, nil},
		{"too many writes", nil, many},
		{"too many conditions", conds, many[:1]},
		{"too many bytes", nil, []store.Op{{Key: "big", Value: make([]byte, store.MaxBytes)}}},
		{"one key twice", nil, []store.Op{{Key: "a", Value: []byte("1")}, {Key: "a", Delete: true}}},
		{"a key and its prefix", nil, []store.Op{{Key: "a/1", Value: []byte("1")}, {Key: "a/", DeletePrefix: true}}},
		{"no key", nil, []store.Op{{Value: []byte("1")}}},
	} {
		if _, err := s.Commit(t.Context(), tc.conds, tc.ops); err == nil || errors.Is(err, store.ErrConflict) {
			t.Errorf("%s: %v, want a refusal", tc.name, err)
		}
	}
	snap, err := s.List(t.Context(), "")
	must(t, err)
	if len(snap.Entries) != 0 {
		t.Errorf("refused commits wrote %v", snap.Entries)
	}
}

func largestCommit(t *testing.T, s store.Store) {
	ops := make([]store.Op, store.MaxOps)
	conds := make([]store.Cond, store.MaxOps)
	for i := range ops {
		key := fmt.Sprintf("chunk/%03d", i)
		ops[i] = store.Op{Key: key, Value: []byte(strings.Repeat("x", store.MaxBytes/store.MaxOps-len(key)))}
		conds[i] = store.Cond{Key: key}
	}
	_, err := s.Commit(t.Context(), conds, ops)
	must(t, err)
}

func deletePrefix(t *testing.T, s store.Store) {
	for _, k := range []string{"a", "a/", "a/1", "a/2/3", "a0", "b"} {
		write(t, s, k, "x")
	}
	_, err := s.Commit(t.Context(), nil, []store.Op{{Key: "a/", DeletePrefix: true}, {Key: "c", Value: []byte("x")}})
	must(t, err)
	snap, err := s.List(t.Context(), "")
	must(t, err)
	equal(t, keys(snap), []string{"a", "a0", "b", "c"})
}

func deleteNothing(t *testing.T, s store.Store) {
	rev := write(t, s, "a", "x")
	got, err := s.Commit(t.Context(), []store.Cond{{Key: "a", Revision: rev}}, []store.Op{{Key: "none", Delete: true}, {Key: "none/", DeletePrefix: true}})
	must(t, err)
	if got != rev {
		t.Errorf("revision %d, want %d as before", got, rev)
	}
}

func concurrentCompareAndSwap(t *testing.T, s store.Store) {
	const workers, each = 8, 15
	ctx := t.Context()
	errs := make(chan error, workers)
	for range workers {
		go func() { errs <- increment(ctx, s, "counter", each) }()
	}
	for range workers {
		must(t, <-errs)
	}
	e, _, err := s.Get(ctx, "counter")
	must(t, err)
	equal(t, len(e.Value), workers*each)
}

// increment makes the value of key longer by one byte, times times.
func increment(ctx context.Context, s store.Store, key string, times int) error {
	for times > 0 {
		e, _, err := s.Get(ctx, key)
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, []store.Cond{{Key: key, Revision: e.Revision}}, []store.Op{{Key: key, Value: append(slices.Clone(e.Value), 'x')}})
		switch {
		case err == nil:
			times--
		case !errors.Is(err, store.ErrConflict):
			return err
		}
	}
	return nil
}

func closedStore(t *testing.T, s store.Store) {
	w := s.Watch(t.Context(), "", 1)
	won, err := s.Campaign(t.Context(), "a")
	must(t, err)
	<-w.Changes() // the watch is running
	must(t, s.Close())
	for range w.Changes() {
	}
	_, _, getErr := s.Get(t.Context(), "a")
	_, listErr := s.List(t.Context(), "")
	_, pageErr := s.Page(t.Context(), "", "", 1)
	_, commitErr := s.Commit(t.Context(), nil, []store.Op{{Key: "a", Value: []byte("1")}})
	_, campaignErr := s.Campaign(t.Context(), "a")
	for name, err := range map[string]error{"watch": w.Err(), "Get": getErr, "List": listErr, "Page": pageErr, "Commit": commitErr, "Campaign": campaignErr} {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
	await(t, "the leadership to end", won.Done())
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func write(t *testing.T, s store.Store, key, value string) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), nil, []store.Op{{Key: key, Value: []byte(value)}})
	must(t, err)
	return rev
}

func keys(snap store.Snapshot) []string {
	var ks []string
	for _, e := range snap.Entries {
		ks = append(ks, e.Key)
	}
	return ks
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// await fails the test when ch neither delivers nor closes in time.
func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %s for %s", patience, what)
		panic("unreachable")
	}
}
