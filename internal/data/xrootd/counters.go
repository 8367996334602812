package xrootd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/internal/handover"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Counters are what a cache has done with the bytes that were read from it, since it was started, as it reports them when files are closed. It counts
// what readers ask for again while it is being fetched as hits, and a block twice that two of them missed.
type Counters struct {
	// Files is how often a file was closed.
	Files int64 `json:"files"`
	// HitBytes were in the cache, MissBytes had to be fetched, and BypassBytes were passed on without being kept.
	HitBytes    int64 `json:"hit_bytes"`
	MissBytes   int64 `json:"miss_bytes"`
	BypassBytes int64 `json:"bypass_bytes"`
	// CorruptBlocks came with a wrong checksum.
	CorruptBlocks int64 `json:"corrupt_blocks"`
	// FetchedBytes came from the origin and were kept, asked for or not. AgainBytes of them had been there before, and were removed for lack of room.
	FetchedBytes int64 `json:"fetched_bytes"`
	AgainBytes   int64 `json:"again_bytes"`

	// there is what was there of each file when it was last closed.
	there map[string]int64
}

// AheadBytes were fetched before a reader asked for them: blocks ahead of it, and the rest of blocks of which it asked for a part.
func (c Counters) AheadBytes() int64 { return max(0, c.FetchedBytes-c.MissBytes) }

// Cache caches the files of one server.
type Cache struct {
	process
	reports *net.UDPConn
	mu      sync.Mutex
	count   Counters
}

// StartCache starts a cache in a network namespace, from which it reaches its origin, and returns when it listens. What an earlier one has left in
// Dir is there again.
func StartCache(ctx context.Context, space netns.Handle, cfg CacheConfig) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Cache{}
	if err := space.Do(func() (err error) {
		c.reports, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		return err
	}); err != nil {
		return nil, err
	}
	reports := c.reports.LocalAddr().(*net.UDPAddr).AddrPort()
	p, err := start(ctx, space, launch{
		at: cfg.Address, work: cfg.Work, base: cfg.Base, text: cfg.text(netip.AddrPortFrom(reports.Addr().Unmap(), reports.Port())),
		files: map[string]string{fileRights: cfg.rights()}, owned: []string{cfg.Dir}, env: cfg.environment(), gate: cfg.Handed,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting a cache of %s: %w", cfg.Origin, err), c.reports.Close())
	}
	c.process = p
	go c.listen()
	return c, nil
}

// listen adds up what the cache reports until the socket is closed.
func (c *Cache) listen() {
	data := make([]byte, 1<<16)
	for {
		n, err := c.reports.Read(data)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			c.mu.Lock()
			c.count.add(string(data[:n]))
			c.mu.Unlock()
		}
	}
}

// add adds what a report says: lines of JSON, of which the first is a header, and each other is a file that was closed (XRootD System Monitoring
// Reference, "g-stream", events of pfc). Lines that say something else are left out.
func (c *Counters) add(report string) {
	for line := range strings.SplitSeq(strings.TrimRight(report, "\x00"), "\n") {
		var file struct {
			Event    string `json:"event"`
			Name     string `json:"lfn"`
			Size     int64  `json:"size"`
			Block    int64  `json:"blk_size"`
			Done     int64  `json:"n_blks_done"`
			Accesses int64  `json:"access_cnt"`
			Hit      int64  `json:"b_hit"`
			Miss     int64  `json:"b_miss"`
			Bypass   int64  `json:"b_bypass"`
			Corrupt  int64  `json:"n_cks_errs"`
		}
		if json.Unmarshal([]byte(line), &file) != nil || file.Event != "file_close" {
			continue
		}
		c.Files++
		c.HitBytes += file.Hit
		c.MissBytes += file.Miss
		c.BypassBytes += file.Bypass
		c.CorruptBlocks += file.Corrupt
		c.keep(file.Name, min(file.Done*file.Block, file.Size), file.Miss, file.Accesses <= 1)
	}
}

// keep notes how much of a file is there. anew: the file is new to the cache, so what was there before had been removed.
func (c *Counters) keep(name string, there, missed int64, anew bool) {
	if c.there == nil {
		c.there = map[string]int64{}
	}
	before, known := c.there[name]
	c.there[name] = there
	switch {
	case anew || there < before:
		c.FetchedBytes += there
		c.AgainBytes += min(there, before)
	case known:
		c.FetchedBytes += there - before
	default: // an earlier process has fetched a part of it
		c.FetchedBytes += min(there, missed)
	}
}

// Counters are those of files that were closed a second ago or earlier.
func (c *Cache) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// Serve has the cache serve a connection until that ends, the cache does, or ctx does. It is closed then, also by the cache: one that keeps it is ended.
func (c *Cache) Serve(ctx context.Context, conn *net.TCPConn) error {
	if c.gate == nil {
		_ = conn.Close()
		return errors.New("the cache was not started to be handed connections")
	}
	err := c.gate.Serve(ctx, conn)
	if errors.Is(err, handover.ErrKept) { // it waits for its origin, or hangs
		err = errors.Join(err, c.process.kill())
	}
	return err
}

// Stop ends the cache. What it has cached stays.
func (c *Cache) Stop() error { return errors.Join(c.process.Stop(), c.reports.Close()) }

// Drop removes what a stopped cache has cached.
func Drop(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(dir+"/"+e.Name()))
	}
	return err
}
