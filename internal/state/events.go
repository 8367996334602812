package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// EventsKept is how many events of one cluster name are kept; older ones go when new ones come.
const EventsKept = 1000

// EventsKeptAfter is how long the events of a cluster are kept that is gone: names that never come back would add up for ever.
const EventsKeptAfter = 30 * 24 * time.Hour

// eventLog is where a cluster's events begin and end: [First, Last] are kept.
type eventLog struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// AppendEvents stores events in order and numbers them: Seq is set here, per cluster name, and grows for ever, also when a
// cluster of that name is made anew. Events of one call and one cluster become visible together, up to about 45 at a time.
func (r *Repo) AppendEvents(ctx context.Context, events ...api.Event) (int64, error) {
	var revision int64
	for len(events) > 0 {
		// One commit takes the events of one cluster, in batches whose writes and trims fit the limit of a commit.
		cluster := events[0].Cluster
		var batch, rest []api.Event
		for _, e := range events {
			if e.Cluster == cluster && len(batch) < (store.MaxOps-1)/2 {
				batch = append(batch, e)
			} else {
				rest = append(rest, e)
			}
		}
		next, err := r.appendBatch(ctx, cluster, batch)
		if err != nil {
			return revision, fmt.Errorf("store events of cluster %q: %w", cluster, err)
		}
		revision, events = next, rest
	}
	return revision, nil
}

func (r *Repo) appendBatch(ctx context.Context, cluster string, batch []api.Event) (int64, error) {
	key := prefixEventLog + cluster
	for {
		var log eventLog
		head, found, err := r.store.Get(ctx, key)
		if err != nil {
			return 0, err
		}
		if found {
			if err := decode(head, &log); err != nil {
				return 0, err
			}
		} else {
			log.First = 1
		}
		var ops []store.Op
		for _, e := range batch {
			log.Last++
			e.Seq = log.Last
			ops = append(ops, put(keyEvent(cluster, e.Seq), e))
		}
		for log.Last-log.First+1 > EventsKept {
			ops = append(ops, store.Op{Key: keyEvent(cluster, log.First), Delete: true})
			log.First++
		}
		ops = append(ops, put(key, log))
		revision, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: head.Revision}}, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		return revision, err
	}
}

// Events returns the kept events of a cluster name after sequence number after, oldest first.
func (r *Repo) Events(ctx context.Context, cluster string, after int64) ([]api.Event, error) {
	all, err := list[api.Event](ctx, r, prefixEvent+cluster+"/")
	if err != nil {
		return nil, err
	}
	for len(all) > 0 && all[0].Seq <= after {
		all = all[1:]
	}
	return all, nil
}

// forgottenEvents returns up to limit cluster names of which there are events, all older than a time, and no cluster.
func (c *Cache) forgottenEvents(before time.Time, limit int) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var names []string
	for name, log := range c.events {
		if len(names) < limit && log[len(log)-1].Time.Before(before) && c.clusters.get(name) == nil {
			names = append(names, name)
		}
	}
	return names
}

// PruneEvents removes the events of clusters that were gone before a time, a bounded number of clusters, and returns how many. Call it
// again while it returns more than 0.
func (l *Leader) PruneEvents(ctx context.Context, cache *Cache, before time.Time) (int, error) {
	names := cache.forgottenEvents(before, store.MaxOps)
	for _, name := range names {
		key := prefixEventLog + name
		head, _, err := l.repo.store.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read the events of cluster %q: %w", name, err)
		}
		conds := []store.Cond{l.leadership.Guard(), {Key: key, Revision: head.Revision}, {Key: prefixIntent + name}}
		ops := []store.Op{{Key: key, Delete: true}, {Key: prefixEvent + name + "/", DeletePrefix: true}}
		if _, err := l.repo.store.Commit(ctx, conds, ops); err != nil && !errors.Is(err, store.ErrConflict) {
			return 0, fmt.Errorf("remove the events of cluster %q, which is gone: %w", name, err)
		}
	}
	return len(names), nil
}
