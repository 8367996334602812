package state

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Cache is a view of all stored state in memory, kept current by a watch. It may be used from many goroutines; reading costs
// no I/O and, for a View nobody has asked for since the last change, a copy of the lists that changed.
type Cache struct {
	repo *Repo

	mu sync.RWMutex
	tables
	revision int64
	view     *View // as of revision, or nil when nobody has asked yet
	// changed is closed and replaced whenever revision grows, and when the cache ends.
	changed chan struct{}
	err     error // why the cache ended

	energy energyUsed
}

// OpenCache loads a Cache, and keeps it current until ctx ends.
func (r *Repo) OpenCache(ctx context.Context) (*Cache, error) {
	c := &Cache{repo: r, changed: make(chan struct{})}
	revision, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	go c.follow(ctx, revision)
	return c, nil
}

// View returns everything but events and usage records, consistent as of one revision.
func (c *Cache) View() *View {
	c.mu.RLock()
	v := c.view
	c.mu.RUnlock()
	if v != nil {
		return v
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		c.view = c.tables.view(c.revision)
	}
	return c.view
}

// Cluster returns the cluster of that name, or nil.
func (c *Cache) Cluster(name string) *Cluster { return c.View().Cluster(name) }

// Revision is the revision the cache is current to.
func (c *Cache) Revision() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.revision
}

// EventLog returns the sequence numbers of the first and the last kept event of a log (a cluster's name, or NodeLog of a machine's); 0: there is
// none.
func (c *Cache) EventLog(name string) (first, last int64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	log := c.events[name]
	return log.First, log.Last
}

// Events is that of Repo: events are not kept in memory.
func (c *Cache) Events(ctx context.Context, name string, after int64, limit int) ([]api.Event, error) {
	return c.repo.Events(ctx, name, after, limit)
}

// Wait blocks until something changed after revision, and returns the revision then. Who follows the state calls View, acts,
// and waits for what comes after View.Revision; changes in between are not lost but may come together.
func (c *Cache) Wait(ctx context.Context, revision int64) (int64, error) {
	return c.WaitRevision(ctx, revision+1)
}

// WaitRevision blocks until the cache is current to at least revision: what a writer calls to read its own write.
func (c *Cache) WaitRevision(ctx context.Context, revision int64) (int64, error) {
	for {
		c.mu.RLock()
		now, changed, err := c.revision, c.changed, c.err
		c.mu.RUnlock()
		if now >= revision || err != nil {
			return now, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now, ctx.Err()
		}
	}
}

// load replaces everything by one consistent reading. Usage records, which may be many and are not kept, are read by pages: those written later
// come with the watch. Events are not read at all.
func (c *Cache) load(ctx context.Context) (int64, error) {
	snap, err := c.repo.store.List(ctx, loaded()...)
	if err != nil {
		return 0, fmt.Errorf("read the state: %w", err)
	}
	fresh := newTables()
	// Records need the chunks they name, so chunks come first.
	for _, chunks := range []bool{true, false} {
		for _, e := range snap.Entries {
			if kind, _ := splitKey(e.Key); (kind == prefixChunk) != chunks {
				continue
			}
			if err := fresh.put(e); err != nil {
				return 0, err
			}
		}
	}
	for e, err := range c.repo.entries(ctx, prefixUsage, "", snap.Revision) {
		if err == nil {
			err = fresh.put(e)
		}
		if err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tables = fresh
	c.advance(snap.Revision)
	return snap.Revision, nil
}

// loaded are the prefixes of what a cache reads at once.
func loaded() []string {
	prefixes := []string{store.ElectionKey}
	for _, r := range kinds {
		if p := r.at(); p != prefixUsage && p != prefixEvent && p != prefixEventPack {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes
}

// follow applies changes until ctx or the store ends; it reads everything again when the history is gone.
func (c *Cache) follow(ctx context.Context, revision int64) {
	err := ctx.Err()
	for err == nil {
		if revision, err = c.watch(ctx, revision); errors.Is(err, store.ErrCompacted) {
			revision, err = c.load(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = fmt.Errorf("the view of the state is no longer updated: %w", err)
	close(c.changed)
}

// watch applies changes until the watch ends, and tells why it did.
func (c *Cache) watch(ctx context.Context, revision int64) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := c.repo.store.Watch(ctx, "", revision)
	for changes := range w.Changes() {
		if err := c.apply(changes); err != nil {
			return revision, err
		}
		revision = changes[0].Revision
	}
	return revision, w.Err()
}

// apply takes in the changes of one commit.
func (c *Cache) apply(changes []store.Change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range changes {
		if ch.Deleted {
			c.remove(ch.Key)
		} else if err := c.put(ch.Entry); err != nil {
			return err
		}
	}
	c.advance(changes[0].Revision)
	return nil
}

// advance notes a new revision and wakes who waits. The lock is held.
func (c *Cache) advance(revision int64) {
	c.revision, c.view = max(c.revision, revision), nil
	close(c.changed)
	c.changed = make(chan struct{})
}
