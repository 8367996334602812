package state

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// A store has the index of its keys in memory, some 300 bytes for each, and events are the most of what is kept. So the older ones of a log are packed: many
// are one key. Of former clusters and machines, all are.
const (
	// packedAtOnce is how many events one pack has at most: each takes a write of the commit that packs them.
	packedAtOnce = store.MaxOps - 10
	// looseAtMost is how many events of a log that goes on are a key each, so a pack of such a log has at least that many.
	looseAtMost = 32
	// packedAfter is how old the last event of a former cluster or machine is when its events are packed. Some come late.
	packedAfter = time.Minute
	// logsAtOnce bounds what one call packs.
	logsAtOnce = 50
)

// eventPack is events of a log, the oldest first, without a gap.
type eventPack struct {
	Events []api.Event `json:"events"`
}

// last is the number of the last event of a log that is packed, or that is not kept any more.
func (l *eventLog) last() int64 { return max(l.Packed, l.First-1) }

// loose is how many events of a log are a key each.
func (l *eventLog) loose() int64 { return l.Last - l.last() }

// packable returns up to logsAtOnce logs some of whose events are to be packed.
func (c *Cache) packable(now time.Time) []string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var names []string
	for name, log := range c.events {
		rests := log.loose() > 1 && now.Sub(log.Newest) >= packedAfter
		if len(names) < logsAtOnce && (log.loose() > looseAtMost || rests && !c.owned(name)) {
			names = append(names, name)
		}
	}
	return names
}

// PackEvents packs events that are many to a log, and those of clusters and machines that are gone, and removes packs of which none is kept. It does that for a
// bounded number of logs, and returns for how many. Call it again while it returns more than 0.
func (l *Leader) PackEvents(ctx context.Context, cache *Cache, now time.Time) (int, error) {
	names := cache.packable(now)
	for _, name := range names {
		if err := l.packEvents(ctx, name); err != nil && !errors.Is(err, store.ErrConflict) {
			return 0, fmt.Errorf("pack the events of %q: %w", name, err)
		}
	}
	return len(names), nil
}

func (l *Leader) packEvents(ctx context.Context, name string) error {
	key := prefixEventLog + name
	head, found, err := l.repo.store.Get(ctx, key)
	if err != nil || !found {
		return err
	}
	var log eventLog
	if err := decode(head, &log); err != nil {
		return err
	}
	events, err := l.repo.looseEvents(ctx, name, log.last(), packedAtOnce)
	if err != nil || len(events) == 0 {
		return err
	}
	log.Packed = events[len(events)-1].Seq
	ops := []store.Op{put(keyEventPack(name, log.Packed), eventPack{events})}
	for i := range events {
		ops = append(ops, store.Op{Key: keyEvent(name, events[i].Seq), Delete: true})
	}
	surplus, err := l.surplusPack(ctx, name, &log)
	if err != nil {
		return err
	}
	ops = append(ops, surplus...)
	ops = append(ops, put(key, log))
	_, err = l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard(), {Key: key, Revision: head.Revision}}, ops)
	return err
}

// surplusPack removes the oldest pack of a log if enough events follow it.
func (l *Leader) surplusPack(ctx context.Context, name string, log *eventLog) ([]store.Op, error) {
	page, err := l.repo.store.Page(ctx, prefixEventPack+name+"/", "", 1)
	if err != nil || len(page.Entries) == 0 {
		return nil, err
	}
	var oldest eventPack
	if err := decode(page.Entries[0], &oldest); err != nil {
		return nil, err
	}
	last := oldest.Events[len(oldest.Events)-1].Seq
	if log.Last-last < EventsKept {
		return nil, nil
	}
	log.First = last + 1
	return []store.Op{{Key: page.Entries[0].Key, Delete: true}}, nil
}

// looseEvents are the events of a log after a number that are a key each.
func (r *Repo) looseEvents(ctx context.Context, name string, after int64, limit int) ([]api.Event, error) {
	page, err := r.store.Page(ctx, prefixEvent+name+"/", keyEvent(name, after), limit)
	if err != nil {
		return nil, err
	}
	return decodeAll[api.Event](page.Entries)
}

// packedEvents are the events of a log after a number that are packed: up to limit, and perhaps some more.
func (r *Repo) packedEvents(ctx context.Context, name string, after int64, limit int) ([]api.Event, error) {
	events := []api.Event{} // none are an empty list to the API's clients
	for from := after; len(events) < limit; {
		page, err := r.store.Page(ctx, prefixEventPack+name+"/", keyEventPack(name, from), 1+limit/packedAtOnce)
		if err != nil {
			return nil, err
		}
		packs, err := decodeAll[eventPack](page.Entries)
		if err != nil {
			return nil, err
		}
		if len(packs) == 0 {
			break
		}
		for i := range packs {
			for _, e := range packs[i].Events {
				if e.Seq > after {
					events = append(events, e)
				}
			}
		}
		from = events[len(events)-1].Seq
	}
	return events, nil
}
