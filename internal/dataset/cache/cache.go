// Package cache keeps a node's caches of datasets: a server for each dataset that members of the node read through it (XCache, or nginx for web servers; server.go).
//
// Each has a process, a directory and a table of rights of its own: nobody reads through it what is not of its dataset. It must never decide which members
// may reach which cache: the agent does, by what it listens to in members (Store.Serve). A cache ends with its agent, and the next one starts it again over
// what is on the disk. Start with Store.Want and Store.Run; room.go divides the node's room.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config is what a Store needs.
type Config struct {
	// Dir is the store's own directory.
	Dir string
	// MaxBytes bounds all caches together; 0: a tenth of the disk, at most 64 GiB.
	MaxBytes int64
	// BlockBytes, Prefetch, LowPercent and HighPercent are those of each cache (xrootd.CacheConfig).
	BlockBytes              int64
	Prefetch                int
	LowPercent, HighPercent int
	// PatienceSeconds is how long an origin may send nothing until readers get an error.
	PatienceSeconds int
	// Allow says why an address must not be an origin's; nil: all may.
	Allow func(netip.Addr) error
	// Authorities is a file with the certificates of the authorities that web servers' certificates must come from; empty: those that the host trusts.
	Authorities string
	// Space is the network namespace of the caches; nil: this program's.
	Space *netns.Handle
	// Changed is called when States has changed.
	Changed func()
	Log     *slog.Logger
}

// Store is a node's caches.
type Store struct {
	cfg Config

	mu    sync.Mutex
	known bool // Want was called
	all   map[string]*cached
	wake  chan struct{}
	loads sync.WaitGroup
}

// cached is a dataset that is read through a cache, or has been.
type cached struct {
	uid  string
	want *dataset.CacheOrder // nil: the leader does not name it
	// running is its server; nil: there is none. at is where that listens.
	running server
	at      netip.AddrPort // of one of XRootD
	size    int64
	held    int64
	figures dataset.CacheFigures
	counted counters // by the present server
	message string
	// loading is how far its preload is, while there is one. preloaded: all of it was read through, and is right.
	loading   string
	preloaded bool
	// spoiled: what it has is not what the dataset's checksum is of, and must go.
	spoiled  bool
	failures int
	retry    time.Time
	lastUse  time.Time
}

// Names below a cache's directory.
const (
	dirStore = "store"
	dirWork  = "work"
)

const (
	// retryMin and retryMax are the pauses before a server is started again.
	retryMin = time.Second
	retryMax = time.Minute
	// lookEvery is how often figures are read.
	lookEvery = time.Second
)

// Open opens a store and finds what is there.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg, all: map[string]*cached{}, wake: make(chan struct{}, 1)}
	s.cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if s.cfg.Changed == nil {
		s.cfg.Changed = func() {}
	}
	if s.cfg.Allow == nil {
		s.cfg.Allow = func(netip.Addr) error { return nil }
	}
	if err := validate(cfg); err != nil {
		return nil, fmt.Errorf("caches can't be as they are configured (--xcache): %w", err)
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("caches can't be stored: %w", err)
	}
	found, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("caches can't be listed: %w", err)
	}
	for _, e := range found {
		c := &cached{uid: e.Name()}
		for _, name := range []string{"", dirWork} { // that of XCache changes with each start
			if info, err := os.Stat(s.path(c.uid, name)); err == nil {
				c.lastUse = info.ModTime()
			}
		}
		c.held = onDisk(s.path(c.uid, dirStore))
		s.all[c.uid] = c
	}
	if cfg.Space == nil {
		own, err := netns.Current()
		if err != nil {
			return nil, err
		}
		s.cfg.Space = &own
	}
	if s.cfg.MaxBytes == 0 {
		s.cfg.MaxBytes, err = roomOf(cfg.Dir)
	}
	return s, err
}

func (s *Store) path(uid string, below ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir, uid}, below...)...)
}

// Want takes over all that the leader wants to be cached on this node.
func (s *Store) Want(all []dataset.CacheOrder) {
	s.mu.Lock()
	s.known = true
	named := map[string]*dataset.CacheOrder{}
	for i := range all {
		named[all[i].UID] = &all[i]
		if s.all[all[i].UID] == nil {
			s.all[all[i].UID] = &cached{uid: all[i].UID}
		}
	}
	for uid, c := range s.all {
		c.want = named[uid]
	}
	s.mu.Unlock()
	s.poke()
}

