package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/store"
)

// RemoveNetworks forgets networks that are over, with their numbers. What is not stored is no error.
func (l *Leader) RemoveNetworks(ctx context.Context, uids ...string) (int64, error) {
	var revision int64
	for len(uids) > 0 {
		n := min(len(uids), store.MaxOps)
		ops := make([]store.Op, 0, n)
		for _, uid := range uids[:n] {
			ops = append(ops, store.Op{Key: prefixNetwork + uid, Delete: true})
		}
		var err error
		if revision, err = l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops); err != nil {
			return 0, fmt.Errorf("remove networks that are over: %w", err)
		}
		uids = uids[n:]
	}
	return revision, nil
}
