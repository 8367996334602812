package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Importing reports whether the volume still waits for the backup that it is made of. It has content once its record says that it was made, and users
// see it as ready from then on.
func (v *Volume) Importing() bool { return importing(&v.Intent, v.Record) }

func importing(in *api.VolumeIntent, rec *api.VolumeRecord) bool {
	return in.Origin.IsUpload() && (rec == nil || !rec.Made)
}

// importing reads whether a volume still waits for its backup, and the condition that this is still so.
func (r *Repo) importing(ctx context.Context, v *api.VolumeIntent) (bool, store.Cond, error) {
	key := prefixVolumeRecord + v.UID
	if !v.Origin.IsUpload() {
		return false, store.Cond{}, nil
	}
	rec, revision, err := get[api.VolumeRecord](ctx, r, key, "record of volume", v.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return false, store.Cond{}, err
	}
	return importing(v, &rec), store.Cond{Key: key, Revision: revision}, nil
}

// GiveUpImport marks a volume that still waits for its backup as deleted, to be purged at once. It never deletes one that has become whole, at the same
// moment included: that is ErrNotImporting.
func (r *Repo) GiveUpImport(ctx context.Context, name, uid string, at time.Time) (api.VolumeIntent, int64, error) {
	key := prefixVolumeIntent + name
	for {
		v, revision, err := r.volumeOf(ctx, name, uid)
		if err != nil {
			return v, 0, err
		}
		waits, made, err := r.importing(ctx, &v)
		switch {
		case err != nil:
			return v, 0, err
		case !waits:
			return v, 0, fmt.Errorf("volume %q %w", ownName(name), ErrNotImporting)
		case v.DeleteRequestedAt != nil && v.PurgeAt != nil && !at.Before(*v.PurgeAt):
			return v, revision, nil
		}
		if v.DeleteRequestedAt == nil {
			v.DeleteRequestedAt = &at
		}
		v.PurgeAt = &at
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}, made}, []store.Op{put(key, v)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return v, 0, fmt.Errorf("give up the import of volume %q: %w", name, err)
		}
		failpoint.Hit("state.after-import-given-up")
		return v, next, nil
	}
}
