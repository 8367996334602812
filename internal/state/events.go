package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// EventsKept bounds the events of one log. New events replace the oldest ones, whole packs at a time.
const EventsKept = 1000

// EventsKeptAfter bounds the time for which events of a former cluster or machine are kept. Otherwise names that never come back would add up
// without limit.
const EventsKeptAfter = 30 * 24 * time.Hour

// NodeLog names the log of the events of a node's machine; that of a cluster's is the cluster's name.
func NodeLog(node string) string { return nodeLogMark + node }

// FabricLog names the log of the events of a fabric.
func FabricLog(cell string) string { return fabricLogMark + cell }

// No cluster's name begins with one of these.
const (
	nodeLogMark   = "@"
	fabricLogMark = "+"
)

// logOf names the log that an event belongs to.
func logOf(e *api.Event) string {
	switch {
	case e.Fabric != "":
		return FabricLog(e.Fabric)
	case e.Cluster == "":
		return NodeLog(e.Node)
	default:
		return e.Cluster
	}
}

// logOwner is the key of what a log is about: while it is there, its events are kept.
func logOwner(name string) string {
	if node, ok := strings.CutPrefix(name, nodeLogMark); ok {
		return prefixMachine + node
	}
	return prefixIntent + name
}

// eventLog is where a cluster's events begin and end: [First, Last] are kept. Those up to Packed are in packs, if there are any. Newest is the time of the last
// one.
type eventLog struct {
	First  int64     `json:"first"`
	Last   int64     `json:"last"`
	Packed int64     `json:"packed,omitempty"`
	Newest time.Time `json:"newest"`
}

// AppendEvents stores events in order and numbers them: Seq is set here, per cluster name, and grows without end, also when a
// cluster of that name is made anew. An event without a cluster is of its node's machine. Events of one call become visible
// together, as many at a time as a commit takes.
func (r *Repo) AppendEvents(ctx context.Context, events ...api.Event) (int64, error) {
	var revision int64
	for len(events) > 0 {
		n := eventsAtOnce(events)
		next, err := r.appendBatch(ctx, events[:n])
		if err != nil {
			return revision, fmt.Errorf("store events of %q: %w", logOf(&events[0]), err)
		}
		revision, events = next, events[n:]
	}
	return revision, nil
}

// eventsAtOnce returns how many of the events have room in one commit: each takes a write and may push an old one out, each log has an end to be
// written down.
func eventsAtOnce(events []api.Event) int {
	ops := 0
	logs := map[string]bool{}
	for n := range events {
		ops += 2
		if name := logOf(&events[n]); !logs[name] {
			logs[name] = true
			ops++
		}
		if ops > store.MaxOps {
			return n
		}
	}
	return len(events)
}

// openLog is a log as it was found, and as it is to be.
type openLog struct {
	eventLog
	found store.Cond
}

// openLogs reads where the logs of events end.
func (r *Repo) openLogs(ctx context.Context, events []api.Event) (map[string]*openLog, error) {
	logs := map[string]*openLog{}
	for i := range events {
		name := logOf(&events[i])
		if logs[name] != nil {
			continue
		}
		head, found, err := r.store.Get(ctx, prefixEventLog+name)
		if err != nil {
			return nil, err
		}
		log := &openLog{eventLog: eventLog{First: 1}, found: store.Cond{Key: prefixEventLog + name, Revision: head.Revision}}
		if found {
			if err := decode(head, &log.eventLog); err != nil {
				return nil, err
			}
		}
		logs[name] = log
	}
	return logs, nil
}

func (r *Repo) appendBatch(ctx context.Context, batch []api.Event) (int64, error) {
	for {
		conds, ops, err := r.appended(ctx, batch)
		if err != nil {
			return 0, err
		}
		revision, err := r.store.Commit(ctx, conds, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		return revision, err
	}
}

// appended returns the commit that appends events, as many as one takes.
func (r *Repo) appended(ctx context.Context, batch []api.Event) (conds []store.Cond, ops []store.Op, err error) {
	logs, err := r.openLogs(ctx, batch)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range batch {
		name := logOf(&e)
		log := logs[name]
		log.Last++
		e.Seq, log.Newest = log.Last, e.Time
		ops = append(ops, put(keyEvent(name, e.Seq), e))
		for log.Last-log.First+1 > EventsKept && log.First > log.Packed { // whole packs go when others come
			ops = append(ops, store.Op{Key: keyEvent(name, log.First), Delete: true})
			log.First++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		conds, ops = append(conds, logs[name].found), append(ops, put(prefixEventLog+name, logs[name].eventLog))
	}
	return conds, ops, nil
}

// Events returns the kept events of a log (a cluster's name, NodeLog of a machine's, or FabricLog of a cell's) after sequence number after, the oldest first, and not
// more than limit.
func (r *Repo) Events(ctx context.Context, name string, after int64, limit int) ([]api.Event, error) {
	// In this order: what is packed meanwhile is met twice, and not missed.
	loose, err := r.looseEvents(ctx, name, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the events of %q: %w", name, err)
	}
	events, err := r.packedEvents(ctx, name, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the events of %q: %w", name, err)
	}
	if len(events) > 0 {
		last := events[len(events)-1].Seq
		loose = slices.DeleteFunc(loose, func(e api.Event) bool { return e.Seq <= last })
	}
	events = append(events, loose...)
	return events[:min(limit, len(events))], nil
}

// forgottenEvents returns up to limit logs in which there are events, all older than a time, and of which there is no cluster or machine.
func (c *Cache) forgottenEvents(before time.Time, limit int) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var names []string
	for name, log := range c.events {
		if len(names) < limit && log.Newest.Before(before) && !c.owned(name) {
			names = append(names, name)
		}
	}
	return names
}

// owned tells whether there is what a log is about. Fabrics are settings of servers, so theirs are kept. The lock is held.
func (c *Cache) owned(name string) bool {
	if strings.HasPrefix(name, fabricLogMark) {
		return true
	}
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
		ops := []store.Op{{Key: key, Delete: true}, {Key: prefixEvent + name + "/", DeletePrefix: true}, {Key: prefixEventPack + name + "/", DeletePrefix: true}}
		if _, err := l.repo.store.Commit(ctx, conds, ops); err != nil && !errors.Is(err, store.ErrConflict) {
			return 0, fmt.Errorf("remove the events of %q, which was deleted: %w", name, err)
		}
	}
	return len(names), nil
}
