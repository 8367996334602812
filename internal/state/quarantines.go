package state

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// quarantineSeq is where the numbers of usage records of quarantines begin: they are written when the cluster's record, which counts the
// others, may be long gone.
const quarantineSeq = 1_000_000_001

// Quarantine keeps the resources of an assignment out of the free view.
func (l *Leader) Quarantine(ctx context.Context, q api.Quarantine) (int64, error) {
	ops := putQuarantines([]api.Quarantine{q})
	revision, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops)
	if err != nil {
		return 0, fmt.Errorf("quarantine %s: %w", q.Assignment.ID, err)
	}
	return revision, nil
}

// Unquarantine gives the resources of an assignment back, and writes down the spans that end with it in the same commit; one that is
// not quarantined is no error, and nothing is written for it.
func (l *Leader) Unquarantine(ctx context.Context, assignmentID string, spans ...api.UsageSpan) (int64, error) {
	revision, err := l.unquarantine(ctx, assignmentID, spans)
	if err != nil {
		return 0, fmt.Errorf("end the quarantine of %s: %w", assignmentID, err)
	}
	return revision, nil
}

func (l *Leader) unquarantine(ctx context.Context, assignmentID string, spans []api.UsageSpan) (int64, error) {
	key := prefixQuarantine + assignmentID
	conds, ops := []store.Cond{l.leadership.Guard()}, []store.Op{{Key: key, Delete: true}}
	q, revision, err := get[api.Quarantine](ctx, l.repo, key, "quarantine of", assignmentID)
	switch {
	case errors.Is(err, ErrNotFound):
		return l.repo.store.Commit(ctx, conds, ops)
	case err != nil:
		return 0, err
	}
	conds = append(conds, store.Cond{Key: key, Revision: revision})
	if len(spans) > 0 {
		record, err := l.quarantineUsage(ctx, q, spans)
		if err != nil {
			return 0, err
		}
		written := put(keyUsage(record.UID, record.Seq), record)
		conds, ops = append(conds, store.Cond{Key: written.Key}), append(ops, written)
	}
	return l.repo.store.Commit(ctx, conds, ops)
}

// quarantineUsage is the record of a quarantine's spans. Whose the cluster was is what the records say that were written before.
func (l *Leader) quarantineUsage(ctx context.Context, q api.Quarantine, spans []api.UsageSpan) (api.UsageRecord, error) {
	record := api.UsageRecord{Seq: quarantineSeq, UID: q.Assignment.ClusterUID, Cluster: q.Assignment.Cluster, Spans: spans}
	before, err := list[api.UsageRecord](ctx, l.repo, prefixUsage+record.UID+"/")
	if err != nil {
		return record, err
	}
	for i := range before {
		record.Project, record.User = before[i].Project, before[i].User
		record.Seq = max(record.Seq, before[i].Seq+1)
	}
	return record, nil
}
