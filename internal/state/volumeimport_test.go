package state_test

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// awaited is a volume of the default project that is made of a backup.
func awaited(name string) api.VolumeIntent {
	in := volumeIntent("default", name)
	in.Origin = &api.VolumeOrigin{Upload: true}
	return in
}

// makes notes that a volume is whole.
func (w *world) makes(uid string) error {
	v := w.cache.View().Volume(uid)
	rec := *v.Record
	rec.Generation++
	rec.Made = true
	_, err := w.leader.CommitVolume(w.Context(), v, rec, nil)
	return err
}

func TestAnImportIsGivenUpOnlyBeforeTheVolumeIsWhole(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		giveUp := func(name string) (api.VolumeIntent, int64, error) { return w.repo.GiveUpImport(ctx, name, "", now) }
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "empty"), anyVolume))
		w.reach(w.repo.CreateVolume(ctx, awaited("unplaced"), anyVolume))
		w.reach(w.repo.CreateVolume(ctx, awaited("placed"), anyVolume))
		w.reach(w.repo.CreateVolume(ctx, awaited("whole"), anyVolume))
		w.placed("volume-placed", "n1")
		w.placed("volume-whole", "n1")
		if _, _, err := giveUp("empty"); !errors.Is(err, state.ErrNotImporting) {
			t.Errorf("a volume that began empty: %v", err)
		}
		for _, name := range []string{"unplaced", "placed"} {
			if v := w.cache.View().VolumeNamed(name); !v.Importing() {
				t.Errorf("volume %s does not wait for its backup", name)
			}
			for range 2 {
				v, revision, err := giveUp(name)
				w.reach(revision, err)
				if v.DeleteRequestedAt == nil || v.PurgeAt == nil || v.PurgeAt.After(now) {
					t.Errorf("volume %s was given up as %+v", name, v)
				}
			}
		}
		w.meanwhile(func() error { return w.makes("volume-whole") })
		if v, _, err := giveUp("whole"); !errors.Is(err, state.ErrNotImporting) {
			t.Errorf("a volume that became whole at the same moment was given up: %+v, %v", v, err)
		}
	})
}

func TestNoClusterGetsAVolumeThatWaitsForItsBackup(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.reach(w.repo.CreateVolume(w.Context(), awaited("data"), anyVolume))
		asks := func() error {
			_, err := w.repo.CreateCluster(w.Context(), attaching("c9", "data"))
			return err
		}
		if err := asks(); !errors.Is(err, state.ErrImporting) {
			t.Errorf("without a node: %v", err)
		}
		w.placed("volume-data", "n1")
		if err := asks(); !errors.Is(err, state.ErrImporting) {
			t.Errorf("on its node: %v", err)
		}
		must(t, w.makes("volume-data"))
		if err := asks(); err != nil {
			t.Errorf("once it is whole: %v", err)
		}
	})
}
