package state_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestALayersImageIsInUseUntilTheRecordSaysThatNobodyHasIt(t *testing.T) {
	w := enrolled(t, openMemory(t))
	ctx := t.Context()
	img := image("foam", 1)
	w.reach(w.repo.PutImage(ctx, img))
	w.reach(w.repo.SetEnvironment(ctx, api.EnvironmentRecord{Name: "foam", Digest: img.Digest}))
	layer := api.Layer{Environment: "foam", Path: "/layers/foam", Digest: img.Digest}
	change := func(layers ...api.Layer) api.ClusterIntent {
		t.Helper()
		in, revision, err := w.repo.UpdateIntent(ctx, "c1", "", func(in *api.ClusterIntent) error {
			in.Layers, in.LayersNumber, in.RemovedLayers = layers, 99, nil // which nobody else changes
			return nil
		})
		w.reach(revision, err)
		return in
	}
	inUse := func(when string, want bool) {
		t.Helper()
		users := state.ImageUsers(w.cache.View(), "", img.Digest)
		if got := slices.Contains(users, "cluster c1"); got != want {
			t.Errorf("%s: the image is used by %q", when, users)
		}
		if !want {
			return
		}
		if _, err := w.repo.DeleteEnvironment(ctx, w.cache.View(), "foam"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "cluster c1") {
			t.Errorf("%s: delete of its environment: %v, want ErrInUse by cluster c1", when, err)
		}
	}
	noted := func(number int64) {
		t.Helper()
		rec := w.generation(number, api.ClusterReady)
		rec.LayersNumber = number
		w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec}))
	}

	_, _, err := w.repo.UpdateIntent(ctx, "c1", "", func(in *api.ClusterIntent) error {
		in.Layers = []api.Layer{{Environment: "none", Digest: image("none", 2).Digest}}
		return nil
	})
	if !errors.Is(err, state.ErrNoImage) {
		t.Errorf("a layer without an image: %v, want ErrNoImage", err)
	}

	if in := change(layer); in.LayersNumber != 1 || len(in.RemovedLayers) != 0 {
		t.Errorf("after one was added: %+v", in)
	}
	inUse("it was added", true)
	noted(1)
	in := change()
	if in.LayersNumber != 2 || len(in.RemovedLayers) != 1 || in.RemovedLayers[0] != (api.LayerRemoval{Layer: layer, Number: 2}) {
		t.Errorf("after it was removed: %+v", in)
	}
	inUse("members still have it", true)
	if in := change(layer); in.LayersNumber != 3 || len(in.RemovedLayers) != 0 {
		t.Errorf("after it was added again: %+v", in)
	}
	change()
	inUse("it was removed once more", true)
	noted(4)
	if left := w.c1().RemovedLayers(); len(left) != 0 {
		t.Errorf("members still have %+v", left)
	}
	inUse("no member has it any more", false)
	w.reach(w.repo.DeleteEnvironment(ctx, w.cache.View(), "foam"))
}
