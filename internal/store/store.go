// Package store is the contract of the state store: ordered keys, atomic guarded commits, watches and a leader's election.
//
// It knows bytes, not resources: internal/state gives keys and values their meaning. It must never buffer a write: when
// Commit returns, the write survives a power cut. store/etcd is the real one, store/memory the one for tests and simulation;
// store/storetest is the conformance suite both pass.
package store

import (
	"context"
	"errors"
)

// Behavioural errors; test with errors.Is.
var (
	// ErrConflict: a condition of the commit did not hold; nothing was written. Read again and decide anew.
	ErrConflict = errors.New("the state has changed in the meantime")
	// ErrCompacted: the revision asked for is no longer in the history; list again and watch from there.
	ErrCompacted = errors.New("the requested history is no longer available")
	// ErrClosed: the store is closed.
	ErrClosed = errors.New("the store is closed")
	// ErrNotLeader: the leadership that guards a commit has been lost.
	ErrNotLeader = errors.New("this server is no longer the leader")
)

// ElectionKey is the key of the election; its value is the name of the leading candidate. Only a store writes it.
const ElectionKey = "leader"

// The limits of one commit.
const (
	MaxOps   = 100
	MaxBytes = 1 << 20
)

// Entry is one key with its value. Revision is that of the commit that last wrote it.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64
}

// Snapshot is a consistent read, in key order, as of Revision.
type Snapshot struct {
	Entries  []Entry
	Revision int64
}

// Change is one key written or deleted at a revision. Value is nil when Deleted.
type Change struct {
	Entry
	Deleted bool
}

// Cond is a condition of a commit.
type Cond struct {
	Key string
	// Revision the key must have been last written at; 0: the key must not exist.
	Revision int64
	// Leader marks the guard of a leadership: when it does not hold, the commit fails with ErrNotLeader, whatever else failed.
	Leader bool
}

// Op is one write of a commit. A commit writes no key twice.
type Op struct {
	Key   string
	Value []byte
	// Delete removes Key; DeletePrefix removes every key that begins with Key.
	Delete       bool
	DeletePrefix bool
}

// Store is ordered, durable, linearizable state.
type Store interface {
	// Get returns the entry and true, or false when the key does not exist.
	Get(ctx context.Context, key string) (Entry, bool, error)
	// List returns everything under some prefixes, of which none begins with another.
	List(ctx context.Context, prefixes ...string) (Snapshot, error)
	// Page returns the first entries under a prefix whose keys come after a key, "" for the first of all: limit of them, or all there are.
	// Each page is as of the newest revision, so what is written or deleted between two pages may be seen or not; Entry.Revision says of
	// what is seen when it was written.
	Page(ctx context.Context, prefix, after string, limit int) (Snapshot, error)
	// Watch delivers, in order and without gaps, the changes of every commit after revision that touches the prefix: one slice a
	// commit. The channel is closed when ctx ends or the history is gone; Err of the watch then tells which.
	Watch(ctx context.Context, prefix string, after int64) Watch
	// Commit writes all ops when all conditions hold, else nothing and ErrConflict (ErrNotLeader when it is the leadership's
	// guard that fails). It returns the revision of the commit. At most MaxOps conditions, MaxOps ops and MaxBytes of keys and
	// values.
	Commit(ctx context.Context, conds []Cond, ops []Op) (int64, error)
	// Campaign blocks until this candidate leads. A candidate that is named like the present leader takes its place at once:
	// names are unique among live servers (each holds the lock of its state directory), so the old holder is dead.
	Campaign(ctx context.Context, candidate string) (Leadership, error)
	Close() error
}

// Watch is a stream of changes.
type Watch interface {
	Changes() <-chan []Change
	// Err tells, after Changes was closed, why: the context's error, ErrCompacted or ErrClosed; never nil.
	Err() error
}

// Leadership is a won election.
type Leadership interface {
	// Term is the revision of the commit that won the election, so it grows with every election; executors reject a smaller
	// one than they have seen.
	Term() int64
	// Guard is the condition that makes a commit fail when this leadership is over.
	Guard() Cond
	// Done is closed when the leadership is lost.
	Done() <-chan struct{}
	// Resign gives the leadership up at once.
	Resign(ctx context.Context) error
}
