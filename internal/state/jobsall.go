package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// JobUpdate changes a job, as UpdateJob does.
type JobUpdate struct {
	ID     string
	Change func(*api.Job) error
}

// jobsTogether is how many jobs one commit changes at most: each takes a condition and an operation.
const jobsTogether = 64

// UpdateJobs changes different jobs, each as UpdateJob does, whatever becomes of the others. What has room beside each other goes in one commit, since
// each costs a sync of the disk; when a condition of it fails, each is tried by itself. Outcomes are in the order of the updates.
func (l *Leader) UpdateJobs(ctx context.Context, all []JobUpdate) []Outcome {
	outcomes := make([]Outcome, len(all))
	for from := 0; from < len(all); from += jobsTogether {
		to := min(from+jobsTogether, len(all))
		l.updateTogether(ctx, all[from:to], outcomes[from:to])
	}
	return outcomes
}

func (l *Leader) updateTogether(ctx context.Context, some []JobUpdate, outcomes []Outcome) {
	stored, err := l.storedJobs(ctx, some)
	if err != nil {
		for i := range outcomes {
			outcomes[i].Err = err
		}
		return
	}
	conds, ops, bytesOfOps := []store.Cond{l.leadership.Guard()}, []store.Op(nil), 0
	var at []int // of the update that each operation is for
	commit := func() {
		if len(ops) == 0 {
			return
		}
		revision, err := l.repo.store.Commit(ctx, conds, ops)
		for _, i := range at {
			switch {
			case errors.Is(err, store.ErrConflict):
				_, outcomes[i].Revision, outcomes[i].Err = l.UpdateJob(ctx, some[i].ID, some[i].Change)
			case err != nil:
				outcomes[i].Err = fmt.Errorf("update job %q: %w", some[i].ID, err)
			default:
				outcomes[i].Revision = revision
			}
		}
		conds, ops, at, bytesOfOps = []store.Cond{l.leadership.Guard()}, nil, nil, 0
	}
	for i, update := range some {
		entry, found := stored[prefixJob+update.ID]
		op, err := changed(entry, found, update)
		switch {
		case err != nil:
			outcomes[i].Err = err
			continue
		case bytes.Equal(op.Value, entry.Value):
			outcomes[i].Revision = entry.Revision
			continue
		}
		if size := len(op.Key) + len(op.Value); bytesOfOps+size > store.MaxBytes {
			commit()
		}
		conds, ops, at = append(conds, store.Cond{Key: entry.Key, Revision: entry.Revision}), append(ops, op), append(at, i)
		bytesOfOps += len(op.Key) + len(op.Value)
	}
	commit()
}

// changed is what is to be stored of a job after a change.
func changed(entry store.Entry, found bool, update JobUpdate) (store.Op, error) {
	if !found {
		return store.Op{}, fmt.Errorf("job %q %w", update.ID, ErrNotFound)
	}
	var job api.Job
	if err := decode(entry, &job); err != nil {
		return store.Op{}, err
	}
	before := put(entry.Key, job)
	if err := update.Change(&job); err != nil {
		return store.Op{}, err
	}
	op := put(entry.Key, job)
	if bytes.Equal(op.Value, before.Value) {
		op.Value = entry.Value // as it was
	}
	return op, nil
}

// storedJobs reads the jobs of updates at once, by key.
func (l *Leader) storedJobs(ctx context.Context, some []JobUpdate) (map[string]store.Entry, error) {
	var keys []string
	for _, update := range some {
		keys = append(keys, prefixJob+update.ID)
	}
	slices.Sort(keys)
	var prefixes []string
	for _, key := range keys { // one that begins with another comes with that
		if len(prefixes) == 0 || !strings.HasPrefix(key, prefixes[len(prefixes)-1]) {
			prefixes = append(prefixes, key)
		}
	}
	snap, err := l.repo.store.List(ctx, prefixes...)
	if err != nil {
		return nil, fmt.Errorf("read %d jobs: %w", len(some), err)
	}
	stored := make(map[string]store.Entry, len(snap.Entries))
	for _, entry := range snap.Entries {
		stored[entry.Key] = entry
	}
	return stored, nil
}

// DeleteJobs forgets jobs; those that are not there are no error.
func (l *Leader) DeleteJobs(ctx context.Context, ids []string) error {
	for some := range slices.Chunk(ids, store.MaxOps) {
		var ops []store.Op
		for _, id := range some {
			ops = append(ops, store.Op{Key: prefixJob + id, Delete: true})
		}
		if _, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops); err != nil {
			return fmt.Errorf("delete %d jobs: %w", len(some), err)
		}
	}
	return nil
}
