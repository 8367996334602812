package memory

import (
	"context"

	"github.com/nearmetal/nearmetal/internal/store"
)

type leadership struct {
	s         *Store
	candidate string
	term      int64
	done      chan struct{}
}

func (l *leadership) Term() int64 { return l.term }

func (l *leadership) Guard() store.Cond {
	return store.Cond{Key: store.ElectionKey, Revision: l.term, Leader: true}
}

func (l *leadership) Done() <-chan struct{} { return l.done }

func (l *leadership) Resign(context.Context) error {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.leader == l {
		l.s.depose()
	}
	return nil
}

// Campaign blocks until candidate leads.
func (s *Store) Campaign(ctx context.Context, candidate string) (store.Leadership, error) {
	for {
		l, changed, err := s.elect(ctx, candidate)
		if l != nil || err != nil {
			return l, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// elect makes candidate the leader when the seat is empty or held by a dead namesake; else it returns what to wait for.
func (s *Store) elect(ctx context.Context, candidate string) (store.Leadership, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, nil, err
	}
	if s.leader != nil {
		if s.leader.candidate != candidate {
			return nil, s.changed, nil
		}
		close(s.leader.done)
	}
	term := s.apply([]store.Op{{Key: store.ElectionKey, Value: []byte(candidate)}})
	s.leader = &leadership{s: s, candidate: candidate, term: term, done: make(chan struct{})}
	return s.leader, nil, nil
}

// Depose ends the present leadership as an expired lease would.
func (s *Store) Depose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.depose()
}

// depose is Depose with the lock held.
func (s *Store) depose() {
	if s.leader == nil {
		return
	}
	close(s.leader.done)
	s.leader = nil
	if !s.closed {
		s.apply([]store.Op{{Key: store.ElectionKey, Delete: true}})
	}
}
