// Package etcd is the real state store: an etcd server inside this process, or an etcd cluster elsewhere.
//
// Embedded, it opens no port and no socket: calls go to the server by function. It syncs to disk before it says yes, always;
// nothing here may ever switch that off, nor give keys or values a meaning.
//
// What happens when the disk is full was tried (disk_test.go). etcd can't extend its log or its database and would end the
// process. Here it ends itself instead: every call then fails at once with an error that tells what to do, and Failed is closed
// so that the server can end in order. After a restart with free space everything confirmed is there; a restart without gives
// the same error.
//
// Start with Open, then commit.go, watch.go and election.go; embedded.go holds how the server is run.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/nearmetal/nearmetal/internal/store"
)

// root goes before every key, so that an etcd cluster can be shared with other programs.
const root = "nearmetal/"

// Config says where the state is: either Dir or Endpoints.
type Config struct {
	// Dir is the directory of the embedded server; it is made when missing. One process at a time can have it open.
	Dir string
	// Endpoints are the addresses of an etcd cluster, as host:port or URL; TLS is how to speak to it, nil for plain text.
	Endpoints []string
	TLS       *tls.Config
	// LeaderTTL is how long after the death of a leader another server takes over, 3 s when zero; whole seconds.
	LeaderTTL time.Duration
	// Log gets etcd's own warnings and errors; slog.Default() when nil.
	Log *slog.Logger
}

// Store is state in etcd.
type Store struct {
	client *clientv3.Client
	ttl    time.Duration
	// stop ends the embedded server; it does nothing in the external case.
	stop func()

	// ctx ends when the store is closed or has failed: no call outlives it.
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	closed bool
	calls  sync.WaitGroup
	failed chan struct{}
}

var _ store.Store = (*Store)(nil)

// Open starts the embedded server or connects to the cluster. It returns when state can be read and written, or ctx ends.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if (cfg.Dir == "") == (len(cfg.Endpoints) == 0) {
		return nil, errors.New("give either the directory of an embedded etcd or the endpoints of an etcd cluster")
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.LeaderTTL == 0 {
		cfg.LeaderTTL = 3 * time.Second
	}
	s := &Store{ttl: cfg.LeaderTTL, stop: func() {}, failed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if cfg.Dir != "" {
		if err := s.startEmbedded(ctx, cfg); err != nil {
			if s.Err() != nil {
				return nil, err // it says where and what already
			}
			return nil, fmt.Errorf("open the state in %s: %w", cfg.Dir, err)
		}
		return s, nil
	}
	if err := s.connect(ctx, cfg); err != nil {
		return nil, fmt.Errorf("connect to etcd at %v: %w; check that it runs, and check the addresses and the certificates", cfg.Endpoints, err)
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context, cfg Config) error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Logger: zap.New(newCore(cfg.Log, nil)),
		DialTimeout: 5 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		return err
	}
	s.client = client
	if _, _, err := s.Get(ctx, store.ElectionKey); err != nil {
		_ = client.Close()
		return err
	}
	return nil
}

// Failed is closed when the embedded server can't go on, because the disk is full or broken; Err then tells why. Everything
// that was confirmed is on disk. The server should end: only a new Open recovers.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Err tells why the store failed or is closed, or nil.
func (s *Store) Err() error { return context.Cause(s.ctx) }

// fail makes every call fail with err, for ever. Only the first failure counts.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.cancel(err)
		close(s.failed)
	}
}

// Close ends all calls, watches and campaigns, then the embedded server. A leadership is not resigned by it: do that before.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.cancel(store.ErrClosed)
	s.mu.Unlock()
	s.calls.Wait()
	err := s.client.Close()
	s.stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the etcd client: %w", err)
	}
	return nil
}

// begin binds a call to the store's own life. The server must not be stopped while a call is inside it, so calls are counted.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, nil, context.Cause(s.ctx)
	}
	s.calls.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel(); s.calls.Done() }, nil
}

// explain gives an error of etcd its meaning here. outer is the caller's own context.
func (s *Store) explain(outer context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case outer.Err() != nil:
		return outer.Err()
	case errors.Is(err, rpctypes.ErrNoSpace) || errors.Is(err, rpctypes.ErrGRPCNoSpace):
		return fmt.Errorf("etcd has reached its quota and accepts no more writes: %w; run etcdctl compact, defrag and alarm disarm", err)
	case errors.Is(err, rpctypes.ErrCompacted) || errors.Is(err, rpctypes.ErrGRPCCompacted):
		return store.ErrCompacted
	}
	return fmt.Errorf("etcd: %w", err)
}
