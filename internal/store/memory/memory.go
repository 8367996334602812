// Package memory is the state store in memory, for tests and simulation: it keeps the contract of internal/store in one
// process and forgets everything with it. It must never be used where state has to survive.
//
// Start with Store.Commit; watch.go and election.go hold the rest of the contract.
package memory

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/internal/store"
)

// historyCommits is how many commits a watch can reach back; older ones are compacted away.
const historyCommits = 100_000

// Store is ordered state in memory. The zero value is not usable; call New.
type Store struct {
	mu       sync.Mutex
	closed   bool
	revision int64
	entries  map[string]store.Entry
	keys     []string // sorted
	// history holds one element a commit, the oldest first; compacted is the newest revision no longer in it.
	history   [][]store.Change
	compacted int64
	// changed is closed and replaced at every commit, and at Close.
	changed chan struct{}
	leader  *leadership
}

// New returns an empty store.
func New() *Store {
	// Revision 1 is the empty store, as in etcd: a watch after 0 must not be the same as one after everything.
	return &Store{revision: 1, entries: map[string]store.Entry{}, changed: make(chan struct{})}
}

// Get returns the entry of key.
func (s *Store) Get(ctx context.Context, key string) (store.Entry, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Entry{}, false, err
	}
	e, ok := s.entries[key]
	return e, ok, nil
}

// List returns the entries whose keys begin with one of the prefixes.
func (s *Store) List(ctx context.Context, prefixes ...string) (store.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Snapshot{}, err
	}
	var keys []string
	for _, prefix := range slices.Sorted(slices.Values(prefixes)) {
		keys = append(keys, s.within(prefix)...)
	}
	return s.snapshot(keys), nil
}

// Page returns the first entries under a prefix after a key.
func (s *Store) Page(ctx context.Context, prefix, after string, limit int) (store.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Snapshot{}, err
	}
	keys := s.within(prefix)
	from, seen := slices.BinarySearch(keys, after)
	if seen {
		from++
	}
	return s.snapshot(keys[from:min(from+limit, len(keys))]), nil
}

// snapshot returns the entries of keys. The lock is held.
func (s *Store) snapshot(keys []string) store.Snapshot {
	snap := store.Snapshot{Revision: s.revision}
	for _, k := range keys {
		snap.Entries = append(snap.Entries, s.entries[k])
	}
	return snap
}

// Commit writes ops when conds hold.
func (s *Store) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	if err := store.CheckCommit(conds, ops); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	if err := s.check(conds); err != nil {
		return 0, err
	}
	return s.apply(ops), nil
}

// Compact forgets the history up to and including revision, as etcd does with time.
func (s *Store) Compact(_ context.Context, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision > s.revision {
		return fmt.Errorf("revision %d is in the future; the newest is %d", revision, s.revision)
	}
	for len(s.history) > 0 && s.history[0][0].Revision <= revision {
		s.history = s.history[1:]
	}
	s.compacted = max(s.compacted, revision)
	return nil
}

// Close ends all watches, campaigns and leaderships.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.depose()
		close(s.changed)
	}
	return nil
}

// usable tells why no call can be served. The lock is held.
func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

// within returns the keys that begin with prefix, in order. The lock is held.
func (s *Store) within(prefix string) []string {
	from, _ := slices.BinarySearch(s.keys, prefix)
	rest := s.keys[from:]
	return rest[:sort.Search(len(rest), func(i int) bool { return !strings.HasPrefix(rest[i], prefix) })]
}

// check tells which condition fails. The lock is held.
func (s *Store) check(conds []store.Cond) error {
	var err error
	for _, c := range conds {
		if s.entries[c.Key].Revision == c.Revision {
			continue
		}
		if c.Leader {
			return store.ErrNotLeader
		}
		err = fmt.Errorf("key %q: %w", c.Key, store.ErrConflict)
	}
	return err
}

// apply writes ops as one commit and wakes the watches. The lock is held.
func (s *Store) apply(ops []store.Op) int64 {
	revision := s.revision + 1
	var changes []store.Change
	remove := func(key string) {
		if _, ok := s.entries[key]; !ok {
			return
		}
		delete(s.entries, key)
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Delete(s.keys, at, at+1)
		changes = append(changes, store.Change{Entry: store.Entry{Key: key, Revision: revision}, Deleted: true})
	}
	for _, op := range ops {
		switch {
		case op.DeletePrefix:
			for _, k := range slices.Clone(s.within(op.Key)) {
				remove(k)
			}
		case op.Delete:
			remove(op.Key)
		default:
			e := store.Entry{Key: op.Key, Value: slices.Clone(op.Value), Revision: revision}
			if at, found := slices.BinarySearch(s.keys, op.Key); !found {
				s.keys = slices.Insert(s.keys, at, op.Key)
			}
			s.entries[op.Key] = e
			changes = append(changes, store.Change{Entry: e})
		}
	}
	if len(changes) == 0 {
		return s.revision // as in etcd: deleting nothing makes no revision
	}
	s.revision = revision
	s.history = append(s.history, changes)
	if len(s.history) > historyCommits {
		s.compacted = s.history[0][0].Revision
		s.history = s.history[1:]
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return revision
}
