// Package xrootd runs XRootD's servers: one that serves files (Server), and one that caches what other servers have (Cache, which XRootD calls XCache).
//
// Both are processes of Debian's xrootd-server. Their configurations are pure texts (this file), process.go runs them, and counters.go reads what the
// cache reports of each file. The package must never decide which files a member may read. Start with StartCache.
package xrootd

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// ServerConfig is a server of files.
type ServerConfig struct {
	// Address is where it listens.
	Address netip.AddrPort
	// Dir is served, read-only, and Work is where the process keeps its own files: absolute paths.
	Dir, Work string
}

// leastMemoryBytes is the least that XCache accepts (XrdPfcConfiguration.cc, "pfc.ram").
const leastMemoryBytes = 1 << 30

// leastPurgeSeconds is the shortest time between two purges that XCache accepts.
const leastPurgeSeconds = 60

// CacheConfig is a cache of the files of one server.
type CacheConfig struct {
	Address netip.AddrPort
	// Origin is the server, "host:port".
	Origin string
	// Dir holds what is cached, and Work is where the process keeps its own files: absolute paths.
	Dir, Work string
	// SizeBytes is what Dir may hold. When it is over nine tenths of that, files that were not read for the longest time go, until it is at eight tenths.
	// The cache looks once a minute, so Dir may hold more in between.
	SizeBytes int64
	// BlockBytes is what is fetched at once, and Prefetch how many blocks ahead of the reader; 0 is none.
	BlockBytes int64
	Prefetch   int
}

// blockUnit is the granule of blocks (XrdPfcConfiguration.cc, "pfc.blocksize": 4 KiB to 512 MiB).
const (
	blockUnit  = 4096
	largeBlock = 512 << 20
)

// Validate returns what is wrong with a cache's configuration.
func (c CacheConfig) Validate() error {
	var errs []error
	if c.Origin == "" || strings.ContainsAny(c.Origin, " \t\n#") {
		errs = append(errs, fmt.Errorf("%q is not the address of a server of files: write HOST:PORT", c.Origin))
	}
	for _, dir := range []string{c.Dir, c.Work} {
		if !filepath.IsAbs(dir) || strings.ContainsAny(dir, " \t\n#") {
			errs = append(errs, fmt.Errorf("XRootD can't have its files in %q: write an absolute path without blanks", dir))
		}
	}
	if c.BlockBytes < blockUnit || c.BlockBytes > largeBlock || c.BlockBytes%blockUnit != 0 {
		errs = append(errs, fmt.Errorf("blocks of %d B: they must be multiples of 4 KiB, up to 512 MiB", c.BlockBytes))
	}
	if c.SizeBytes < 8*c.BlockBytes {
		errs = append(errs, fmt.Errorf("a cache of %d B holds fewer than 8 blocks of %d B", c.SizeBytes, c.BlockBytes))
	}
	if c.Prefetch < 0 {
		errs = append(errs, fmt.Errorf("%d blocks ahead: it can't be less than 0", c.Prefetch))
	}
	return errors.Join(errs...)
}

func (c ServerConfig) text() string {
	return common(c.Address, c.Work) + lines(
		"all.export / r/o",
		"oss.localroot "+c.Dir,
		"xrootd.chksum max 2 adler32",
	)
}

// text is the cache's configuration; reports is where it sends what became of each file.
func (c CacheConfig) text(reports netip.AddrPort) string {
	return common(c.Address, c.Work) + lines(
		"all.export /",
		"ofs.osslib libXrdPss.so",
		"pss.cachelib libXrdPfc.so",
		"pss.origin "+c.Origin,
		"oss.localroot "+c.Dir,
		fmt.Sprintf("pfc.blocksize %d", c.BlockBytes),
		fmt.Sprintf("pfc.prefetch %d", c.Prefetch),
		fmt.Sprintf("pfc.ram %d", leastMemoryBytes),
		// The first two bound the whole disk, which is not the cache's alone.
		fmt.Sprintf("pfc.diskusage 0.98 0.99 files %s %s %s purgeinterval %d", part(c.SizeBytes, 7), part(c.SizeBytes, 8), part(c.SizeBytes, 9), leastPurgeSeconds),
		fmt.Sprintf("xrootd.mongstream pfc use flush 1s send json insthdr %v", reports),
	)
}

// part is some tenths of a size, in KiB: without a unit, XCache takes numbers for fractions.
func part(bytes int64, tenths int64) string { return fmt.Sprintf("%dk", bytes/10*tenths/1024) }

func common(address netip.AddrPort, work string) string {
	return lines(
		fmt.Sprintf("xrd.port %d", address.Port()),
		"all.adminpath "+work,
		"all.pidpath "+work,
		"xrd.network nodnr", // addresses are never looked up by name
	)
}

func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }
