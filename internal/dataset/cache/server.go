package cache

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/webcache"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

// server is the process of a cache.
type server interface {
	// Serve has it serve a connection until that ends, the server does, or ctx does.
	Serve(ctx context.Context, conn *net.TCPConn) error
	// Dial connects to it, in the network of caches.
	Dial(ctx context.Context) (net.Conn, error)
	counters() counters
	PID() int
	Ended() <-chan struct{}
	Stop() error
}

// counters are what a server has done since it was started. reads grows with each read that is counted.
type counters struct {
	dataset.CacheFigures
	reads int64
}

type xcache struct {
	*xrootd.Cache
	at netip.AddrPort
}

func (x xcache) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp4", x.at.String())
}

func (x xcache) counters() counters {
	now := x.Counters()
	return counters{dataset.CacheFigures{
		HitBytes: now.HitBytes, MissBytes: now.MissBytes + now.BypassBytes, AheadBytes: now.AheadBytes(), AgainBytes: now.AgainBytes,
	}, now.Files}
}

type webServer struct{ *webcache.Cache }

func (w webServer) counters() counters {
	now := w.Counters()
	return counters{dataset.CacheFigures{HitBytes: now.HitBytes, MissBytes: now.MissBytes, AgainBytes: now.AgainBytes}, now.Blocks}
}

// validate returns what is wrong with what all caches of a node have in common.
func validate(cfg Config) error {
	return xrootd.CacheConfig{
		Origin: "origin:1094", Dir: cfg.Dir, Work: cfg.Dir, SizeBytes: cmp.Or(cfg.MaxBytes, mostDefault), BlockBytes: cfg.BlockBytes, Prefetch: cfg.Prefetch,
		LowPercent: cfg.LowPercent, HighPercent: cfg.HighPercent,
	}.Validate()
}

// startXRootD starts a cache of a server of XRootD.
func (s *Store) startXRootD(ctx context.Context, c *cached, origin dataset.Origin, size int64) (server, netip.AddrPort, error) {
	var at netip.AddrPort
	if err := s.cfg.Space.Do(func() (err error) { at, err = freeAddress(); return err }); err != nil {
		return nil, at, err
	}
	running, err := xrootd.StartCache(ctx, *s.cfg.Space, xrootd.CacheConfig{
		Address: at, Origin: origin.Server, Base: s.path(c.uid), Dir: s.path(c.uid, dirStore), Work: s.path(c.uid, dirWork), SizeBytes: size,
		LowPercent: s.cfg.LowPercent, HighPercent: s.cfg.HighPercent, BlockBytes: s.cfg.BlockBytes, Prefetch: s.cfg.Prefetch, Paths: origin.Paths,
		PatienceSeconds: s.cfg.PatienceSeconds, Handed: true,
	})
	if err != nil {
		return nil, at, err
	}
	return xcache{running, at}, at, nil
}

// startWeb starts a cache of web servers. It has one watermark: the upper one.
func (s *Store) startWeb(ctx context.Context, c *cached, order *dataset.CacheOrder, urls []string, size int64) (server, error) {
	cfg := webcache.Config{
		Base: s.path(c.uid), SizeBytes: size / 100 * int64(cmp.Or(s.cfg.HighPercent, 90)), BlockBytes: s.cfg.BlockBytes, Authorization: authorization(order.Credential),
		Authorities: s.cfg.Authorities, PatienceSeconds: s.cfg.PatienceSeconds,
	}
	for i, f := range order.Files {
		cfg.Files = append(cfg.Files, webcache.File{Path: "/" + f.Path, URL: urls[i]})
	}
	running, err := webcache.Start(ctx, *s.cfg.Space, xrootd.Group, cfg)
	if err != nil {
		return nil, err
	}
	return webServer{running}, nil
}

// authorization is the header of a credential (RFC 7617, RFC 6750).
func authorization(c *api.DatasetCredential) string {
	switch {
	case c == nil:
		return ""
	case c.Token != "":
		return "Bearer " + c.Token
	default:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Password))
	}
}

// webServers are the servers of URLs, each with its port.
func webServers(urls []string) []string {
	var all []string
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue // which its cache would not take either
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"https": "443"}[u.Scheme]
		}
		all = append(all, net.JoinHostPort(u.Hostname(), cmp.Or(port, "80")))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// freeAddress is an address of the loopback at which nobody listens.
func freeAddress() (netip.AddrPort, error) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return netip.AddrPort{}, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), l.Close()
}

// Dial connects to the cache of a dataset.
func (s *Store) Dial(ctx context.Context, uid string) (conn net.Conn, err error) {
	s.mu.Lock()
	c := s.all[uid]
	var running server
	if c != nil {
		running = c.running
	}
	s.mu.Unlock()
	if running == nil {
		return nil, errors.New("its cache does not run")
	}
	err = s.cfg.Space.Do(func() (err error) {
		conn, err = running.Dial(ctx)
		return err
	})
	return conn, err
}
