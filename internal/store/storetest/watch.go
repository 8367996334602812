package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/store"
)

func watchFromRevision(t *testing.T, s store.Store) {
	ctx := t.Context()
	first := write(t, s, "a", "1")
	second := write(t, s, "b", "2")
	w := s.Watch(ctx, "", first) // what came after the first, though it is past already
	third, err := s.Commit(ctx, nil, []store.Op{
		{Key: "c", Value: []byte("3")},
		{Key: "a", Delete: true},
		{Key: "d", Value: []byte("3")},
	})
	must(t, err)
	fourth := write(t, s, "c", "4")
	set := func(key, value string, revision int64) store.Change {
		return store.Change{Entry: store.Entry{Key: key, Value: []byte(value), Revision: revision}}
	}
	for _, want := range [][]store.Change{
		{set("b", "2", second)},
		{set("c", "3", third), {Entry: store.Entry{Key: "a", Revision: third}, Deleted: true}, set("d", "3", third)},
		{set("c", "4", fourth)},
	} {
		equal(t, await(t, "a commit", w.Changes()), want)
	}
}

func watchUnderLoad(t *testing.T, s store.Store) {
	const writers, each = 6, 25
	ctx := t.Context()
	w := s.Watch(ctx, "k/", 1)
	errs := make(chan error, writers)
	for i := range writers {
		go func() {
			var err error
			for j := 0; j < each && err == nil; j++ {
				ops := []store.Op{{Key: fmt.Sprintf("k/%d", i), Value: []byte(fmt.Sprint(j))}, {Key: fmt.Sprintf("k/%d/last", i), Value: []byte(fmt.Sprint(j))}}
				if j%5 == 4 {
					ops[1] = store.Op{Key: fmt.Sprintf("k/%d/", i), DeletePrefix: true}
				}
				_, err = s.Commit(ctx, nil, ops)
			}
			errs <- err
		}()
	}
	replay := map[string]string{}
	var last int64
	for range writers * each {
		changes := await(t, "a commit", w.Changes())
		if len(changes) != 2 || changes[0].Revision <= last || changes[1].Revision != changes[0].Revision {
			t.Fatalf("after revision %d came %+v, want one whole commit that is newer", last, changes)
		}
		last = changes[0].Revision
		for _, c := range changes {
			if replay[c.Key] = string(c.Value); c.Deleted {
				delete(replay, c.Key)
			}
		}
	}
	for range writers {
		must(t, <-errs)
	}
	snap, err := s.List(ctx, "k/")
	must(t, err)
	want := map[string]string{}
	for _, e := range snap.Entries {
		want[e.Key] = string(e.Value)
	}
	equal(t, replay, want)
}

func watchPrefix(t *testing.T, s store.Store) {
	w := s.Watch(t.Context(), "x/", 1)
	write(t, s, "w", "1")
	write(t, s, "x", "1")
	_, err := s.Commit(t.Context(), nil, []store.Op{{Key: "x0", Value: []byte("1")}, {Key: "x/1", Value: []byte("1")}})
	must(t, err)
	changes := await(t, "a commit", w.Changes())
	if len(changes) != 1 || !strings.HasPrefix(changes[0].Key, "x/") {
		t.Errorf("got %+v, want the change of x/1 only", changes)
	}
}

func watchEndsWithContext(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	w := s.Watch(ctx, "", 1)
	write(t, s, "a", "1")
	await(t, "a commit", w.Changes())
	cancel()
	if changes := await(t, "the end of the watch", w.Changes()); changes != nil {
		t.Errorf("after its end the watch delivered %+v", changes)
	}
	if !errors.Is(w.Err(), context.Canceled) {
		t.Errorf("Err: %v, want context.Canceled", w.Err())
	}
}

func watchCompacted(t *testing.T, s store.Store) {
	c, ok := s.(Compactor)
	needs.Ability(t, ok, "compaction at once")
	first := write(t, s, "a", "1")
	for range 4 {
		write(t, s, "a", "2")
	}
	now := write(t, s, "a", "3")
	must(t, c.Compact(t.Context(), now))
	w := s.Watch(t.Context(), "", first)
	if changes := await(t, "the end of the watch", w.Changes()); changes != nil {
		t.Errorf("the watch of compacted history delivered %+v", changes)
	}
	if !errors.Is(w.Err(), store.ErrCompacted) {
		t.Errorf("Err: %v, want ErrCompacted", w.Err())
	}
	w = s.Watch(t.Context(), "", now)
	next := write(t, s, "a", "4")
	if changes := await(t, "a commit", w.Changes()); len(changes) != 1 || changes[0].Revision != next {
		t.Errorf("a watch from the compacted revision on delivered %+v, want revision %d", changes, next)
	}
}
