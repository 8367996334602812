package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// UsageKept bounds the time for which usage and node spans are kept after their end.
const UsageKept = 400 * 24 * time.Hour

// prunedAtOnce bounds what one pruning looks through, and what it removes; the next one goes on.
const prunedAtOnce = 10 * store.MaxOps

// CommitNodeSpan closes the present span of a node and opens its next one, in one commit. open is the node's present span as the view has
// it, nil when there is none; next is nil when the node goes. The closed one's end is set here: where the
// next one begins, or at when there is none. A view that is behind is a store.ErrConflict.
func (l *Leader) CommitNodeSpan(ctx context.Context, open, next *api.NodeSpan, at time.Time) (int64, error) {
	conds, ops := []store.Cond{l.leadership.Guard()}, []store.Op(nil)
	if next != nil {
		at = next.From
	}
	if open != nil {
		closed, cond, err := l.closeSpan(ctx, open, at)
		if err != nil {
			return 0, err
		}
		conds, ops = append(conds, cond), append(ops, closed...)
	}
	if next != nil {
		if open != nil && next.Node != open.Node {
			return 0, fmt.Errorf("a span of node %q can't follow one of node %q", next.Node, open.Node)
		}
		span := *next
		span.Seq, span.To = 0, nil
		op := put(keyNodeSpan(&span), span)
		if len(ops) > 0 && ops[0].Key == op.Key {
			ops = ops[1:] // in its place
		} else {
			conds = append(conds, store.Cond{Key: op.Key})
		}
		ops = append(ops, op)
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

// closeSpan are the writes that end a span, on the condition that it is stored as it was seen. It goes where views don't have it: they are many, and only
// reports read them.
func (l *Leader) closeSpan(ctx context.Context, open *api.NodeSpan, at time.Time) ([]store.Op, store.Cond, error) {
	if at.Before(open.From) {
		return nil, store.Cond{}, fmt.Errorf("the span of node %q that began at %s can't end before, at %s",
			open.Node, open.From.Format(time.RFC3339Nano), at.Format(time.RFC3339Nano))
	}
	key := keyNodeSpan(open)
	stored, revision, err := get[api.NodeSpan](ctx, l.repo, key, "span of node", open.Node)
	if errors.Is(err, ErrNotFound) || err == nil && !stored.From.Equal(open.From) {
		return nil, store.Cond{}, fmt.Errorf("the span of node %q is already closed: %w", open.Node, store.ErrConflict)
	}
	if err != nil {
		return nil, store.Cond{}, err
	}
	if stored.To == nil { // else an older version closed it, and left it here
		stored.To = &at
	}
	return formerSpan(key, &stored), store.Cond{Key: key, Revision: revision}, nil
}

// formerSpan moves a span that has ended: it is removed, then put. One that took no time goes.
func formerSpan(key string, s *api.NodeSpan) []store.Op {
	ops := []store.Op{{Key: key, Delete: true}}
	if s.To.After(s.From) {
		ops = append(ops, put(keyFormerSpan(s), s))
	}
	return ops
}

// PruneUsage looks through usage records, a bounded number of them, and removes those that ended before a time. It begins after the key that
// the call before returned, "" for the first, and returns that for the next, "" when it has come to the end; and how many it removed.
func (l *Leader) PruneUsage(ctx context.Context, after string, before time.Time) (next string, removed int, err error) {
	var ops []store.Op
	seen := 0
	for e, err := range l.repo.entries(ctx, prefixUsage, after, math.MaxInt64) {
		if err != nil {
			return "", 0, err
		}
		var u api.UsageRecord
		if err := decode(e, &u); err != nil {
			return "", 0, err
		}
		if endedBefore(&u, before) {
			ops = append(ops, store.Op{Key: e.Key, Delete: true})
		}
		if seen++; seen == prunedAtOnce {
			next = e.Key
			break
		}
	}
	removed, err = l.prune(ctx, ops, "usage")
	return next, removed, err
}

// PruneNodeSpans removes node spans that ended before a time, a bounded number of them, and returns how many. Those that an older version closed and left with the
// present ones are moved, and count, too. Call it again while it returns more than 0.
func (l *Leader) PruneNodeSpans(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	moved := 0
	for _, s := range view.NodeSpans {
		if s.To != nil && len(ops) < prunedAtOnce {
			ops = append(ops, formerSpan(keyNodeSpan(s), s)...)
			moved++
		}
	}
	if _, err := l.prune(ctx, ops, "node spans"); err != nil {
		return moved, err
	}
	ops = nil
	end := keyFormerSpansAt(before)
	for e, err := range l.repo.entries(ctx, prefixFormerSpan, "", math.MaxInt64) {
		if err != nil {
			return moved, err
		}
		if e.Key >= end || len(ops) == prunedAtOnce {
			break
		}
		ops = append(ops, store.Op{Key: e.Key, Delete: true})
	}
	removed, err := l.prune(ctx, ops, "node spans")
	return moved + removed, err
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

// UsageInput is everything the totals of usage depend on, at a time. Its records are read from the store as they are gone through.
func (c *Cache) UsageInput(ctx context.Context, now time.Time) usage.Input {
	v := c.View()
	return usage.Input{
		Now: now, Records: c.repo.usageRecords(ctx, v.Revision), Open: slices.Collect(v.Open()), Volumes: v.HeldStorage(), Nodes: v.NodeSpans,
		Former: c.repo.formerSpans(ctx, v.Revision), Energy: c.repo.energyRecords(ctx),
	}
}

// formerSpans yields the node spans that were closed by a revision and ended after a time. What was closed later is still open as of that.
func (r *Repo) formerSpans(ctx context.Context, revision int64) func(since time.Time) iter.Seq2[*api.NodeSpan, error] {
	return func(since time.Time) iter.Seq2[*api.NodeSpan, error] {
		return func(yield func(*api.NodeSpan, error) bool) {
			for e, err := range r.entries(ctx, prefixFormerSpan, keyFormerSpansAt(since), revision) {
				s := new(api.NodeSpan)
				if err == nil {
					err = decode(e, s)
				}
				if !yield(s, err) || err != nil {
					return
				}
			}
		}
	}
}

// usageRecords yields the usage records that were stored by a revision. What ended later is still open as of that, and would count twice.
func (r *Repo) usageRecords(ctx context.Context, revision int64) iter.Seq2[*api.UsageRecord, error] {
	return func(yield func(*api.UsageRecord, error) bool) {
		for e, err := range r.entries(ctx, prefixUsage, "", revision) {
			u := new(api.UsageRecord)
			if err == nil {
				err = decode(e, u)
			}
			if !yield(u, err) || err != nil {
				return
			}
		}
	}
}

// HeldStorage returns the volumes that hold room now. Volumes that an older version placed say since when only after a change of their size.
func (v *View) HeldStorage() []usage.Held {
	var all []usage.Held
	for _, vol := range v.Volumes {
		if r := vol.Record; r != nil && !r.HeldSince.IsZero() {
			all = append(all, usage.Held{Volume: &vol.Intent, Record: r})
		}
	}
	return all
}

// Open yields every assignment that still holds its room, and those of quarantines.
func (v *View) Open() iter.Seq[usage.Open] {
	return func(yield func(usage.Open) bool) {
		for _, c := range v.Clusters {
			for a, ref := range c.AllWithRef() {
				open := usage.Open{
					Cluster: c.Name(), UID: c.UID(), Project: c.Intent.Project, User: c.Intent.User, Assignment: a,
				}
				if ref.Releasing {
					open.ReleasedAt = releasedAt(c, ref)
				}
				if !yield(open) {
					return
				}
			}
		}
		for _, q := range v.Quarantines {
			a := &q.Assignment
			if !yield(usage.Open{Cluster: a.Cluster, UID: a.ClusterUID, Assignment: a, ReleasedAt: &q.Since}) {
				return
			}
		}
	}
}

// releasedAt is when a chunk turned to releasing. One written before that was noted turned with the phase.
func releasedAt(c *Cluster, ref *api.ChunkRef) *time.Time {
	if ref.ReleasedAt != nil {
		return ref.ReleasedAt
	}
	return &c.Record.ChangedAt
}
