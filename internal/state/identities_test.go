package state_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// identity is what a node brings that enrolls with a key.
func identity(node, key string) api.NodeIdentity {
	return api.NodeIdentity{Node: node, ID: "id of " + key, Key: key, EnrolledAt: now, RenewedAt: now, EndsAt: now.Add(time.Hour)}
}

// enrolls enrolls a node by the token e1, whose secret it shows.
func (w *world) enrolls(node, key, secret string) (api.NodeIdentity, error) {
	w.Helper()
	in := identity(node, key)
	in.Token = "e1"
	out, rev, err := w.repo.EnrollNode(w.Context(), in, func(hash []byte) bool { return string(hash) == secret })
	if err == nil {
		w.reach(rev, nil)
	}
	return out, err
}

func (w *world) enrollToken(change func(*api.EnrollmentToken)) {
	w.Helper()
	token := api.EnrollmentToken{ID: "e1", Prefix: "n", Uses: 2, Hash: []byte("secret"), By: "ann", ExpiresAt: now.Add(time.Hour)}
	change(&token)
	w.reach(w.repo.CreateEnrollToken(w.Context(), token))
}

func TestANodeEnrollsWithAUseOfAToken(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.enrollToken(func(*api.EnrollmentToken) {})
		got, err := w.enrolls("n1", "k1", "secret")
		must(t, err)
		if got.ApprovedAt != nil || got.EnrolledBy != "enrollment token e1 of ann" || got.ID != "id of k1" {
			t.Errorf("enrolled as %+v; want it to wait for approval", got)
		}
		equal(t, w.cache.View().EnrollToken("e1").Uses, 1)
		if stored := w.cache.View().Node("n1").Identity; stored == nil || stored.Key != "k1" {
			t.Errorf("stored is %+v", stored)
		}

		// The same key again, after an answer that was lost: no other use, and the same identity.
		again := identity("n1", "k1")
		again.ID, again.Token = "another", "e1"
		out, rev, err := w.repo.EnrollNode(t.Context(), again, func([]byte) bool { return false })
		w.reach(rev, err)
		equal(t, out.ID, "id of k1")
		equal(t, w.cache.View().EnrollToken("e1").Uses, 1)

		for name, err := range map[string]error{
			"another key":      second(w.enrolls("n1", "k2", "secret")),
			"its secret wrong": second(w.enrolls("n2", "k2", "guessed")),
		} {
			if err == nil {
				t.Errorf("%s: enrolled", name)
			}
		}
		if _, err := w.enrolls("n1", "k2", "secret"); !errors.Is(err, state.ErrOtherMachine) {
			t.Errorf("a second node of the name: %v, want ErrOtherMachine", err)
		}
		must(t, second(w.enrolls("n2", "k2", "secret")))
		if _, err := w.enrolls("n3", "k3", "secret"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a token that is used up: %v, want ErrNotFound", err)
		}
		must(t, second(w.enrolls("n2", "k2", "secret"))) // what was its last use, asked for again
	})
}

// second is the error of a call that returns something with it.
func second[T any](_ T, err error) error { return err }

func TestATokenEnrollsWhatItIsForAndNothingElse(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.enrollToken(func(e *api.EnrollmentToken) { e.Approve, e.Uses = true, 9 })
		if got, err := w.enrolls("n1", "k1", "secret"); err != nil || got.ApprovedAt == nil || got.ApprovedBy != "enrollment token e1 of ann" {
			t.Errorf("by a token that approves: %+v, %v", got, err)
		}
		if _, err := w.enrolls("login", "k2", "secret"); !errors.Is(err, state.ErrTokenName) {
			t.Errorf("another name: %v, want ErrTokenName", err)
		}
		if _, err := w.enrolls("n2", "k2", "guessed"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a wrong secret: %v, want ErrNotFound", err)
		}
		late := identity("n2", "k2")
		late.Token, late.EnrolledAt = "e1", now.Add(time.Hour)
		if _, _, err := w.repo.EnrollNode(t.Context(), late, func([]byte) bool { return true }); !errors.Is(err, state.ErrTokenSpent) {
			t.Errorf("a token that has ended: %v, want ErrTokenSpent", err)
		}
		w.reach(w.repo.CreateMachine(t.Context(), machine("n5", mac1)))
		if _, err := w.enrolls("n5", "k5", "secret"); !errors.Is(err, state.ErrOtherMachine) {
			t.Errorf("the name of a machine: %v, want ErrOtherMachine", err)
		}
		if _, err := w.repo.CreateMachine(t.Context(), machine("n1", mac2)); !errors.Is(err, state.ErrExists) {
			t.Errorf("a machine by the name of an enrolled node: %v, want ErrExists", err)
		}
	})
}

