package state

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CommitVolume writes the record of a volume. It is a store.ErrConflict when its intent or its record changed since the view of base: a purge and
// an undeletion never pass each other. The use that ended is written with it, nil if none did.
func (l *Leader) CommitVolume(ctx context.Context, base *Volume, rec api.VolumeRecord, used *api.UsageRecord) (int64, error) {
	if rec.UID != base.UID() || rec.Name != base.Name() {
		return 0, fmt.Errorf("the record of volume %q (%s) can't be written to volume %q (%s)", rec.Name, rec.UID, base.Name(), base.UID())
	}
	if was := base.Record; was != nil && (rec.Generation <= was.Generation || rec.Node != was.Node || was.Purging && !rec.Purging) {
		return 0, fmt.Errorf("volume %q can't go from generation %d on node %s to generation %d on node %s (purging: %t, %t)",
			rec.Name, was.Generation, was.Node, rec.Generation, rec.Node, was.Purging, rec.Purging)
	}
	conds, ops, err := l.storageUsed(base, used)
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.before-volume-record")
	revision, err := l.repo.store.Commit(ctx, conds, append([]store.Op{put(prefixVolumeRecord+rec.UID, rec)}, ops...))
	if err != nil {
		return 0, fmt.Errorf("store the record of volume %q: %w", rec.Name, err)
	}
	failpoint.Hit("state.after-volume-record")
	return revision, nil
}

// ForgetVolume removes a volume with all that is stored of it. A volume that has a record must be purging: nothing else says that nothing is left. The use
// that ended is written with it, nil if none did.
func (l *Leader) ForgetVolume(ctx context.Context, base *Volume, used *api.UsageRecord) (int64, error) {
	if base.Record != nil && !base.Record.Purging {
		return 0, fmt.Errorf("volume %q can't be forgotten: it is not being purged", base.Name())
	}
	conds, usage, err := l.storageUsed(base, used)
	if err != nil {
		return 0, err
	}
	ops := append([]store.Op{{Key: prefixVolumeRecord + base.UID(), Delete: true}, {Key: prefixVolumeUse + base.UID(), Delete: true}}, usage...)
	if base.intentRevision != 0 {
		ops = append(ops, store.Op{Key: prefixVolumeIntent + base.Intent.Name, Delete: true})
	}
	failpoint.Hit("state.before-volume-forgotten")
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("forget volume %q: %w", base.Name(), err)
	}
	failpoint.Hit("state.after-volume-forgotten")
	return revision, nil
}

// storageUsed returns the conditions of a commit decided on base, and the write of the use that ends with it.
func (l *Leader) storageUsed(base *Volume, used *api.UsageRecord) ([]store.Cond, []store.Op, error) {
	conds := l.volumeConds(base)
	switch {
	case used == nil:
		return conds, nil, nil
	case used.UID != base.UID() || used.Volume != base.Name() || base.Record == nil || used.Seq <= base.Record.Generation:
		return nil, nil, fmt.Errorf("record %d of the use of volume %q (%s) does not fit volume %q (%s)", used.Seq, used.Volume, used.UID, base.Name(), base.UID())
	}
	op := put(keyUsage(used.UID, used.Seq), used)
	return append(conds, store.Cond{Key: op.Key}), []store.Op{op}, nil
}

// volumeConds are the conditions of a commit decided on base: still the leader, intent and record as they were seen.
func (l *Leader) volumeConds(base *Volume) []store.Cond {
	return []store.Cond{
		l.leadership.Guard(),
		{Key: prefixVolumeIntent + base.Name(), Revision: base.intentRevision},
		{Key: prefixVolumeRecord + base.UID(), Revision: base.recordRevision},
	}
}
