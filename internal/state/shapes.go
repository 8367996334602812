package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// PutShape makes a named shape, or replaces it.
func (r *Repo) PutShape(ctx context.Context, shape api.NamedShape) (int64, error) {
	revision, err := r.store.Commit(ctx, nil, []store.Op{put(prefixShape+shape.Name, shape)})
	if err != nil {
		return 0, fmt.Errorf("store shape %q: %w", shape.Name, err)
	}
	return revision, nil
}

// DeleteShape removes a named shape; one that is not there is ErrNotFound. Clusters that were made with it keep what they have.
func (r *Repo) DeleteShape(ctx context.Context, name string) (int64, error) {
	for {
		_, revision, err := get[api.NamedShape](ctx, r, prefixShape+name, "shape", name)
		if err != nil {
			return 0, err
		}
		next, err := r.store.Commit(ctx, []store.Cond{{Key: prefixShape + name, Revision: revision}}, []store.Op{{Key: prefixShape + name, Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete shape %q: %w", name, err)
		}
		return next, nil
	}
}