func (s *Store) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loadIfWanted begins to preload a cache whose order asks for that.
func (s *Store) loadIfWanted(ctx context.Context, c *cached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.running == nil || c.want == nil || !c.want.Preload || c.preloaded || c.loading != "" || time.Until(c.retry) > 0 {
		return
	}
	order, running, at := *c.want, c.running, c.at.String()
	if size := need(&order, s.cfg.BlockBytes, cmp.Or(s.cfg.HighPercent, 90), 1<<62); c.size < size {
		c.message = fmt.Sprintf("it can't be preloaded into a cache of %d MiB: with room to spare it takes %d MiB (nothing is known of files without a size); read it as cached, or give the node more room (--xcache)", c.size>>20, size>>20)
		return
	}
	c.loading = "is being read into its cache"
	s.loads.Go(func() {
		err := s.preload(ctx, c, &order, running, at)
		s.mu.Lock()
		defer s.mu.Unlock()
		c.loading = ""
		if c.running != running || ctx.Err() != nil {
			return // it was read from a server that is gone
		}
		if c.preloaded = err == nil; c.preloaded {
			c.message, c.failures = "", 0
			return
		}
		c.message, c.spoiled = err.Error(), errors.Is(err, transfer.ErrChecksum)
		c.retry = time.Now().Add(min(retryMin<<min(c.failures, 10), retryMax))
		c.failures++
		s.poke()
	})
}

// Run starts what is wanted and ends what is not, until ctx ends. Then nothing of it runs.
func (s *Store) Run(ctx context.Context) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	defer s.stopAll()
	defer s.loads.Wait()
	for ctx.Err() == nil {
		changed := s.converge(ctx)
		if s.look() || changed {
			s.cfg.Changed()
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-ticks.C:
		}
	}
}

// converge starts and ends servers, and reports whether it did.
func (s *Store) converge(ctx context.Context) (changed bool) {
	for _, c := range s.sorted() {
		s.mu.Lock()
		known, wanted, running, wait := s.known, c.want != nil && !c.want.Purge, c.running, time.Until(c.retry)
		spoiled := c.spoiled
		purge := c.want != nil && c.want.Purge && running == nil
		s.mu.Unlock()
		switch {
		case running != nil && !known: // nobody has said that it is to end
		case running != nil && (!wanted || spoiled):
			s.end(c)
			changed = true
		case spoiled:
			if err := s.remove(ctx, c); err != nil {
				s.cfg.Log.Warn("a cache with a wrong file can't be removed; trying again", "dataset", c.uid, "error", err)
			}
			changed = true
		case running != nil:
			select {
			case <-running.Ended():
				s.died(c)
				changed = true
			default:
				s.loadIfWanted(ctx, c)
			}
		case purge:
			if err := s.remove(ctx, c); err != nil {
				s.cfg.Log.Warn("the cache of a deleted dataset can't be removed; trying again", "dataset", c.uid, "error", err)
			}
			changed = true
		case wanted && wait <= 0:
			s.noteStart(c, s.start(ctx, c))
			changed = true
		}
	}
	return changed
}

func (s *Store) sorted() []*cached {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*cached, 0, len(s.all))
	for _, uid := range slices.Sorted(maps.Keys(s.all)) {
		list = append(list, s.all[uid])
	}
	return list
}

// start starts the server of a cache.
func (s *Store) start(ctx context.Context, c *cached) error {
	s.mu.Lock()
	order := *c.want
	s.mu.Unlock()
	backing, why := dataset.BackingOf(order.Files, order.Credential != nil)
	if why != "" {
		return errors.New(why)
	}
	servers := []string{backing.XRootD.Server}
	if len(backing.Web) > 0 {
		servers = webServers(backing.Web)
	}
	for _, at := range servers {
		if err := s.allowed(ctx, at); err != nil {
			return err
		}
	}
	size, err := s.makeRoom(ctx, c, &order)
	if err != nil {
		return err
	}
	if err := s.cfg.Space.Do(func() error { return protect(ctx) }); err != nil {
		return err
	}
	var running server
	var at netip.AddrPort
	if len(backing.Web) > 0 {
		running, err = s.startWeb(ctx, c, &order, backing.Web, size)
	} else {
		running, at, err = s.startXRootD(ctx, c, backing.XRootD, size)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.running, c.at, c.size, c.counted, c.message = running, at, size, counters{}, ""
	return nil
}

// allowed refuses an origin that is this node: what serves others there must not be reached this way. That the server's name leads elsewhere later, or a
// redirect does, is what protect is for.
func (s *Store) allowed(ctx context.Context, server string) error {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return err
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err := s.cfg.Allow(a); err != nil {
			return fmt.Errorf("%s must not be read from: %w", host, err)
		}
	}
	return nil
}

// noteStart notes how a start went.
func (s *Store) noteStart(c *cached, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.lastUse = time.Now()
	if err == nil {
		if c.want == nil || !c.want.Preload { // else it may have failed by what it read
			c.failures = 0
		}
		s.cfg.Log.Info("a cache was started", "dataset", c.uid, "at", c.at, "size_bytes", c.size)
		return
	}
	c.message = err.Error()
	c.retry = time.Now().Add(min(retryMin<<min(c.failures, 10), retryMax))
	c.failures++
	s.cfg.Log.Warn("a cache can't be started; trying again", "dataset", c.uid, "error", err, "attempt", c.failures)
}

