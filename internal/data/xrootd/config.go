// Package xrootd runs XRootD's servers: one that serves files (Server), and one that caches what other servers have (Cache, which XRootD calls XCache).
//
// Both are processes of Debian's xrootd-server. Their configurations are pure texts (this file), process.go runs them, and counters.go reads what the
// cache reports of each file. The package must never decide which files a member may read. Start with StartCache.
package xrootd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
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
	// Base is a directory above Dir and Work, where those above it are not for the server's user to enter; empty: all of them are. The server then sees it at
	// a place of its own.
	Base string
	// SizeBytes is what Dir may hold. When it is over HighPercent of that, files that were not read for the longest time go, until it is at LowPercent. 0 are
	// 90 and 80. The cache looks once a minute, so Dir may hold more in between.
	SizeBytes               int64
	LowPercent, HighPercent int
	// BlockBytes is what is fetched at once, and Prefetch how many blocks ahead of the reader; 0 is none.
	BlockBytes int64
	Prefetch   int
	// Paths are the files that readers may read, nil: all that the origin has. With Paths, only this machine's own programs are let in.
	Paths []string
	// PatienceSeconds is how long the origin may send nothing until readers get an error; 0 is XRootD's own, half an hour.
	PatienceSeconds int
	// Handed: the cache can be handed connections (Cache.Serve).
	Handed bool
}

// plainPath is a path of which each part of XRootD makes the same: words in its configuration, its table of rights and its client's URLs.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9._/+=,@~:-]+$`)

// Plain reports whether a cache can be told of a path.
func Plain(path string) bool { return plainPath.MatchString(path) }

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
	if low, high := c.watermarks(); low < 1 || low >= high || high > 100 {
		errs = append(errs, fmt.Errorf("watermarks of %d%% and %d%%: the first must be lower, both from 1 to 100", low, high))
	}
	for _, path := range c.Paths {
		if !Plain(path) {
			errs = append(errs, fmt.Errorf("%q is no path that XRootD's table of rights can have", path))
		}
	}
	if c.Base != "" && (!strings.HasPrefix(c.Dir, c.Base+"/") || !strings.HasPrefix(c.Work, c.Base+"/")) {
		errs = append(errs, fmt.Errorf("%s and %s are not both below %s", c.Dir, c.Work, c.Base))
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
	low, high := c.watermarks()
	text := common(c.Address, seen(c.Base, c.Work)) + lines(
		"all.export /",
		"ofs.osslib libXrdPss.so",
		"pss.cachelib libXrdPfc.so",
		"pss.origin "+c.Origin,
		"oss.localroot "+seen(c.Base, c.Dir),
		fmt.Sprintf("pfc.blocksize %d", c.BlockBytes),
		fmt.Sprintf("pfc.prefetch %d", c.Prefetch),
		fmt.Sprintf("pfc.ram %d", leastMemoryBytes),
		// The first two bound the whole disk, which is not the cache's alone.
		fmt.Sprintf("pfc.diskusage 0.98 0.99 files %s %s %s purgeinterval %d", part(c.SizeBytes, low*7/8), part(c.SizeBytes, low), part(c.SizeBytes, high), leastPurgeSeconds),
		fmt.Sprintf("xrootd.mongstream pfc use flush 1s send json insthdr %v", reports),
	)
	if c.Paths != nil {
		text += lines("xrd.allow host 127.0.0.1", "xrd.allow host localhost", "ofs.authorize 1", "acc.authdb "+seen(c.Base, filepath.Join(c.Work, fileRights)), "acc.authrefresh 86400")
	}
	return text
}

// rights is the table of who may read what (XRootD Authorization Database): everybody reads and looks up these files.
func (c CacheConfig) rights() string {
	var b strings.Builder
	b.WriteString("u *")
	for _, path := range c.Paths {
		b.WriteString(" \\\n" + path + " rl")
	}
	b.WriteString("\n")
	return b.String()
}

// fileRights is the table of rights, in the server's own directory.
const fileRights = "rights"

func (c CacheConfig) watermarks() (low, high int) {
	return cmp.Or(c.LowPercent, 80), cmp.Or(c.HighPercent, 90)
}

// environment bounds the patience of the client by which the cache reads from its origin (xrdcp(1), ENVIRONMENT).
func (c CacheConfig) environment() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent"}
	if c.PatienceSeconds > 0 {
		seconds := strconv.Itoa(c.PatienceSeconds)
		env = append(env, "XRD_REQUESTTIMEOUT="+seconds, "XRD_STREAMTIMEOUT="+seconds, "XRD_STREAMERRORWINDOW="+seconds, "XRD_CONNECTIONWINDOW=5", "XRD_CONNECTIONRETRY=2",
			"XRD_TIMEOUTRESOLUTION=1")
	}
	return env
}

// place is where a server sees its Base: a directory of Debian's package, which has nothing else to do with it.
const place = "/var/spool/xrootd"

// seen is a path as the server sees it.
func seen(base, path string) string {
	if base == "" {
		return path
	}
	return place + strings.TrimPrefix(path, base)
}

// part is some percent of a size, in KiB: without a unit, XCache takes numbers for fractions.
func part(bytes int64, percent int) string { return fmt.Sprintf("%dk", bytes/100*int64(percent)/1024) }

func common(address netip.AddrPort, work string) string {
	return lines(
		fmt.Sprintf("xrd.port %d", address.Port()),
		"all.adminpath "+work,
		"all.pidpath "+work,
		"xrd.network nodnr", // addresses are never looked up by name
	)
}

func lines(all ...string) string { return strings.Join(all, "\n") + "\n" }
