package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// SetDrain keeps new members away from a node since at. One that is drained already keeps its time, and its reason when no other is
// given. It returns what is stored with its revision; a node that does not exist is ErrNotFound.
func (r *Repo) SetDrain(ctx context.Context, node, reason, by string, at time.Time) (api.NodeControl, int64, error) {
	return r.control(ctx, node, func(c *api.NodeControl) {
		switch {
		case !c.Drained, c.Stay, c.Window != "": // it is the operator's drain from now on
			c.Drained, c.Stay, c.Window, c.Reason, c.By, c.Since = true, false, "", reason, by, at
		case reason != "" && reason != c.Reason:
			c.Reason, c.By = reason, by
		}
	})
}

// Undrain lets a node get members again; one that is not drained is no error. A node that does not exist is ErrNotFound. It returns the
// revision from which on it is so.
func (r *Repo) Undrain(ctx context.Context, node string) (int64, error) {
	_, revision, err := r.control(ctx, node, func(c *api.NodeControl) {
		c.Drained, c.Stay, c.Window, c.Reason, c.By, c.Since = false, false, "", "", "", time.Time{}
	})
	return revision, err
}

// ChangeControl changes what operators want of a node, by policy or for a maintenance window, as change says of what is stored; nil changes
// nothing. A node that does not exist is ErrNotFound. It returns what is stored then, and the revision from which on it is so.
func (r *Repo) ChangeControl(ctx context.Context, node string, change func(api.NodeControl) (*api.NodeControl, error)) (api.NodeControl, int64, error) {
	var failed error
	control, revision, err := r.control(ctx, node, func(c *api.NodeControl) {
		next, err := change(*c)
		if failed = err; err == nil && next != nil {
			*c = *next
		}
	})
	return control, revision, cmp.Or(err, failed)
}

// TrustBuilder makes a node a trusted builder since at. One that is already keeps its time. A node that does not exist is ErrNotFound. It
// returns the revision from which on it is so.
func (r *Repo) TrustBuilder(ctx context.Context, node, by string, at time.Time) (int64, error) {
	_, revision, err := r.control(ctx, node, func(c *api.NodeControl) {
		if c.Builder == nil {
			c.Builder = &api.BuilderTrust{By: by, Since: at}
		}
	})
	return revision, err
}

// DistrustBuilder makes a node a trusted builder no longer; one that is none is no error. A node that does not exist is ErrNotFound. It
// returns the revision from which on it is so.
func (r *Repo) DistrustBuilder(ctx context.Context, node string) (int64, error) {
	_, revision, err := r.control(ctx, node, func(c *api.NodeControl) { c.Builder = nil })
	return revision, err
}

// control changes what operators want of a node by compare-and-swap, and removes it when that is nothing. It returns what is wanted, and the
// revision from which on it is so. A node that does not exist is ErrNotFound.
func (r *Repo) control(ctx context.Context, node string, change func(*api.NodeControl)) (api.NodeControl, int64, error) {
	key := prefixControl + node
	for {
		known, err := r.nodeExists(ctx, node)
		if err != nil {
			return api.NodeControl{}, 0, err
		}
		was, revision, err := get[api.NodeControl](ctx, r, key, "what operators want of node", node)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return api.NodeControl{}, 0, err
		}
		was.Name = node
		next := was
		if change(&next); reflect.DeepEqual(next, was) {
			return was, max(revision, known.Revision), nil
		}
		conds := []store.Cond{known, {Key: key, Revision: revision}}
		committed, err := r.store.Commit(ctx, conds, []store.Op{writeControl(node, next)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return api.NodeControl{}, 0, fmt.Errorf("store what operators want of node %q: %w", node, err)
		}
		return next, committed, nil
	}
}

// writeControl writes what operators want of a node, or removes it when that is nothing.
func writeControl(node string, control api.NodeControl) store.Op {
	if !control.Drained && control.Builder == nil && len(control.Findings) == 0 && len(control.Windows) == 0 {
		return store.Op{Key: prefixControl + node, Delete: true}
	}
	return put(prefixControl+node, control)
}

// nodeExists returns the condition that a node is still there: by what its agent said, or as a machine whose agent has never called.
func (r *Repo) nodeExists(ctx context.Context, node string) (store.Cond, error) {
	_, revision, err := get[api.NodeRecord](ctx, r, prefixNode+node, "node", node)
	if err == nil {
		return store.Cond{Key: prefixNode + node, Revision: revision}, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return store.Cond{}, err
	}
	_, revision, none := get[api.MachineIntent](ctx, r, prefixMachine+node, "node", node)
	if none != nil {
		return store.Cond{}, none
	}
	return store.Cond{Key: prefixMachine + node, Revision: revision}, nil
}
