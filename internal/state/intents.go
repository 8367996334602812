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

// CreateCluster stores the intent of a new cluster. Of two creates of one name exactly one wins; the other gets ErrExists, until
// the winner's cluster is gone altogether. It returns the revision of the commit, for Cache.WaitRevision.
func (r *Repo) CreateCluster(ctx context.Context, in api.ClusterIntent) (int64, error) {
	key := prefixIntent + in.Name
	revision, err := r.store.Commit(ctx, []store.Cond{{Key: key}}, []store.Op{put(key, in)})
	if errors.Is(err, store.ErrConflict) {
		return 0, fmt.Errorf("cluster %q %w", in.Name, ErrExists)
	}
	if err != nil {
		return 0, fmt.Errorf("store cluster %q: %w", in.Name, err)
	}
	failpoint.Hit("state.after-intent")
	return revision, nil
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

func list[T any](ctx context.Context, r *Repo, prefix string) ([]T, error) {
	snap, err := r.store.List(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	all := make([]T, len(snap.Entries))
	for i, e := range snap.Entries {
		if err := decode(e, &all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}
