package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CreateCluster stores the intent of a new cluster. Of two creates of one name exactly one wins; the other gets ErrExists, until
// the winner's cluster is gone altogether. A project that does not exist is ErrNoProject, one of its networks that the cluster names and that
// does not exist ErrNoNetwork, one of its security groups ErrNoSecurityGroup, one of its datasets ErrNoDataset, and one of its volumes ErrNoVolume; a volume that others have attached
// as both may not is ErrInUse or ErrAccess. It returns the revision of the commit, for
// Cache.WaitRevision.
func (r *Repo) CreateCluster(ctx context.Context, in api.ClusterIntent) (int64, error) {
	return r.createCluster(ctx, in, api.VolumesOf(&in), noHome)
}

// createCluster stores the intent of a new cluster that asks for volumes which exist, and makes its home.
func (r *Repo) createCluster(ctx context.Context, in api.ClusterIntent, asked []api.VolumeAttachment, home homeMaker) (int64, error) {
	key := prefixIntent + in.Name
	revision, err := r.createIn(ctx, in.Project, put(key, in), fmt.Sprintf("cluster %q", in.Name), func() ([]store.Cond, []store.Op, error) {
		conds, ops, err := r.joins(ctx, &in)
		if err != nil {
			return nil, nil, err
		}
		groupConds, groupOps, err := r.usesGroups(ctx, in.Project, in.Name, api.SecurityGroupsOf(in.Spec.Groups))
		if err != nil {
			return nil, nil, err
		}
		dataConds, dataOps, err := r.usesDatasets(ctx, in.Project, in.Name, api.DatasetsOf(in.Spec.Groups))
		if err != nil {
			return nil, nil, err
		}
		volumeConds, volumeOps, err := r.usesVolumes(ctx, &in, asked)
		if err != nil {
			return nil, nil, err
		}
		homeConds, homeOps, err := home(ctx)
		return slices.Concat(conds, groupConds, dataConds, volumeConds, homeConds), slices.Concat(ops, groupOps, dataOps, volumeOps, homeOps), err
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-intent")
	return revision, nil
}

// UpdateIntent changes what a user wants of a cluster by compare-and-swap: change may be called several times and must depend on its
// argument only. An error of change ends the update and is returned as it is; nothing is written when change leaves the intent as it
// was. A cluster of another UID than the one given ("": any) is ErrNotFound: it was made anew. What belongs together stays: change may
// not touch name, UID, project and time of creation.
func (r *Repo) UpdateIntent(ctx context.Context, name, uid string, change func(*api.ClusterIntent) error) (api.ClusterIntent, int64, error) {
	checked := func(in *api.ClusterIntent) error {
		if uid != "" && in.UID != uid {
			return fmt.Errorf("cluster %q (%s) %w: it was deleted and created again", name, uid, ErrNotFound)
		}
		was := *in
		if err := change(in); err != nil {
			return err
		}
		if in.Name != was.Name || in.UID != was.UID || in.Project != was.Project || !in.CreatedAt.Equal(was.CreatedAt) {
			return fmt.Errorf("cluster %q: name, UID, project and creation time of its intent can't be changed", name)
		}
		return nil
	}
	in, revision, written, err := r.updateIntent(ctx, name, checked)
	if err == nil && written {
		failpoint.Hit("state.after-intent-change")
	}
	return in, revision, err
}

// RequestDelete marks the cluster as to be deleted since at, unless it already is. It returns the intent as stored and the
// revision that holds it.
func (r *Repo) RequestDelete(ctx context.Context, name string, at time.Time) (api.ClusterIntent, int64, error) {
	key := prefixIntent + name
	for {
		in, revision, err := get[api.ClusterIntent](ctx, r, key, "cluster", name)
		if err != nil || in.DeleteRequestedAt != nil {
			return in, revision, err
		}
		in.DeleteRequestedAt = &at
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}}, []store.Op{put(key, in)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return api.ClusterIntent{}, 0, fmt.Errorf("mark cluster %q for deletion: %w", name, err)
		}
		failpoint.Hit("state.after-delete-request")
		return in, next, nil
	}
}

// Intent returns the intent of a cluster, or ErrNotFound.
func (r *Repo) Intent(ctx context.Context, name string) (api.ClusterIntent, error) {
	in, _, err := get[api.ClusterIntent](ctx, r, prefixIntent+name, "cluster", name)
	return in, err
}

// Intents returns all intents, by name.
func (r *Repo) Intents(ctx context.Context) ([]api.ClusterIntent, error) {
	return list[api.ClusterIntent](ctx, r, prefixIntent)
}

// get reads one record; what and name tell in the error what was not found.
func get[T any](ctx context.Context, r *Repo, key, what, name string) (T, int64, error) {
	var v T
	e, ok, err := r.store.Get(ctx, key)
	if err != nil {
		return v, 0, fmt.Errorf("read %s %q: %w", what, name, err)
	}
	if !ok {
		return v, 0, fmt.Errorf("%s %q %w", what, name, ErrNotFound)
	}
	return v, e.Revision, decode(e, &v)
}

// update changes one record by compare-and-swap, while the guards hold. absent, if not nil, is what stands for a record that is not there. It
// returns the record with the revision that holds it, and whether it was written.
func update[T any](ctx context.Context, r *Repo, key, what, name string, absent *T, change func(*T) error, guards ...store.Cond) (T, int64, bool, error) {
	var none T
	for {
		v, revision, err := get[T](ctx, r, key, what, name)
		if errors.Is(err, ErrNotFound) && absent != nil {
			v, err = *absent, nil
		}
		if err != nil {
			return none, 0, false, err
		}
		before := put(key, v)
		if err := change(&v); err != nil {
			return none, 0, false, err
		}
		op := put(key, v)
		if bytes.Equal(op.Value, before.Value) {
			return v, revision, false, nil
		}
		next, err := r.store.Commit(ctx, append([]store.Cond{{Key: key, Revision: revision}}, guards...), []store.Op{op})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return none, 0, false, fmt.Errorf("update %s %q: %w", what, name, err)
		}
		return v, next, true, nil
	}
}

func list[T any](ctx context.Context, r *Repo, prefix string) ([]T, error) {
	snap, err := r.store.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	return decodeAll[T](snap.Entries)
}

func decodeAll[T any](entries []store.Entry) ([]T, error) {
	all := make([]T, len(entries))
	for i, e := range entries {
		if err := decode(e, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
