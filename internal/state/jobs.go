package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CreateJob stores a new job, if its cluster exists with that UID and is not being deleted; else ErrNotFound. A taken ID gives
// ErrExists.
func (r *Repo) CreateJob(ctx context.Context, job api.Job) (int64, error) {
	for {
		in, revision, err := get[api.ClusterIntent](ctx, r, prefixIntent+job.Cluster, "cluster", job.Cluster)
		if err != nil {
			return 0, err
		}
		if in.UID != job.ClusterUID || in.DeleteRequestedAt != nil {
			return 0, fmt.Errorf("cluster %q (%s) %w: it is being deleted, or was deleted and created again", job.Cluster, job.ClusterUID, ErrNotFound)
		}
		conds := []store.Cond{{Key: prefixIntent + job.Cluster, Revision: revision}, {Key: prefixJob + job.ID}}
		next, err := r.store.Commit(ctx, conds, []store.Op{put(prefixJob+job.ID, job)})
		if errors.Is(err, store.ErrConflict) {
			if _, taken, err := r.store.Get(ctx, prefixJob+job.ID); err != nil {
				return 0, fmt.Errorf("read job %q: %w", job.ID, err)
			} else if taken {
				return 0, fmt.Errorf("job %q %w", job.ID, ErrExists)
			}
			continue // the intent changed; look again
		}
		if err != nil {
			return 0, fmt.Errorf("store job %q: %w", job.ID, err)
		}
		failpoint.Hit("state.after-job")
		return next, nil
	}
}

// UpdateJob changes a job by compare-and-swap: change may be called several times and must depend on its argument only. An error
// of change ends the update and is returned as it is; nothing is written when change leaves the job as it was.
func (r *Repo) UpdateJob(ctx context.Context, id string, change func(*api.Job) error) (api.Job, int64, error) {
	job, revision, _, err := update(ctx, r, prefixJob+id, "job", id, nil, change)
	return job, revision, err
}

// UpdateJob is that of Repo, as long as the leadership lasts: two leaders that hold different nodes to be down would undo each other's changes
// without end.
func (l *Leader) UpdateJob(ctx context.Context, id string, change func(*api.Job) error) (api.Job, int64, error) {
	job, revision, _, err := update(ctx, l.repo, prefixJob+id, "job", id, nil, change, l.leadership.Guard())
	return job, revision, err
}

// Job returns a job, or ErrNotFound.
func (r *Repo) Job(ctx context.Context, id string) (api.Job, error) {
	job, _, err := get[api.Job](ctx, r, prefixJob+id, "job", id)
	return job, err
}

// Jobs returns the jobs of a cluster (by name or UID), or all when cluster is "", by ID.
func (r *Repo) Jobs(ctx context.Context, cluster string) ([]api.Job, error) {
	all, err := list[api.Job](ctx, r, prefixJob)
	if err != nil || cluster == "" {
		return all, err
	}
	var hits []api.Job
	for _, j := range all {
		if j.Cluster == cluster || j.ClusterUID == cluster {
			hits = append(hits, j)
		}
	}
	return hits, nil
}
