package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/store"
)

func secondCandidateWaits(t *testing.T, s store.Store) {
	ctx := t.Context()
	first, err := s.Campaign(ctx, "a")
	must(t, err)
	second := make(chan store.Leadership, 1)
	errs := make(chan error, 1)
	go func() {
		l, err := s.Campaign(ctx, "b")
		errs <- err
		second <- l
	}()
	// Commits guarded by the first leadership succeed as long as it has not resigned, whatever the second does.
	for range 20 {
		_, err := s.Commit(ctx, []store.Cond{first.Guard()}, []store.Op{{Key: "k", Value: []byte("a")}})
		must(t, err)
	}
	select {
	case <-second:
		t.Fatal("the second candidate leads beside the first")
	case <-first.Done():
		t.Fatal("the first leadership ended without cause")
	default:
	}
	must(t, first.Resign(ctx))
	await(t, "the first leadership to end", first.Done())
	must(t, await(t, "the second to lead", errs))
	l := <-second
	if l.Term() <= first.Term() {
		t.Errorf("second term %d, want more than the first, %d", l.Term(), first.Term())
	}
	_, err = s.Commit(ctx, []store.Cond{l.Guard()}, []store.Op{{Key: "k", Value: []byte("b")}})
	must(t, err)
}

func olderTermFails(t *testing.T, s store.Store) {
	ctx := t.Context()
	rev := write(t, s, "k", "1")
	first, err := s.Campaign(ctx, "a")
	must(t, err)
	must(t, first.Resign(ctx))
	must(t, first.Resign(ctx)) // again is no error
	commit := func(conds ...store.Cond) error {
		_, err := s.Commit(ctx, conds, []store.Op{{Key: "k", Value: []byte("stale")}})
		return err
	}
	if err := commit(first.Guard()); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("commit while nobody leads: %v, want ErrNotLeader", err)
	}
	second, err := s.Campaign(ctx, "b")
	must(t, err)
	for name, conds := range map[string][]store.Cond{
		"the guard alone":                   {first.Guard()},
		"the guard and a good condition":    {{Key: "k", Revision: rev}, first.Guard()},
		"the guard and a failing condition": {{Key: "k", Revision: rev + 1000}, first.Guard()},
	} {
		if err := commit(conds...); !errors.Is(err, store.ErrNotLeader) {
			t.Errorf("commit of the older term under %s: %v, want ErrNotLeader", name, err)
		}
	}
	if err := commit(second.Guard(), store.Cond{Key: "k", Revision: rev + 1000}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("commit of the leader under a failing condition: %v, want ErrConflict", err)
	}
	must(t, first.Resign(ctx)) // long over: it must not end the second
	must(t, commit(second.Guard()))
}

func namesakeTakesOver(t *testing.T, s store.Store) {
	ctx := t.Context()
	dead, err := s.Campaign(ctx, "a")
	must(t, err)
	restarted, err := s.Campaign(ctx, "a")
	must(t, err)
	if restarted.Term() <= dead.Term() {
		t.Errorf("term %d after %d, want more", restarted.Term(), dead.Term())
	}
	await(t, "the namesake's leadership to end", dead.Done())
	if _, err := s.Commit(ctx, []store.Cond{dead.Guard()}, []store.Op{{Key: "k", Value: []byte("stale")}}); !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("commit of the dead: %v, want ErrNotLeader", err)
	}
	must(t, dead.Resign(ctx))
	_, err = s.Commit(ctx, []store.Cond{restarted.Guard()}, []store.Op{{Key: "k", Value: []byte("1")}})
	must(t, err)
}

func campaignEndsWithContext(t *testing.T, s store.Store) {
	_, err := s.Campaign(t.Context(), "a")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, 1)
	go func() {
		_, err := s.Campaign(ctx, "b")
		errs <- err
	}()
	cancel()
	if err := await(t, "the campaign to end", errs); !errors.Is(err, context.Canceled) {
		t.Errorf("Campaign: %v, want context.Canceled", err)
	}
}

func electionKeyIsReserved(t *testing.T, s store.Store) {
	ctx := t.Context()
	l, err := s.Campaign(ctx, "server-1")
	must(t, err)
	e, ok, err := s.Get(ctx, store.ElectionKey)
	must(t, err)
	equal(t, e, store.Entry{Key: store.ElectionKey, Value: []byte("server-1"), Revision: l.Term()})
	if !ok {
		t.Error("the election key is missing while somebody leads")
	}
	for _, op := range []store.Op{
		{Key: store.ElectionKey, Value: []byte("usurper")},
		{Key: store.ElectionKey, Delete: true},
		{Key: store.ElectionKey[:2], DeletePrefix: true},
		{Key: "", DeletePrefix: true},
	} {
		if _, err := s.Commit(ctx, nil, []store.Op{op}); err == nil {
			t.Errorf("a commit wrote the election key by %+v", op)
		}
	}
}
