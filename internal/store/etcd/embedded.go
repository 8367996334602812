package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// stopTimeout is how long a failed server is given to stop; one in good order takes as long as it needs.
const stopTimeout = 500 * time.Millisecond

// routine are parts of warnings and errors that a server without listeners and with one member gives in good order.
var routine = []string{
	"Running http and grpc server on single port",  // there is no port
	"simple token is not cryptographically signed", // there are no users
	"missing term information",                     // the storage version is looked for before the first commit has told the term, and again later
	"Failed to detect storage schema version",      // the same
	"is unpromotable and can not campaign",         // as the next
	"cannot campaign at term",                      // a first start elects itself once its own membership is applied
	// What a server that is being closed did not get to do; it does so at the next start.
	"request cancelled",
	"context canceled",
	"skipping GoAttach",
}

// startEmbedded runs an etcd server in this process, and makes the client that calls it by function.
func (s *Store) startEmbedded(ctx context.Context, cfg Config) error {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	// It is the store's own directory, so its mode is too: nobody else has business in it.
	if err := os.Chmod(cfg.Dir, 0o700); err != nil {
		return err
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return err
	}
	e, err := s.runEmbedded(ctx, cfg)
	if err != nil {
		// A server that could not be stopped still has the directory, so the lock stays until the process ends.
		if e == nil && s.Err() == nil {
			_ = lock.Close()
		}
		return err
	}
	s.client = v3client.New(e.Server)
	s.calls.Add(1)
	go s.keepRoom(cfg.Dir)
	s.stop = func() {
		if s.stopEmbedded(e) {
			_ = lock.Close()
		}
	}
	return nil
}

// runEmbedded starts the server and waits until it answers. With an error it returns a server only if that can't be stopped.
func (s *Store) runEmbedded(ctx context.Context, cfg Config) (*embed.Etcd, error) {
	type result struct {
		e   *embed.Etcd
		err error
	}
	started := make(chan result, 1)
	// In a goroutine of its own, because a fatal error ends the goroutine it occurs in (fatal).
	go func() {
		res := result{err: errors.New("etcd could not start")}
		defer func() { started <- res }()
		res.e, res.err = embed.StartEtcd(s.embedConfig(cfg))
	}()
	// The start itself can't be interrupted: it waits for the disk only.
	res := <-started
	if s.Err() != nil {
		return nil, s.Err()
	}
	if res.err != nil {
		return nil, res.err
	}
	var err error
	select {
	case <-res.e.Server.ReadyNotify():
		return res.e, nil
	case <-s.failed:
		err = s.Err()
	case <-ctx.Done():
		err = fmt.Errorf("etcd was not ready in time: %w", ctx.Err())
	}
	if s.stopEmbedded(res.e) {
		return nil, err
	}
	return res.e, err
}

// stopEmbedded tells whether the server stopped. One that has failed may hold locks for ever; it writes nothing any more.
func (s *Store) stopEmbedded(e *embed.Etcd) bool {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		e.Close()
	}()
	select {
	case <-stopped:
		return true
	case <-s.failed:
	}
	select {
	case <-stopped:
		return true
	case <-time.After(stopTimeout):
		return false
	}
}

func (s *Store) embedConfig(cfg Config) *embed.Config {
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.Name = "nearmetal"
	// No listeners at all: the one client is in this process and there are no peers. The peer URL is only the member's name in
	// its own membership list; nobody ever calls it.
	self := url.URL{Scheme: "unix", Host: "nearmetal"}
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{self}, []url.URL{self}
	c.InitialCluster = c.Name + "=" + self.String()
	// A single member elects itself, so the election timeout only delays the start, by some 0.1 s on average. Each tick wakes threads all day long: with
	// ticks of 20 ms an idle server took 12.7 ms of processor time a second, with these 5.0.
	c.TickMs, c.ElectionMs = 100, 500
	// How much of the log is replayed at a start, and kept in memory, where an entry may be a megabyte. The second must be well
	// above the first: a log that is compacted while it is replayed makes raft panic if it looks for membership changes in
	// between.
	c.SnapshotCount, c.SnapshotCatchUpEntries = 500, 1000
	c.MaxSnapFiles, c.MaxWalFiles = 2, 2
	// A watch that lags behind by more than a minute lists anew; older history only takes space.
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1m"
	c.BootstrapDefragThresholdMegabytes = defragThreshold(cfg.Dir)
	// No quota: its alarm would have to be disarmed by hand after a burst of writes. The disk is the limit, and a full one is
	// reported (fatal).
	c.QuotaBackendBytes = -1
	c.WarningApplyDuration = time.Second
	c.WarningUnaryRequestDuration = 2 * time.Second
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(newCore(cfg.Log, routine),
		zap.WithFatalHook(fatal{s, cfg.Dir}), zap.WithPanicHook(fatal{s, cfg.Dir})))
	return c
}

// fatal is what happens when etcd can't go on: instead of ending the process it fails the store and ends the goroutine, so
// that the error reaches a person and the server ends in order. etcd confirms nothing after it.
type fatal struct {
	s   *Store
	dir string
}

// OnWrite is called after the fatal entry was logged; it must not return.
func (f fatal) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(e.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok {
			err = fmt.Errorf("%s: %w", e.Message, cause)
			break
		}
	}
	advice := "check the disk and the log, then start the server again"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		advice = "free space on its disk, then start the server again"
	}
	f.s.fail(fmt.Errorf("the state in %s can't be written (%w); everything confirmed earlier is safe; %s", f.dir, err, advice))
	runtime.Goexit()
}

// lockDir makes sure that one process at a time has the directory open: etcd itself would wait for ever.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another nearmetal server uses it; stop that server or use another state directory")
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
