package state

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

var (
	// ErrTokenName: an enrollment token is for other names.
	ErrTokenName = errors.New("the enrollment token is for other names")
	// ErrKeyReplaced: a node showed a key that another has taken the place of.
	ErrKeyReplaced = errors.New("the key of the node was replaced")
)

// EnrollNode stores the identity of a node that has none, with a use of the enrollment token that its Token names, which goes with its last
// use. For the same key again, after an answer that was lost, it only renews the times. A node that is enrolled with another key, or is a
// machine, is ErrOtherMachine. secret tells whether a stored hash is of the token's secret. The token can be ErrNotFound, ErrTokenSpent and
// ErrTokenName. It returns what is stored.
func (r *Repo) EnrollNode(ctx context.Context, in api.NodeIdentity, secret func(hash []byte) bool) (api.NodeIdentity, int64, error) {
	key := prefixIdentity + in.Node
	for {
		was, revision, err := get[api.NodeIdentity](ctx, r, key, "node", in.Node)
		conds, ops := []store.Cond{{Key: key, Revision: revision}}, []store.Op(nil)
		next := in
		switch {
		case err == nil && was.Key == in.Key:
			next = was
			next.RenewedAt, next.EndsAt = in.RenewedAt, in.EndsAt
		case err == nil:
			return api.NodeIdentity{}, 0, fmt.Errorf("node %q is %w; if this machine replaces it, run: nearmetal node revoke %s", in.Node, ErrOtherMachine, in.Node)
		case !errors.Is(err, ErrNotFound):
			return api.NodeIdentity{}, 0, err
		default:
			if conds, ops, err = r.newIdentity(ctx, &next, secret); err != nil {
				return api.NodeIdentity{}, 0, err
			}
			conds = append(conds, store.Cond{Key: key})
		}
		failpoint.Hit("state.before-enroll-node")
		committed, err := r.store.Commit(ctx, conds, append(ops, put(key, next)))
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return api.NodeIdentity{}, 0, fmt.Errorf("enroll node %q: %w", in.Node, err)
		}
		failpoint.Hit("state.after-enroll-node")
		return next, committed, nil
	}
}

// newIdentity is what goes with a node's first identity: it is no machine, and its enrollment token is used.
func (r *Repo) newIdentity(ctx context.Context, in *api.NodeIdentity, secret func(hash []byte) bool) ([]store.Cond, []store.Op, error) {
	machine := prefixMachine + in.Node
	_, taken, err := r.store.Get(ctx, machine)
	if err != nil {
		return nil, nil, fmt.Errorf("read machine %q: %w", in.Node, err)
	}
	if taken {
		return nil, nil, fmt.Errorf("node %q is %w, which boots from this site and gets its identity then; give this node another --name", in.Node, ErrOtherMachine)
	}
	conds := []store.Cond{{Key: machine}}
	if in.Token == "" {
		return conds, nil, nil
	}
	key := prefixEnrollToken + in.Token
	token, revision, err := get[api.EnrollmentToken](ctx, r, key, "enrollment token", in.Token)
	switch {
	case err != nil:
		return nil, nil, err
	case !secret(token.Hash):
		return nil, nil, fmt.Errorf("enrollment token %q %w", in.Token, ErrNotFound)
	case token.Uses < 1 || !in.EnrolledAt.Before(token.ExpiresAt):
		return nil, nil, fmt.Errorf("%w: %q", ErrTokenSpent, in.Token)
	case !strings.HasPrefix(in.Node, token.Prefix):
		return nil, nil, fmt.Errorf("%w: names that begin with %q", ErrTokenName, token.Prefix)
	}
	in.EnrolledBy = "enrollment token " + token.ID + " of " + token.By
	if token.Approve {
		in.ApprovedAt, in.ApprovedBy = &in.EnrolledAt, in.EnrolledBy
	}
	op := store.Op{Key: key, Delete: true}
	if token.Uses--; token.Uses > 0 {
		op = put(key, token)
	}
	return append(conds, store.Cond{Key: key, Revision: revision}), []store.Op{op}, nil
}

// RenewNode makes next the key that a node is about to use, for one that shows that it has the key that it names. It is used from its first
// connection on (UseKey); until then the former is good, too, since the answer may be lost. A node that has no identity, or one of another
// ID, is ErrNotFound, and a key that was replaced ErrKeyReplaced.
func (r *Repo) RenewNode(ctx context.Context, node, id, shown, next string, at, ends time.Time) (api.NodeIdentity, int64, error) {
	out, revision, _, err := update(ctx, r, prefixIdentity+node, "node", node, nil, func(in *api.NodeIdentity) error {
		if err := mayUse(in, id, shown); err != nil {
			return err
		}
		in.Key, in.Next, in.RenewedAt, in.EndsAt = shown, next, at, ends
		return nil
	})
	failpoint.Hit("state.after-renew-node")
	return out, revision, err
}

// UseKey ends the key before the one that a node shows. Nothing is written when that was done.
func (r *Repo) UseKey(ctx context.Context, node, id, shown string) (int64, error) {
	_, revision, _, err := update(ctx, r, prefixIdentity+node, "node", node, nil, func(in *api.NodeIdentity) error {
		if err := mayUse(in, id, shown); err != nil {
			return err
		}
		if in.Next == shown {
			in.Key, in.Next = shown, ""
		}
		return nil
	})
	return revision, err
}

func mayUse(in *api.NodeIdentity, id, shown string) error {
	switch {
	case in.ID != id:
		return fmt.Errorf("node %q %w: it was enrolled again", in.Node, ErrNotFound)
	case shown != in.Key && shown != in.Next:
		return fmt.Errorf("node %q: %w on %s", in.Node, ErrKeyReplaced, in.RenewedAt.UTC().Format(time.DateTime))
	}
	return nil
}

// ApproveNode lets a node that has enrolled in; one that was approved before stays as it is. A node without an identity is ErrNotFound.
func (r *Repo) ApproveNode(ctx context.Context, node, by string, at time.Time) (api.NodeIdentity, int64, error) {
	out, revision, _, err := update(ctx, r, prefixIdentity+node, "node", node, nil, func(in *api.NodeIdentity) error {
		if in.ApprovedAt == nil {
			in.ApprovedAt, in.ApprovedBy = &at, by
		}
		return nil
	})
	return out, revision, err
}

// RevokeNode takes a node's identity away: nobody speaks for it until it enrolls again, and it is a trusted builder no longer. A node without
// an identity is ErrNotFound.
func (r *Repo) RevokeNode(ctx context.Context, node string) (int64, error) {
	for {
		_, identity, err := get[api.NodeIdentity](ctx, r, prefixIdentity+node, "identity of node", node)
		if err != nil {
			return 0, err
		}
		control, revision, err := get[api.NodeControl](ctx, r, prefixControl+node, "what operators want of node", node)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		control.Builder = nil
		conds := []store.Cond{{Key: prefixIdentity + node, Revision: identity}, {Key: prefixControl + node, Revision: revision}}
		committed, err := r.store.Commit(ctx, conds, []store.Op{{Key: prefixIdentity + node, Delete: true}, writeControl(node, control)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("revoke the identity of node %q: %w", node, err)
		}
		return committed, nil
	}
}
