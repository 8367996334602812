package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// SetDrain keeps new members away from a node since at. One that is drained already keeps its time, and its reason when no other is
// given. It returns what is stored with its revision; a node that does not exist is ErrNotFound.
func (r *Repo) SetDrain(ctx context.Context, node, reason, by string, at time.Time) (api.NodeControl, int64, error) {
	key := prefixControl + node
	for {
		known, err := r.nodeExists(ctx, node)
		if err != nil {
			return api.NodeControl{}, 0, err
		}
		control, revision, err := get[api.NodeControl](ctx, r, key, "drain of node", node)
		switch {
		case errors.Is(err, ErrNotFound):
			control = api.NodeControl{Name: node, Drained: true, Reason: reason, By: by, Since: at}
		case err != nil:
			return api.NodeControl{}, 0, err
		case reason == "" || reason == control.Reason:
			return control, revision, nil
		default:
			control.Reason, control.By = reason, by
		}
		conds := []store.Cond{known, {Key: key, Revision: revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{put(key, control)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return api.NodeControl{}, 0, fmt.Errorf("drain node %q: %w", node, err)
		}
		return control, next, nil
	}
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

// Undrain lets a node get members again; one that is not drained is no error. A node that does not exist is ErrNotFound. It returns the
// revision from which on it is so.
func (r *Repo) Undrain(ctx context.Context, node string) (int64, error) {
	if _, err := r.nodeExists(ctx, node); err != nil {
		return 0, err
	}
	revision, err := r.store.Commit(ctx, nil, []store.Op{{Key: prefixControl + node, Delete: true}})
	if err != nil {
		return 0, fmt.Errorf("end the drain of node %q: %w", node, err)
	}
	return revision, nil
}
