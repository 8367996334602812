package state

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// EventsKept is how many events of one log are kept; older ones go when new ones come.
const EventsKept = 1000

// EventsKeptAfter is how long the events of a cluster or machine are kept that is gone: names that never come back would add up for ever.
const EventsKeptAfter = 30 * 24 * time.Hour

// NodeLog names the log of the events of a node's machine; that of a cluster's is the cluster's name.
func NodeLog(node string) string { return nodeLogMark + node }

// nodeLogMark begins no cluster's name.
const nodeLogMark = "@"

// logOf names the log that an event belongs to.
func logOf(e *api.Event) string {
	if e.Cluster == "" {
		return NodeLog(e.Node)
	}
	return e.Cluster
}

// logOwner is the key of what a log is about: while it is there, its events are kept.
func logOwner(name string) string {
	if node, ok := strings.CutPrefix(name, nodeLogMark); ok {
		return prefixMachine + node
	}
	return prefixIntent + name
}

// eventLog is where a cluster's events begin and end: [First, Last] are kept.
type eventLog struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// AppendEvents stores events in order and numbers them: Seq is set here, per cluster name, and grows for ever, also when a
// cluster of that name is made anew. An event without a cluster is of its node's machine. Events of one call and one log become visible
// together, up to about 45 at a time.
func (r *Repo) AppendEvents(ctx context.Context, events ...api.Event) (int64, error) {
	var revision int64
	for len(events) > 0 {
		// One commit takes the events of one log, in batches whose writes and trims fit the limit of a commit.
		log := logOf(&events[0])
		var batch, rest []api.Event
		for _, e := range events {
			if logOf(&e) == log && len(batch) < (store.MaxOps-1)/2 {
				batch = append(batch, e)
			} else {
				rest = append(rest, e)
			}
		}
		next, err := r.appendBatch(ctx, log, batch)
		if err != nil {
			return revision, fmt.Errorf("store events of %q: %w", log, err)
		}
		revision, events = next, rest
	}
	return revision, nil
}

func (r *Repo) appendBatch(ctx context.Context, name string, batch []api.Event) (int64, error) {
	key := prefixEventLog + name
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
			ops = append(ops, put(keyEvent(name, e.Seq), e))
		}
		for log.Last-log.First+1 > EventsKept {
			ops = append(ops, store.Op{Key: keyEvent(name, log.First), Delete: true})
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

// Events returns the kept events of a log (a cluster's name, or NodeLog of a machine's) after sequence number after, oldest first.
func (r *Repo) Events(ctx context.Context, name string, after int64) ([]api.Event, error) {
	all, err := list[api.Event](ctx, r, prefixEvent+name+"/")
	if err != nil {
		return nil, err
	}
	for len(all) > 0 && all[0].Seq <= after {
		all = all[1:]
	}
	return all, nil
}

// forgottenEvents returns up to limit logs in which there are events, all older than a time, and of which there is no cluster or machine.
func (c *Cache) forgottenEvents(before time.Time, limit int) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var names []string
	for name, log := range c.events {
		if len(names) < limit && log[len(log)-1].Time.Before(before) && !c.owned(name) {
			names = append(names, name)
		}
	}
	return names
}

// owned tells whether there is what a log is about. The lock is held.
func (c *Cache) owned(name string) bool {
	if node, ok := strings.CutPrefix(name, nodeLogMark); ok {
		n := tableOf(&c.tables, nodes).get(node)
		return n != nil && n.Machine != nil
	}
	return tableOf(&c.tables, clusters).get(name) != nil
}

// PruneEvents removes the events of clusters and machines that were gone before a time, a bounded number of logs, and returns how many. Call it
// again while it returns more than 0.
func (l *Leader) PruneEvents(ctx context.Context, cache *Cache, before time.Time) (int, error) {
	names := cache.forgottenEvents(before, store.MaxOps)
	for _, name := range names {
		key := prefixEventLog + name
		head, _, err := l.repo.store.Get(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read the events of %q: %w", name, err)
		}
		conds := []store.Cond{l.leadership.Guard(), {Key: key, Revision: head.Revision}, {Key: logOwner(name)}}
		ops := []store.Op{{Key: key, Delete: true}, {Key: prefixEvent + name + "/", DeletePrefix: true}}
		if _, err := l.repo.store.Commit(ctx, conds, ops); err != nil && !errors.Is(err, store.ErrConflict) {
			return 0, fmt.Errorf("remove the events of %q, which was deleted: %w", name, err)
		}
	}
	return len(names), nil
}