// died notes that a server has ended by itself. It is started again at once.
func (s *Store) died(c *cached) {
	s.mu.Lock()
	running := c.running
	c.figures.Restarts++
	s.take(c)
	c.running, c.message = nil, "its server has ended, and is being started again"
	s.mu.Unlock()
	s.cfg.Log.Warn("a cache has ended by itself; it is started again", "dataset", c.uid)
	_ = running.Stop()
	s.poke()
}

// end ends a server that nobody needs any more.
func (s *Store) end(c *cached) {
	s.mu.Lock()
	running := c.running
	s.take(c)
	c.running, c.lastUse = nil, time.Now()
	s.mu.Unlock()
	if err := running.Stop(); err != nil {
		s.cfg.Log.Warn("a cache did not end by itself", "dataset", c.uid, "error", err)
	}
}

func (s *Store) stopAll() {
	for _, c := range s.sorted() {
		if c.running != nil {
			s.end(c)
		}
	}
	_ = s.cfg.Space.Do(func() error { unprotect(context.Background()); return nil }) // ctx has ended, and nothing of the store may be left
}

// take adds what the present server has counted since it was last asked; the lock is held.
func (s *Store) take(c *cached) bool {
	now, was := c.running.counters(), c.counted
	c.counted = now
	c.figures.HitBytes += now.HitBytes - was.HitBytes
	c.figures.MissBytes += now.MissBytes - was.MissBytes
	c.figures.AheadBytes += now.AheadBytes - was.AheadBytes
	c.figures.AgainBytes += now.AgainBytes - was.AgainBytes
	return now.reads != was.reads
}

// look reads the figures of what runs, and reports whether they differ.
func (s *Store) look() (changed bool) {
	for _, c := range s.sorted() {
		s.mu.Lock()
		running := c.running != nil
		s.mu.Unlock()
		if !running {
			continue
		}
		held := onDisk(s.path(c.uid, dirStore))
		s.mu.Lock()
		changed = s.take(c) || changed || held != c.held
		c.held = held
		if c.message == "" && c.figures.TooSmall(c.size) {
			c.message = tooSmall(c)
			changed = true
		}
		s.mu.Unlock()
	}
	return changed
}

// tooSmall says that what is read does not fit.
func tooSmall(c *cached) string {
	return fmt.Sprintf("the cache of %d MiB is too small for what is read through it: %d MiB were fetched again after they had to make room; read copies, or give the node more room (--xcache)",
		c.size>>20, c.figures.AgainBytes>>20)
}

// Ready reports whether a dataset can be read through its cache, and if it is to be preloaded, whether all of it is there; and if not, why.
func (s *Store) Ready(uid string, preloaded bool) (ok bool, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[uid]
	switch {
	case c == nil || c.want == nil || c.want.Purge:
		return false, "is not known to this node's cache yet"
	case c.running != nil && (c.preloaded || !preloaded):
		return true, ""
	case c.loading != "":
		return false, c.loading
	case c.message != "":
		return false, "can't be cached: " + c.message
	default:
		return false, "waits for its cache to start"
	}
}

// Serve has the cache of a dataset serve a connection until that ends, the cache does, or ctx does. The connection is closed then, by the cache, too.
func (s *Store) Serve(ctx context.Context, uid string, conn net.Conn) error {
	s.mu.Lock()
	c := s.all[uid]
	var running server
	if c != nil {
		running = c.running
	}
	s.mu.Unlock()
	inside, ok := conn.(*net.TCPConn)
	if running == nil || !ok {
		_ = conn.Close()
		return errors.New("its cache does not run")
	}
	return running.Serve(ctx, inside)
}

// States returns all datasets that are read through a cache, or have something in one.
func (s *Store) States() []dataset.CacheState {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]dataset.CacheState, 0, len(s.all))
	for _, uid := range slices.Sorted(maps.Keys(s.all)) {
		c := s.all[uid]
		list = append(list, dataset.CacheState{
			UID: uid, Running: c.running != nil, Message: c.message, SizeBytes: c.size, HeldBytes: c.held, CacheFigures: c.figures,
		})
	}
	return list
}

// remove removes what is on the disk of a cache that does not run.
func (s *Store) remove(ctx context.Context, c *cached) error {
	if err := filetree.Remove(ctx, s.path(c.uid)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.held, c.size, c.spoiled, c.preloaded = 0, 0, false, false
	if c.want == nil || c.want.Purge {
		delete(s.all, c.uid)
	}
	return nil
}
