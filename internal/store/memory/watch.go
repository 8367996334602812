package memory

import (
	"context"
	"sort"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/internal/store"
)

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

// Watch delivers the changes after a revision.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) store.Watch {
	w := &watch{changes: make(chan []store.Change)}
	go func() {
		err := s.follow(ctx, w, prefix, after)
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		close(w.changes)
	}()
	return w
}

func (s *Store) follow(ctx context.Context, w *watch, prefix string, after int64) error {
	for {
		batch, changed, err := s.next(ctx, after)
		if err != nil {
			return err
		}
		for _, commit := range batch {
			after = commit[0].Revision
			if hits := filter(commit, prefix); len(hits) > 0 {
				select {
				case w.changes <- hits:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the commits after a revision, and what is closed when there are more.
func (s *Store) next(ctx context.Context, after int64) ([][]store.Change, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, nil, err
	}
	if after < s.compacted {
		return nil, nil, store.ErrCompacted
	}
	from := sort.Search(len(s.history), func(i int) bool { return s.history[i][0].Revision > after })
	return s.history[from:len(s.history):len(s.history)], s.changed, nil
}

func filter(commit []store.Change, prefix string) []store.Change {
	var hits []store.Change
	for _, c := range commit {
		if strings.HasPrefix(c.Key, prefix) {
			hits = append(hits, c)
		}
	}
	return hits
}
