package state_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// datasetOf is a dataset of a project.
func datasetOf(project, name string) api.Dataset {
	full := state.DatasetName(project, name)
	return api.Dataset{Name: full, UID: "dataset-" + full, Project: project, Files: []api.DatasetFile{{Path: "f"}}, Sealed: []byte{1}, CreatedAt: now}
}

// reading is the intent of a cluster whose members have a dataset.
func reading(name, dataset string) api.ClusterIntent {
	in := onNetworks(name, "storage")
	in.Spec.Groups[0].Datasets = []string{dataset}
	return in
}

func TestADatasetIsOfItsProjectAndKeptWhileClustersAskForIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
		w.reach(w.repo.CreateDataset(ctx, datasetOf("physics", "events")))
		if _, err := w.repo.CreateDataset(ctx, datasetOf("physics", "events")); !errors.Is(err, state.ErrExists) {
			t.Errorf("a second dataset of one name: %v", err)
		}
		if _, err := w.repo.CreateDataset(ctx, datasetOf("nobody", "events")); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("a dataset of a project that does not exist: %v", err)
		}
		if _, err := w.repo.CreateCluster(ctx, reading("c2", "events")); !errors.Is(err, state.ErrNoDataset) {
			t.Errorf("a cluster asks for another project's dataset: %v", err)
		}
		if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "1 dataset (physics.events)") {
			t.Errorf("a project with a dataset is deleted: %v", err)
		}
		w.reach(w.repo.CreateDataset(ctx, datasetOf("default", "events")))
		w.reach(w.repo.CreateCluster(ctx, reading("c2", "events")))
		if _, err := w.repo.DeleteDataset(ctx, "events"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "c2") {
			t.Errorf("a dataset that a cluster asks for is deleted: %v", err)
		}
		w.reach(w.repo.DeleteDataset(ctx, "physics.events"))
		if w.cache.View().Dataset("physics.events") != nil {
			t.Error("a deleted dataset is still there")
		}
	})
}

func TestADeletionOfADatasetAndItsUseDoNotPassEachOther(t *testing.T) {
	uses := map[string]func(w *world, name string) error{
		"a new cluster": func(w *world, name string) error {
			_, err := w.repo.CreateCluster(w.Context(), reading("c-"+name, name))
			return err
		},
		"a new group of a cluster": func(w *world, name string) error {
			_, _, err := w.repo.UpdateIntent(w.Context(), "c1", "", func(in *api.ClusterIntent) error {
				in.Spec.Groups = append(slices.Clone(in.Spec.Groups), reading("more", name).Spec.Groups...)
				return nil
			})
			return err
		},
	}
	for what, use := range uses {
		t.Run(what, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, s store.Store) {
				w := newWorld(t, s)
				ctx := w.Context()
				for _, name := range []string{"first", "last"} {
					w.reach(w.repo.CreateDataset(ctx, datasetOf("default", name)))
				}
				w.meanwhile(func() error { return use(w, "first") })
				if _, err := w.repo.DeleteDataset(ctx, "first"); !errors.Is(err, state.ErrInUse) {
					t.Errorf("a deletion passes a use that came at the same moment: %v", err)
				}
				w.meanwhile(func() error { _, err := w.repo.DeleteDataset(ctx, "last"); return err })
				if err := use(w, "last"); !errors.Is(err, state.ErrNoDataset) {
					t.Errorf("a use passes a deletion that came at the same moment: %v", err)
				}
			})
		})
	}
}

func TestAChangeOfADatasetKeepsFilesAndCredential(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateDataset(ctx, datasetOf("default", "events")))
		d, revision, err := w.repo.ChangeDataset(ctx, "events", "dataset-events", func(d *api.Dataset) error {
			d.Nodes, d.Files, d.Sealed = []string{"n1"}, nil, nil
			return nil
		})
		w.reach(revision, err)
		if !slices.Equal(d.Nodes, []string{"n1"}) || len(d.Files) != 1 || len(d.Sealed) != 1 {
			t.Errorf("changed to %+v, want the node, and files and credential as they were", d)
		}
		if _, _, err := w.repo.ChangeDataset(ctx, "events", "another", func(*api.Dataset) error { return nil }); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a change of a dataset that was made anew: %v", err)
		}
	})
}
