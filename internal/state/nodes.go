package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// PutNode stores what a node's agent reported. A known node keeps its FirstSeenAt; when nothing changed, nothing is written,
// so that reconnecting agents cost no disk writes. It returns the revision that holds the record.
func (r *Repo) PutNode(ctx context.Context, node api.NodeRecord) (int64, error) {
	key := prefixNode + node.Name
	for {
		old, found, err := r.store.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read node %q: %w", node.Name, err)
		}
		if found {
			var was api.NodeRecord
			if err := decode(old, &was); err != nil {
				return 0, err
			}
			node.FirstSeenAt = was.FirstSeenAt
		}
		op := put(key, node)
		if found && bytes.Equal(op.Value, old.Value) {
			return old.Revision, nil
		}
		revision, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: old.Revision}}, []store.Op{op})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store node %q: %w", node.Name, err)
		}
		return revision, nil
	}
}

// DeleteNode takes a node out of the inventory; one that is not there is no error. Whether it still holds members is for the
// caller to know.
func (r *Repo) DeleteNode(ctx context.Context, name string) error {
	if _, err := r.store.Commit(ctx, nil, []store.Op{{Key: prefixNode + name, Delete: true}}); err != nil {
		return fmt.Errorf("delete node %q: %w", name, err)
	}
	return nil
}

// Nodes returns all nodes, by name.
func (r *Repo) Nodes(ctx context.Context) ([]api.NodeRecord, error) {
	return list[api.NodeRecord](ctx, r, prefixNode)
}
