package state_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// asksFor changes the volumes that a cluster asks for.
func (w *world) asksFor(cluster string, volumes ...api.VolumeAttachment) (int64, error) {
	_, revision, err := w.repo.UpdateIntent(w.Context(), cluster, "", func(in *api.ClusterIntent) error {
		in.Spec.Volumes = volumes
		return nil
	})
	return revision, err
}

func TestADetachedVolumeIsInUseUntilTheRecordSaysThatNobodyHasIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		for _, name := range []string{"data", "more"} {
			w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", name), anyVolume))
		}
		data := api.VolumeAttachment{Name: "data"}
		w.reach(w.repo.CreateCluster(ctx, attaching("c2")))
		w.reach(w.asksFor("c2", data))
		if err := func() error {
			_, err := w.asksFor("c2", api.VolumeAttachment{Name: "data", ReadOnly: true})
			return err
		}(); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "detach it first to attach it in another way") {
			t.Errorf("another way to attach it, at once: %v", err)
		}
		w.reach(w.asksFor("c2"))
		c2 := func() *state.Cluster { return w.cache.Cluster("c2") }
		if d := c2().Detaching(); len(d) != 1 || d[0].UID != "volume-data" || d[0].Number != 2 {
			t.Errorf("it detaches %+v", d)
		}
		inUse := func(what string, want bool) {
			t.Helper()
			_, err := w.repo.CreateCluster(ctx, attaching("other", "data"))
			if errors.Is(err, state.ErrInUse) != want {
				t.Errorf("%s: another writer gets %v", what, err)
			}
			if _, err := w.deletes("data"); want && !errors.Is(err, state.ErrInUse) {
				t.Errorf("%s: its deletion gets %v", what, err)
			}
		}
		inUse("without a record", true)
		notes := func(detached ...api.VolumeDetach) {
			t.Helper()
			rec := api.ClusterRecord{Name: "c2", UID: c2().UID(), Generation: 1, Phase: api.ClusterQueued, Detached: detached}
			if old := c2().Record; old != nil {
				rec.Generation = old.Generation
			}
			w.reach(w.leader.Commit(ctx, c2(), state.Write{Record: rec}))
		}
		notes(api.VolumeDetach{UID: "volume-data", Number: 1})
		inUse("with the record of an earlier detach", true)

		// What is wanted again is not detached; what is wanted in another way has to wait.
		var still *state.DetachingError
		if _, err := w.asksFor("c2", api.VolumeAttachment{Name: "data", Path: "/else"}); !errors.As(err, &still) || still.Volume != data {
			t.Errorf("another path meanwhile: %v", err)
		}
		w.reach(w.asksFor("c2", data))
		if d := c2().Detaching(); len(d) != 0 {
			t.Errorf("it is wanted again, and it detaches %+v", d)
		}
		w.reach(w.asksFor("c2"))
		w.reach(w.asksFor("c2", api.VolumeAttachment{Name: "more"})) // the other one stays to be detached
		d := c2().Detaching()
		if len(d) != 1 || d[0].Number != 4 {
			t.Fatalf("it detaches %+v", d)
		}
		notes(d...)
		if got := w.cache.View().ClustersWithVolume(w.cache.View().VolumeNamed("data")); len(got) != 0 {
			t.Errorf("the volume is attached to %v", got)
		}
		inUse("once nobody has it", false)
		w.reach(w.asksFor("c2"))
		if d := c2().Intent.Detaching; len(d) != 1 || d[0].Name != "more" {
			t.Errorf("the intent keeps %+v, and data was detached", d)
		}
	})
}