func TestAKeyIsReplacedByTheNextOnceThatIsUsed(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		_, rev, err := w.repo.EnrollNode(ctx, identity("n1", "k1"), nil)
		w.reach(rev, err)
		renew := func(id, shown, next string) error {
			_, _, err := w.repo.RenewNode(ctx, "n1", id, shown, next, now.Add(time.Minute), now.Add(time.Hour))
			return err
		}
		must(t, renew("id of k1", "k1", "lost")) // whose answer is lost
		must(t, renew("id of k1", "k1", "k2"))
		if err := renew("id of k1", "lost", "k3"); !errors.Is(err, state.ErrKeyReplaced) {
			t.Errorf("a key that was never used: %v, want ErrKeyReplaced", err)
		}
		must(t, second(w.repo.UseKey(ctx, "n1", "id of k1", "k1"))) // still good
		must(t, second(w.repo.UseKey(ctx, "n1", "id of k1", "k2")))
		for name, err := range map[string]error{
			"used again": second(w.repo.UseKey(ctx, "n1", "id of k1", "k1")), "renewed by": renew("id of k1", "k1", "k3"),
		} {
			if !errors.Is(err, state.ErrKeyReplaced) {
				t.Errorf("the former key, %s: %v, want ErrKeyReplaced", name, err)
			}
		}
		before := w.cache.View().Node("n1").Identity
		rev, err = w.repo.UseKey(ctx, "n1", "id of k1", "k2")
		w.reach(rev, err)
		if after := w.cache.View().Node("n1").Identity; after.Key != "k2" || after.Next != "" || before.Key == "k2" && after != before {
			t.Errorf("used twice: %+v", after)
		}
		must(t, renew("id of k1", "k2", "k3"))
		must(t, renew("id of k1", "k3", "k4")) // by one that was not used for anything else
		if err := renew("id of another", "k3", "k5"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("by the identity of another: %v, want ErrNotFound", err)
		}
	})
}

func TestANodeIsApprovedOnceAndRevoked(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		if _, _, err := w.repo.ApproveNode(ctx, "n1", "ann", now); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("no node: %v, want ErrNotFound", err)
		}
		_, rev, err := w.repo.EnrollNode(ctx, identity("n1", "k1"), nil)
		w.reach(rev, err)
		_, rev, err = w.repo.ApproveNode(ctx, "n1", "ann", now)
		w.reach(rev, err)
		_, rev, err = w.repo.ApproveNode(ctx, "n1", "bob", now.Add(time.Hour))
		w.reach(rev, err)
		if in := w.cache.View().Node("n1").Identity; in.ApprovedBy != "ann" || !in.ApprovedAt.Equal(now) {
			t.Errorf("approved twice: %+v, want the first", in)
		}
		w.reach(w.repo.RevokeNode(ctx, "n1"))
		if w.cache.View().Node("n1") != nil {
			t.Error("the identity is still there")
		}
		for name, err := range map[string]error{
			"used": second(w.repo.UseKey(ctx, "n1", "id of k1", "k1")), "revoked again": second(w.repo.RevokeNode(ctx, "n1")),
		} {
			if !errors.Is(err, state.ErrNotFound) {
				t.Errorf("a revoked identity, %s: %v, want ErrNotFound", name, err)
			}
		}
	})
}
