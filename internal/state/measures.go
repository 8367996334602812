package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// PutMeasures stores what was measured of a node in place of what was before, and returns the revision from which on it is so. A node that is gone is
// store.ErrConflict or ErrNotFound.
func (l *Leader) PutMeasures(ctx context.Context, m api.NodeMeasures) (int64, error) {
	known, err := l.repo.nodeExists(ctx, m.Node)
	if err != nil {
		return 0, err
	}
	revision, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard(), known}, []store.Op{put(prefixMeasures+m.Node, m)})
	if err != nil {
		return 0, fmt.Errorf("store what was measured of node %q: %w", m.Node, err)
	}
	return revision, nil
}
