package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nearmetal/nearmetal/internal/store"
)

// electionKey holds the name of the leading candidate, under the lease that the leader keeps alive. The revision of its last
// write is the term: a takeover overwrites it, which ends the old term in the same commit.
const electionKey = root + store.ElectionKey

type leadership struct {
	s      *Store
	term   int64
	lease  clientv3.LeaseID
	done   chan struct{}
	once   sync.Once
	cancel context.CancelFunc

	resigned atomic.Bool
}

func (l *leadership) Term() int64 { return l.term }

func (l *leadership) Guard() store.Cond {
	return store.Cond{Key: store.ElectionKey, Revision: l.term, Leader: true}
}

func (l *leadership) Done() <-chan struct{} { return l.done }

// lost ends the leadership on this side.
func (l *leadership) lost() {
	l.once.Do(func() {
		l.cancel()
		close(l.done)
	})
}

// Resign removes the election key by revoking its lease.
func (l *leadership) Resign(ctx context.Context) error {
	l.lost()
	if l.resigned.Swap(true) {
		return nil
	}
	inner, end, err := l.s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	// A lease that has expired is as good as revoked.
	if _, err := l.s.client.Revoke(inner, l.lease); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("resign: %w", l.s.explain(ctx, err))
	}
	return nil
}

// Campaign blocks until candidate leads.
func (s *Store) Campaign(ctx context.Context, candidate string) (store.Leadership, error) {
	inner, end, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	l, err := s.campaign(inner, candidate)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	return l, nil
}

func (s *Store) campaign(ctx context.Context, candidate string) (*leadership, error) {
	for {
		seat, err := s.client.Get(ctx, electionKey)
		if err != nil {
			return nil, err
		}
		var seen int64 // the revision of the seat, 0 when it is empty
		if len(seat.Kvs) > 0 {
			seen = seat.Kvs[0].ModRevision
			if string(seat.Kvs[0].Value) != candidate {
				if err := s.waitForSeat(ctx, seat.Header.Revision); err != nil {
					return nil, err
				}
				continue
			}
		}
		l, err := s.takeSeat(ctx, candidate, seen)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// takeSeat writes the election key if its revision is still seen; nil without an error when another was quicker.
func (s *Store) takeSeat(ctx context.Context, candidate string, seen int64) (*leadership, error) {
	lease, err := s.client.Grant(ctx, int64(s.ttl.Seconds()))
	if err != nil {
		return nil, err
	}
	r, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(electionKey), "=", seen)).
		Then(clientv3.OpPut(electionKey, candidate, clientv3.WithLease(lease.ID))).Commit()
	if err != nil || !r.Succeeded {
		// What is not kept alive expires by itself, so an error here costs nothing.
		_, _ = s.client.Revoke(ctx, lease.ID)
		return nil, err
	}
	keep, cancel := context.WithCancel(s.ctx)
	l := &leadership{s: s, term: r.Header.Revision, lease: lease.ID, done: make(chan struct{}), cancel: cancel}
	s.calls.Add(2)
	go l.keepAlive(keep)
	go l.guardSeat(keep)
	return l, nil
}

// keepAlive renews the lease until it can't, which ends the leadership.
func (l *leadership) keepAlive(ctx context.Context) {
	defer l.s.calls.Done()
	defer l.lost()
	alive, err := l.s.client.KeepAlive(ctx, l.lease)
	if err != nil {
		return
	}
	// The channel is closed when the lease has expired, or no answer came for its time to live.
	for range alive {
	}
}

// guardSeat ends the leadership when the election key is deleted or overwritten.
func (l *leadership) guardSeat(ctx context.Context) {
	defer l.s.calls.Done()
	defer l.lost()
	for r := range l.s.client.Watch(ctx, electionKey, clientv3.WithRev(l.term+1)) {
		if len(r.Events) > 0 || r.Err() != nil {
			return
		}
	}
}

// waitForSeat returns when the election key was written or deleted after revision.
func (s *Store) waitForSeat(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for r := range s.client.Watch(ctx, electionKey, clientv3.WithRev(revision+1)) {
		if len(r.Events) > 0 {
			return nil
		}
		if err := r.Err(); err != nil {
			return err
		}
	}
	return ctx.Err()
}
