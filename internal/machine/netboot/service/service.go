// Package service is network boot as a whole: DHCP, TFTP and HTTP on one provisioning network, answering from one table.
//
// Open binds, Run serves, SetTable tells what each machine boots from now on. Start with Open.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/dhcp"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/http"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/solicit"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/storm"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/tftp"
)

// Config is what network boot needs.
type Config struct {
	Network netboot.Network
	// BootServer is HOST:PORT of the boot API, Pin that of the site's CA: for the kernel's command line.
	BootServer, Pin string
	Leases          netboot.Leases
	Blobs           netboot.Blobs
	Tokens          netboot.Tokens
	Sink            netboot.Sink
	// Loaders is the directory of loaders; empty: loaders.DefaultDir.
	Loaders string
	// ProbeWait is how long Run looks for other DHCP servers before it answers; 0: dhcp.ProbeWait.
	ProbeWait time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Service is network boot on one network.
type Service struct {
	config   Config
	presence *presence.Presence
	storm    *storm.Controller
	dhcp     *dhcp.Server
	tftp     *tftp.Server
	http     *nethttp.Server
	listener net.Listener
}

// Open reads the loaders and binds all sockets; nothing is answered before Run. Errors name the address or file that is in the way.
func Open(cfg Config) (*Service, error) {
	if err := cfg.Network.Check(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.ProbeWait == 0 {
		cfg.ProbeWait = dhcp.ProbeWait
	}
	if cfg.Loaders == "" {
		cfg.Loaders = loaders.DefaultDir
	}
	files, err := loaders.Read(cfg.Loaders)
	if err != nil {
		return nil, err
	}
	s := &Service{config: cfg, presence: presence.New(cfg.Network.Interface, cfg.Sink), storm: storm.New()}
	if err := s.bind(files); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Service) bind(files loaders.Set) error {
	cfg := s.config
	local := cfg.Network.Address.Addr()
	var err error
	if s.dhcp, err = dhcp.Open(cfg.Network, s.presence, files, cfg.Leases, cfg.Now, cfg.Log); err != nil {
		return err
	}
	s.tftp, err = tftp.Open(cfg.Network.Interface, local, files.Get, tftp.Events{
		Asked: func(client netip.Addr, _ string) { s.presence.Fetching(client, false, cfg.Now()) },
		Sent:  s.presence.Sent,
	}, cfg.Log)
	if err != nil {
		return err
	}
	address := netip.AddrPortFrom(local, uint16(cfg.Network.HTTPPort)).String()
	if s.listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp4", address); err != nil {
		return fmt.Errorf("HTTP of network boot: %w", err)
	}
	s.http = http.Server(http.Handler(http.Config{
		Network: cfg.Network, Presence: s.presence, Loaders: files, Blobs: cfg.Blobs, Tokens: cfg.Tokens, Storm: s.storm,
		BootServer: cfg.BootServer, Pin: cfg.Pin, Neighbor: neighbor(cfg.Network.Interface), Now: cfg.Now, Log: cfg.Log,
	}), cfg.Log)
	return nil
}

// Close gives all sockets back; for a service that is not run.
func (s *Service) Close() {
	if s.dhcp != nil {
		s.dhcp.Close()
	}
	if s.tftp != nil {
		s.tftp.Close()
	}
	if s.listener != nil {
		_ = s.listener.Close()
	}
}

// SetTable answers from a table from now on, unless it has a newer one; it reports whether it does.
func (s *Service) SetTable(t *netboot.Table) bool {
	if !s.presence.SetTable(t) {
		return false
	}
	s.storm.SetRate(t.RateBytesPerSecond)
	return true
}

// Storm tells what the bulk transfers do now.
func (s *Service) Storm() storm.State { return s.storm.State() }

// At is the machine at an address of the provisioning network, by what DHCP gave and the table says.
func (s *Service) At(address netip.Addr) (presence.Client, bool) { return s.presence.At(address) }

// Run serves until the context ends or a part fails. It looks first whether another DHCP server is on the wire: on a network of its
// own that is an error (*dhcp.OtherServerError), and nothing was answered; beside a server its absence is told as a Problem.
func (s *Service) Run(ctx context.Context) error {
	defer s.Close()
	if err := dhcp.Probe(ctx, s.config.Network, s.config.ProbeWait); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		if !s.config.Network.Proxy {
			return err
		}
		s.presence.Problem("", err.Error(), s.config.Now())
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	run := func(part func(context.Context) error) {
		group.Go(func() {
			if err := part(ctx); err != nil {
				cancel(err)
			}
		})
	}
	run(s.dhcp.Run)
	run(s.tftp.Run)
	run(func(ctx context.Context) error { s.storm.Run(ctx); return nil })
	run(s.serveHTTP)
	run(s.answerSolicitations)
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// answerSolicitations spares machines that boot by iPXE a wait of 16 s. Without it they only take longer, so it fails for nobody.
func (s *Service) answerSolicitations(ctx context.Context) error {
	r, err := solicit.Open(s.config.Network.Interface)
	if err == nil {
		err = r.Run(ctx)
	}
	if err != nil && ctx.Err() == nil {
		s.config.Log.WarnContext(ctx, "machines will wait for an IPv6 router when they boot", "problem", err)
	}
	return nil
}

func (s *Service) serveHTTP(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, nethttp.ErrServerClosed) && ctx.Err() == nil {
		return fmt.Errorf("HTTP of network boot: %w", err)
	}
	return nil
}

// neighbor asks the kernel's ARP table.
func neighbor(device string) func(netip.Addr) string {
	return func(a netip.Addr) string {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return ""
		}
		entries, err := netlink.NeighList(link.Attrs().Index, unix.AF_INET)
		if err != nil {
			return ""
		}
		for _, e := range entries {
			if ip, ok := netip.AddrFromSlice(e.IP); ok && ip.Unmap() == a && len(e.HardwareAddr) == 6 {
				return e.HardwareAddr.String()
			}
		}
		return ""
	}
}
