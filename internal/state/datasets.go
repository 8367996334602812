package state

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// datasetUse is written by every commit that stores a cluster which asks for a dataset. The deletion of that dataset depends on its revision, so neither
// passes the other.
type datasetUse struct {
	Newest string `json:"newest"`
}

// DatasetName is the name of a project's dataset among all: NAME in the default project, PROJECT.NAME elsewhere.
func DatasetName(project, name string) string { return NetworkIntentName(project, name) }

// CreateDataset stores a new dataset of a project. A taken name is ErrExists, a project that does not exist ErrNoProject.
func (r *Repo) CreateDataset(ctx context.Context, d api.Dataset) (int64, error) {
	revision, err := r.createIn(ctx, d.Project, put(prefixDataset+d.Name, d), fmt.Sprintf("dataset %q", ownName(d.Name)), func() ([]store.Cond, []store.Op, error) {
		return nil, nil, nil
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-dataset")
	return revision, nil
}

// ChangeDataset changes where a dataset is to be by compare-and-swap: change may be called several times. A dataset of another UID is ErrNotFound: it was
// made anew. Its files and its credential stay as they are.
func (r *Repo) ChangeDataset(ctx context.Context, name, uid string, change func(*api.Dataset) error) (api.Dataset, int64, error) {
	d, revision, _, err := update(ctx, r, prefixDataset+name, "dataset", name, nil, func(d *api.Dataset) error {
		if d.UID != uid {
			return fmt.Errorf("dataset %q %w: it was deleted and created again", ownName(name), ErrNotFound)
		}
		files, sealed := d.Files, d.Sealed
		if err := change(d); err != nil {
			return err
		}
		d.Files, d.Sealed = files, sealed
		return nil
	})
	return d, revision, err
}

// DeleteDataset removes a dataset. It refuses with ErrInUse while a cluster asks for it, one that comes at the same moment included.
func (r *Repo) DeleteDataset(ctx context.Context, name string) (int64, error) {
	key := prefixDataset + name
	for {
		d, revision, err := get[api.Dataset](ctx, r, key, "dataset", name)
		if err != nil {
			return 0, err
		}
		use, _, err := r.store.Get(ctx, prefixDatasetUse+d.UID)
		if err != nil {
			return 0, fmt.Errorf("read the use of dataset %q: %w", name, err)
		}
		if err := r.unasked(ctx, &d); err != nil {
			return 0, err
		}
		conds := []store.Cond{{Key: key, Revision: revision}, {Key: prefixDatasetUse + d.UID, Revision: use.Revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{{Key: key, Delete: true}, {Key: prefixDatasetUse + d.UID, Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete dataset %q: %w", name, err)
		}
		failpoint.Hit("state.after-dataset-delete")
		return next, nil
	}
}

// unasked returns ErrInUse with the clusters that ask for a dataset.
func (r *Repo) unasked(ctx context.Context, d *api.Dataset) error {
	intents, err := r.Intents(ctx)
	if err != nil {
		return err
	}
	var clusters []string
	for i := range intents {
		in := &intents[i]
		if projectOr(in.Project) == projectOr(d.Project) && slices.Contains(api.DatasetsOf(in.Spec.Groups), ownName(d.Name)) {
			clusters = append(clusters, in.Name)
		}
	}
	if len(clusters) > 0 {
		return fmt.Errorf("dataset %q is %w by %s; delete %s first", ownName(d.Name), ErrInUse, several(clusters, "cluster"), them(clusters))
	}
	return nil
}

// usesDatasets returns the conditions of a cluster that asks for datasets of its project, and the marks that it uses them. One that does not exist is
// ErrNoDataset.
func (r *Repo) usesDatasets(ctx context.Context, project, user string, names []string) ([]store.Cond, []store.Op, error) {
	var conds []store.Cond
	var ops []store.Op
	for _, name := range names {
		full := DatasetName(project, name)
		d, revision, err := get[api.Dataset](ctx, r, prefixDataset+full, "dataset", full)
		if errors.Is(err, ErrNotFound) {
			return nil, nil, fmt.Errorf("%w: %q", ErrNoDataset, name)
		}
		if err != nil {
			return nil, nil, err
		}
		conds = append(conds, store.Cond{Key: prefixDataset + full, Revision: revision})
		ops = append(ops, put(prefixDatasetUse+d.UID, datasetUse{Newest: user}))
	}
	return conds, ops, nil
}

// withoutDatasets returns ErrInUse with the datasets of a project.
func (r *Repo) withoutDatasets(ctx context.Context, project string) error {
	all, err := list[api.Dataset](ctx, r, prefixDataset)
	if err != nil {
		return err
	}
	var names []string
	for i := range all {
		if all[i].Project == project {
			names = append(names, all[i].Name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("project %q is %w by %s; delete %s first", project, ErrInUse, several(names, "dataset"), them(names))
	}
	return nil
}
