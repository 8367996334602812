package state

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// UsageKept is how long usage and node spans are kept after they ended.
const UsageKept = 400 * 24 * time.Hour

// prunedAtOnce bounds what one pruning removes; the next one goes on.
const prunedAtOnce = 10 * store.MaxOps

// CommitNodeSpan closes the present span of a node and opens its next one, in one commit. open is the node's newest span as the view has
// it, nil before the first; next is nil when the node goes. The next one's number is set here, and the closed one's end: where the
// next one begins, or at when there is none. A view that is behind is a store.ErrConflict.
func (l *Leader) CommitNodeSpan(ctx context.Context, open, next *api.NodeSpan, at time.Time) (int64, error) {
	conds, ops := []store.Cond{l.leadership.Guard()}, []store.Op(nil)
	seq := int64(1)
	if next != nil {
		at = next.From
	}
	if open != nil {
		seq = open.Seq + 1
		if open.To == nil {
			closed, cond, err := l.closeSpan(ctx, open, at)
			if err != nil {
				return 0, err
			}
			conds, ops = append(conds, cond), append(ops, closed)
		}
	}
	if next != nil {
		if open != nil && next.Node != open.Node {
			return 0, fmt.Errorf("a span of node %q can't follow one of node %q", next.Node, open.Node)
		}
		span := *next
		span.Seq, span.To = seq, nil
		op := put(keyNodeSpan(span.Node, span.Seq), span)
		conds, ops = append(conds, store.Cond{Key: op.Key}), append(ops, op)
	}
	if len(ops) == 0 {
		return 0, fmt.Errorf("no node span to close or open was given")
	}
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("store a node span (%s): %w", ops[len(ops)-1].Key, err)
	}
	return revision, nil
}

// closeSpan is the write that ends a span, on the condition that it is stored as it was seen.
func (l *Leader) closeSpan(ctx context.Context, open *api.NodeSpan, at time.Time) (store.Op, store.Cond, error) {
	if at.Before(open.From) {
		return store.Op{}, store.Cond{}, fmt.Errorf("the span of node %q that began at %s can't end before, at %s",
			open.Node, open.From.Format(time.RFC3339Nano), at.Format(time.RFC3339Nano))
	}
	key := keyNodeSpan(open.Node, open.Seq)
	stored, revision, err := get[api.NodeSpan](ctx, l.repo, key, "span of node", open.Node)
	if err != nil {
		return store.Op{}, store.Cond{}, err
	}
	if stored.To != nil {
		return store.Op{}, store.Cond{}, fmt.Errorf("the span of node %q is already closed: %w", open.Node, store.ErrConflict)
	}
	stored.To = &at
	return put(key, stored), store.Cond{Key: key, Revision: revision}, nil
}

// PruneUsage removes usage records and closed node spans that ended before a time, a bounded number of them, and returns how many.
// Call it again while it returns more than 0.
func (l *Leader) PruneUsage(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	for _, u := range view.Usage {
		if endedBefore(u, before) && len(ops) < prunedAtOnce {
			ops = append(ops, store.Op{Key: keyUsage(u.UID, u.Seq), Delete: true})
		}
	}
	for _, s := range view.NodeSpans {
		if s.To != nil && s.To.Before(before) && len(ops) < prunedAtOnce && view.NodeSpan(s.Node) != s {
			ops = append(ops, store.Op{Key: keyNodeSpan(s.Node, s.Seq), Delete: true})
		}
	}
	return l.prune(ctx, ops, "usage")
}

func endedBefore(u *api.UsageRecord, before time.Time) bool {
	for i := range u.Spans {
		if !u.Spans[i].To.Before(before) {
			return false
		}
	}
	return true
}

// prune commits removals, as many at once as a commit takes.
func (l *Leader) prune(ctx context.Context, ops []store.Op, what string) (int, error) {
	removed := 0
	for len(ops) > 0 {
		n := min(len(ops), store.MaxOps)
		if _, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops[:n]); err != nil {
			return removed, fmt.Errorf("remove old %s: %w", what, err)
		}
		removed, ops = removed+n, ops[n:]
	}
	return removed, nil
}

// UsageInput is everything the totals of usage depend on, at a time.
func (v *View) UsageInput(now time.Time) usage.Input {
	in := usage.Input{Now: now, Records: v.Usage, Nodes: v.NodeSpans}
	for _, c := range v.Clusters {
		for a, ref := range c.AllWithRef() {
			open := usage.Open{
				Cluster: c.Name(), UID: c.UID(), Project: c.Intent.Project, User: c.Intent.User, Assignment: a,
			}
			if ref.Releasing {
				open.ReleasedAt = releasedAt(c, ref)
			}
			in.Open = append(in.Open, open)
		}
	}
	for _, q := range v.Quarantines {
		a := &q.Assignment
		in.Open = append(in.Open, usage.Open{Cluster: a.Cluster, UID: a.ClusterUID, Assignment: a, ReleasedAt: &q.Since})
	}
	return in
}

// releasedAt is when a chunk turned to releasing. One written before that was noted turned with the phase.
func releasedAt(c *Cluster, ref *api.ChunkRef) *time.Time {
	if ref.ReleasedAt != nil {
		return ref.ReleasedAt
	}
	return &c.Record.ChangedAt
}
