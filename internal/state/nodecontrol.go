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
		_, known, err := get[api.NodeRecord](ctx, r, prefixNode+node, "node", node)
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
		conds := []store.Cond{{Key: prefixNode + node, Revision: known}, {Key: key, Revision: revision}}
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

// Undrain lets a node get members again; one that is not drained is no error. A node that does not exist is ErrNotFound. It returns the
// revision from which on it is so.
func (r *Repo) Undrain(ctx context.Context, node string) (int64, error) {
	if _, _, err := get[api.NodeRecord](ctx, r, prefixNode+node, "node", node); err != nil {
		return 0, err
	}
	revision, err := r.store.Commit(ctx, nil, []store.Op{{Key: prefixControl + node, Delete: true}})
	if err != nil {
		return 0, fmt.Errorf("end the drain of node %q: %w", node, err)
	}
	return revision, nil
}
