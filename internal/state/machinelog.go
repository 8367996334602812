package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CommitMachineLog stores how far the event log of a machine's BMC was read, and in the same commit the events that tell what was in it: each
// entry is told once, whatever crashes in between. base is what the reading went on from; another mark since then is store.ErrConflict. There may
// be at most MaxLogEvents events, all of the machine's log.
func (l *Leader) CommitMachineLog(ctx context.Context, base *Machine, mark api.BMCLogMark, events []api.Event) (int64, error) {
	if len(events) > MaxLogEvents {
		return 0, fmt.Errorf("store the event log of machine %q: %d events are more than %d", base.Name(), len(events), MaxLogEvents)
	}
	conds := []store.Cond{
		l.leadership.Guard(), {Key: prefixMachine + base.Name(), Revision: base.intentRevision}, {Key: prefixMachineLog + base.Name(), Revision: base.logRevision},
	}
	ops := []store.Op{put(prefixMachineLog+base.Name(), api.BMCLogRecord{UID: base.UID(), Mark: mark})}
	if len(events) > 0 {
		also, more, err := l.repo.appended(ctx, events)
		if err != nil {
			return 0, fmt.Errorf("store the event log of machine %q: %w", base.Name(), err)
		}
		conds, ops = append(conds, also...), append(ops, more...)
	}
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("store the event log of machine %q: %w", base.Name(), err)
	}
	return revision, nil
}

// MaxLogEvents is how many events one commit of a BMC's log takes: each may push an old one out.
const MaxLogEvents = 40
