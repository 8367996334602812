package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nearmetal/nearmetal/internal/store"
)

// watchRetry is how long a broken watch of an etcd cluster rests before it resumes.
const watchRetry = 200 * time.Millisecond

type watch struct {
	changes chan []store.Change
	mu      sync.Mutex
	err     error
}

func (w *watch) Changes() <-chan []store.Change { return w.changes }

func (w *watch) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Watch delivers the changes after a revision. A lost connection is taken up again where it broke off.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) store.Watch {
	w := &watch{changes: make(chan []store.Change)}
	go func() {
		err := s.follow(ctx, w.changes, prefix, after)
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		close(w.changes)
	}()
	return w
}

func (s *Store) follow(ctx context.Context, changes chan<- []store.Change, prefix string, after int64) error {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	for {
		after, err = s.stream(inner, changes, prefix, after)
		if inner.Err() != nil || errors.Is(err, store.ErrCompacted) {
			return s.explain(ctx, errors.Join(err, inner.Err()))
		}
		select {
		case <-time.After(watchRetry):
		case <-inner.Done():
		}
	}
}

// stream delivers changes until the connection breaks; it returns the revision of the last one delivered.
func (s *Store) stream(ctx context.Context, changes chan<- []store.Change, prefix string, after int64) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Requiring a leader breaks the stream of a server that is cut off from its cluster, instead of waiting on it for ever.
	for r := range s.client.Watch(clientv3.WithRequireLeader(ctx), root+prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if r.CompactRevision != 0 {
			return after, store.ErrCompacted
		}
		if err := r.Err(); err != nil {
			return after, s.explain(ctx, err)
		}
		// One response may hold several commits, but never a part of one: fragments were not asked for.
		for events := r.Events; len(events) > 0; {
			n := 1
			for n < len(events) && events[n].Kv.ModRevision == events[0].Kv.ModRevision {
				n++
			}
			commit := make([]store.Change, n)
			for i, e := range events[:n] {
				commit[i] = store.Change{Entry: entry(e.Kv), Deleted: e.Type == clientv3.EventTypeDelete}
			}
			select {
			case changes <- commit:
			case <-ctx.Done():
				return after, ctx.Err()
			}
			after, events = commit[0].Revision, events[n:]
		}
	}
	return after, ctx.Err()
}
