package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CommitFaults stores the hardware errors of a node that people are told of, with the events that tell them. base is the node as it was looked at;
// other errors noted since then are store.ErrConflict, and so is a node that is gone. There may be at most MaxLogEvents events.
func (l *Leader) CommitFaults(ctx context.Context, base *Node, record api.FaultRecord, events []api.Event) (int64, error) {
	if len(events) > MaxLogEvents {
		return 0, fmt.Errorf("store the hardware errors of node %q: %d events are more than %d", base.Name, len(events), MaxLogEvents)
	}
	known, err := l.repo.nodeExists(ctx, base.Name)
	if err != nil {
		return 0, err
	}
	conds := []store.Cond{l.leadership.Guard(), known, {Key: prefixFaults + base.Name, Revision: base.faultsRevision}}
	ops := []store.Op{put(prefixFaults+base.Name, record)}
	if len(events) > 0 {
		also, more, err := l.repo.appended(ctx, events)
		if err != nil {
			return 0, fmt.Errorf("store the hardware errors of node %q: %w", base.Name, err)
		}
		conds, ops = append(conds, also...), append(ops, more...)
	}
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("store the hardware errors of node %q: %w", base.Name, err)
	}
	return revision, nil
}
