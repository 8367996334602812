// Package server wires the control plane together: state, API, monitor and the leader's controller in one process.
//
// It is wiring and order of start and end, nothing else: what any part does is decided in its own package. Start with Run.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/audit"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/diskspace"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/enrollment"
	fabricsite "github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/imagestore"
	"github.com/nearmetal/nearmetal/internal/lastuse"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/compatibility"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/tracing"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/recipes"
)

// Server is an opened control plane: its state is locked and its addresses are taken, but nothing is served before Run.
type Server struct {
	cfg       Config
	lock      *os.File
	space     *diskspace.Space
	authority *trust.Authority
	secrets   trust.Secrets
	listeners []net.Listener
	socket    net.Listener
	// network is where machines boot from; its interface is empty when none do.
	network netboot.Network
	pool    placement.Pool
	pool6   placement.Pool6
	vlans   api.VLANPool
	pkeys   api.PKeyPool
	// floating is where floating addresses come from.
	floating floating.Pool
	// open are the private ranges that members with egress reach.
	opened []netip.Prefix
	// supervisors keep the subnet managers of this machine running.
	supervisors []opensm.Supervisor
	// simulated is the fabric that this server simulates; nil: none.
	simulated *simulated
}

// Config is what a server needs.
type Config struct {
	config.Server
	// Also are more addresses to listen on, HOST:PORT.
	Also []string
	// Fabrics are the executors on the site's fabrics, by cell.
	Fabrics map[string]fabricsite.Site
	// InfiniBand are InfiniBand fabrics, by cell, beside those of InfiniBandFiles.
	InfiniBand map[string]InfiniBand
	// SimulatedNodes is how many nodes have a port of a simulated InfiniBand fabric, cell ib0, which the server runs itself; 0: there is none.
	SimulatedNodes int
	Log            *slog.Logger
}

// Open takes the state directory and the addresses, so that what is wrong with them is told before anything starts.
func Open(cfg Config) (*Server, error) {
	// Members' user namespaces must be able to pass through; everything secret below is closed by itself.
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return nil, fmt.Errorf("the state directory can't be created: %w; choose another with --state", err)
	}
	lock, err := lockState(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, lock: lock}
	// First of all: on a full disk everything below may need the room of the reserve.
	if s.space, err = diskspace.Open(cfg.StateDir, cfg.Log); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open() error {
	var err error
	if s.secrets, err = trust.OpenSecrets(s.cfg.StateDir); err != nil {
		return err
	}
	if s.pool, err = networkPool(s.cfg.NetworkPool); err != nil {
		return err
	}
	if s.pool6, err = networkPool6(s.cfg.NetworkPool6); err != nil {
		return err
	}
	if s.vlans, err = vlanPool(s.cfg.VLANPool); err != nil {
		return err
	}
	if err := s.openSimulated(); err != nil {
		return err
	}
	if s.pkeys, err = pkeyPool(s.cfg.PKeyPool); err != nil {
		return err
	}
	if s.floating, err = floatingPool(s.cfg.Floating.Pools, s.pool); err != nil {
		return err
	}
	if err := s.openInfiniBand(); err != nil {
		return err
	}
	if err := s.openEthernet(); err != nil {
		return err
	}
	addresses := append([]string{s.cfg.Listen}, s.cfg.Also...)
	if s.cfg.Provision.Interface != "" {
		if s.network, err = provisioningNetwork(s.cfg.Provision); err != nil {
			return err
		}
		address, extra, err := agentAddress(s.cfg.Listen, s.network)
		if err != nil {
			return err
		}
		if extra {
			addresses = append(addresses, address)
		}
	}
	own := []ownNetwork{{"the network pool", s.pool.Prefix()}, {"the provisioning network", s.network.Address}}
	if s.opened, err = openRanges(s.cfg.EgressOpen, own); err != nil {
		return err
	}
	var hosts []string
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return fmt.Errorf("listen address %q: %w; write HOST:PORT", address, err)
		}
		hosts = append(hosts, host)
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("port in use: another program listens on %s; stop it, or choose another address with --listen HOST:PORT", address)
		}
		if err != nil {
			return fmt.Errorf("listen on %s: %w", address, err)
		}
		s.listeners = append(s.listeners, listener)
	}
	if s.authority, err = trust.Open(s.cfg.StateDir, hosts...); err != nil {
		return err
	}
	s.socket, err = apiserver.ListenUnix(filepath.Join(s.cfg.StateDir, config.SocketName))
	return err
}

// Addresses are what the server listens on, HOST:PORT, in the order they were asked for: Listen, then Also. A port given as 0 is
// the one the system chose.
func (s *Server) Addresses() []string {
	addresses := make([]string, len(s.listeners))
	for i, l := range s.listeners {
		addresses[i] = l.Addr().String()
	}
	return addresses
}

// Close gives up what Open took; Run does so itself.
func (s *Server) Close() error {
	var errs []error
	for _, l := range append(s.listeners, s.socket) {
		if l != nil {
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if s.simulated != nil {
		errs = append(errs, s.simulated.end(context.Background()))
		s.simulated = nil
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// ErrStateInUse is the error of Open for a second server on one state directory.
var ErrStateInUse = errors.New("another server uses this state directory")

// lockState takes the lock that one server at a time holds on a state directory. The kernel drops it with the process.
func lockState(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the state directory %s can't be used: %w; run as its owner, or choose another with --state", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 32)
		n, _ := f.Read(holder)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is held by process %s; stop that process, or choose another directory with --state",
				ErrStateInUse, dir, holder[:n])
		}
		return nil, fmt.Errorf("lock the state directory %s: %w", dir, err)
	}
	// The number is for people. A full disk keeps it from them, not the site from its server.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d", os.Getpid())
	}
	return f, nil
}

// Run serves until ctx ends or the state fails. ready is called once the API answers; it may be nil.
func (s *Server) Run(ctx context.Context, ready func()) error {
	defer func() { _ = s.Close() }()
	stateStore, err := etcd.Open(ctx, etcd.Config{Dir: filepath.Join(s.cfg.StateDir, "etcd"), Log: s.cfg.Log})
	if err != nil {
		return s.space.Explain(err)
	}
	defer func() { _ = stateStore.Close() }()
	group, ctx := errgroup.WithContext(ctx)
	site, err := s.openSite(ctx, state.New(stateStore))
	if err != nil {
		return s.space.Explain(err)
	}
	defer func() { _ = site.audit.Close() }()
	group.Go(func() error { s.space.Run(ctx); return nil })
	s.superviseManagers(ctx, group.Go)
	group.Go(func() error { site.uses.Run(ctx); return nil })
	group.Go(func() error { site.traces.Follow(ctx, site.cache, site.tracer, site.now); return site.closeTracer() })
	leads := s.leads(site)
	if s.network.Interface != "" {
		machines := &provisioning{site: site, cfg: s.cfg.Provision, network: s.network, authority: s.authority, stateDir: s.cfg.StateDir, listen: s.cfg.Listen, log: s.cfg.Log}
		if err := machines.open(); err != nil {
			return err
		}
		leads.Provisioning = machines.leads()
		group.Go(func() error { return machines.run(ctx) })
	}
	httpAPI := apiserver.New(s.api(ctx, site))
	group.Go(func() error { return controller.Run(ctx, leads) })
	group.Go(func() error {
		select {
		case <-stateStore.Failed():
			return stateStore.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	group.Go(func() error {
		// Such a revision never comes: this ends with the view, and a server that goes on with an old one deceives everybody.
		_, err := site.cache.WaitRevision(ctx, math.MaxInt64)
		return cmp.Or(stateStore.Err(), err)
	})
	group.Go(func() error { return httpAPI.Serve(ctx, s.listeners, s.authority.ServerTLS(), s.socket) })
	if ready != nil {
		ready()
	}
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return s.space.Explain(err)
}

// site is what all parts of a server share: what is stored, what is heard, and the keys.
type site struct {
	repo   *state.Repo
	cache  *state.Cache
	agents *monitor.Monitor
	heard  *bootapi.Heard
	images *images
	// memberFiles are the files of paused members that have whole machines. Nobody gets them but the machines that boot for these members.
	memberFiles *imagestore.Store
	// secrets are the site's.
	secrets trust.Secrets
	sealer  *trust.Sealer
	clock   *controller.SiteClock
	audit   *audit.Log
	uses    *lastuse.Recorder
	// nodes gives nodes their certificates.
	nodes *enrollment.Registrar
	// energy is the account of energy, which the leader keeps.
	energy *energy.Book
	// fabrics are the keepers of the site's fabrics, which the leader sets.
	fabrics situation.Fabrics
	// sensors are those of machines, as read last.
	sensors readSensors
	// traces are of recent clusters, tracer makes the server's part of them.
	traces *tracing.Book
	tracer *tracing.Tracer
}

func (s *site) now() time.Time { return s.clock.At(time.Now()) }

func (s *Server) openSite(ctx context.Context, repo *state.Repo) (*site, error) {
	if err := repo.CheckVersion(ctx); err != nil {
		return nil, err
	}
	cache, err := repo.OpenCache(ctx)
	if err != nil {
		return nil, err
	}
	logDir := filepath.Join(s.cfg.StateDir, "joblogs")
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, err
	}
	limits, err := logLimits(s.cfg.Logs, logDir)
	if err != nil {
		return nil, err
	}
	out := &site{repo: repo, cache: cache, secrets: s.secrets, clock: controller.NewSiteClock(time.Now, cache.View().NewestTime())}
	out.traces, out.energy = tracing.NewBook(), energy.NewBook()
	if out.tracer, err = tracing.Open(ctx, "nearmetal-server", func(s tracing.Span) { out.traces.Add(tracing.Placed{Span: s}) }); err != nil {
		return nil, err
	}
	out.nodes = &enrollment.Registrar{Authority: s.authority, Writer: repo, Reader: cache, Now: out.now}
	out.agents = monitor.New(monitor.Config{
		DiskFull: func() error { return s.space.Check(diskspace.Output) },
		Spans:    keepSpans(out.traces, cache.View, out.now),
		LogDir:   logDir, LogLimits: limits, Run: func(name string) (monitor.Run, bool) { return runOf(cache.View(), name) }, DeathTimer: lifecycle.DefaultDeathTimer, Now: time.Now, Log: s.cfg.Log,
		Register: func(ctx context.Context, node api.NodeRecord) error {
			if err := cmp.Or(manifest.CheckNode(&node), ownBoot(cache.View(), &node), ownPorts(cache.View(), &node)); err != nil {
				return err
			}
			_, err := repo.PutNode(ctx, asInspected(cache.View(), node))
			return err
		},
		IsMember: func(name string) bool { return isMember(cache.View(), name) },
	})
	out.fabrics = situation.Fabrics{}
	for name, executor := range s.cfg.Fabrics {
		keeper := fabricsite.NewKeeper(executor, s.cfg.Log.With("fabric", name))
		out.fabrics[name] = keeper
		if chart := keeper.Chart(); chart != nil {
			go chart.Run(ctx)
		}
	}
	out.heard = bootapi.NewHeard(out.now)
	if out.images, err = openImages(filepath.Join(s.cfg.StateDir, "images"), s.secrets.Newest(), func(digest string) *api.Image { return cache.View().Image(digest) }); err != nil {
		return nil, err
	}
	if out.memberFiles, err = imagestore.Open(filepath.Join(s.cfg.StateDir, "memberfiles"), minFreeBytes); err != nil {
		return nil, err
	}
	if out.sealer, err = trust.NewSealer(s.secrets); err != nil {
		return nil, err
	}
	out.uses = lastuse.New(lastuse.Config{
		Writer: repo, Viewer: cache, Room: func() error { return s.space.Check(diskspace.Requests) }, Now: out.now, Log: s.cfg.Log,
	})
	out.audit, err = audit.Open(filepath.Join(s.cfg.StateDir, "audit"), s.secrets.At, audit.DefaultLimits, out.now, s.cfg.Log)
	return out, err
}

// offers is what the site carries for all its machines.
func (s *Server) offers(site *site) offer.Site {
	return offer.Site{Fabrics: site.fabrics.InfiniBand(), Switches: site.fabrics.Switches(), Metal: s.network.Interface != ""}
}

// energyUsed returns what projects used, for explanations: without it, they say nothing of quotas of energy.
func (s *Server) energyUsed(ctx context.Context, site *site) func(now time.Time) map[string]int64 {
	return func(now time.Time) map[string]int64 {
		used, err := site.cache.EnergyUsed(ctx, now)
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.WarnContext(ctx, "explanations don't know the energy that projects used", "error", err)
		}
		return used
	}
}

// deadlines are those of clusters' lives.
func (s *Server) deadlines() lifecycle.Deadlines {
	d := lifecycle.DefaultDeadlines()
	if s.cfg.StartDeadline > 0 {
		d.Start = s.cfg.StartDeadline
	}
	return d
}

// api is what the API is made of.
func (s *Server) api(ctx context.Context, site *site) apiserver.Config {
	return apiserver.Config{
		Writer: site.repo, Reader: site.cache, Live: heard{site.agents, site.fabrics, site.cache}, Logs: site.agents, Pin: s.authority.Pin(), Tunnels: site.agents, Homes: site.agents, Hosts: site.agents, Networks: site.agents,
		Tokens: tenancy.NewTokens(s.authority.Tokens, site.cache, time.Now),
		Nodes:  site.nodes,
		Explainer: &situation.Explainer{
			Views: site.cache, Heard: site.agents, Fabrics: site.fabrics, Offers: s.offers(site), Now: time.Now, Time: site.clock.At, Since: site.now(), Deadlines: s.deadlines(), Power: site.energy.Power,
			EnergyJoules: s.energyUsed(ctx, site),
		},
		Certifier:   certifier{secrets: s.secrets, user: controller.JobUser.Name, now: time.Now},
		ClusterKeys: certifier{secrets: s.secrets, now: time.Now}.keysOf,
		AgentStream: agentstream.Handler(site.agents.Serve), AgentTunnel: site.agents.ServeTunnel(), Log: s.cfg.Log,
		AgentCarry: site.agents.ServeCarry(func(r agentstream.CarryRequest) (monitor.Carried, error) {
			if isMember(site.cache.View(), r.Node) {
				return monitor.Carried{}, fmt.Errorf("node %s is a member, and gets no other members", r.Node)
			}
			return situation.CarriedFor(site.cache.View(), r)
		}),
		Now: site.now, Images: site.images.store, MemberFiles: site.memberFiles, Recipes: recipes.Catalog{}, Sealer: site.sealer, Compatible: compatibility.Check,
		Consoles: consoles{cache: site.cache, sealer: site.sealer, secrets: s.secrets}, Provisioning: s.addresses(),
		Room: func() error { return s.space.Check(diskspace.Requests) }, Offers: s.offers(site), Pool: s.pool, VLANs: s.vlans, PKeys: s.pkeys, Encrypted: s.cfg.EncryptUnderlay, UserHomes: s.cfg.UserHomes, Pool6: s.sitePool6(), FloatingPool: s.floating,
		Audit: site.audit, Uses: site.uses, Traces: site.traces, Fabrics: site.fabrics, Sensors: site.sensors.of, MemberUses: site.agents, Energy: site.energy,
	}
}

// leads is what this server decides with while it leads.
func (s *Server) leads(site *site) controller.Config {
	return controller.Config{
		Candidate: candidate(s.cfg.StateDir), Repo: site.repo, Cache: site.cache, Agents: site.agents, Secrets: s.secrets,
		Nameservers: nameservers("/etc/resolv.conf"), Pool: s.pool, VLANs: s.vlans, PKeys: s.pkeys, Pool6: s.sitePool6(), Offers: s.offers(site), Fabrics: site.fabrics,
		FloatingPool: s.floating.Prefixes(), Connections: s.cfg.Floating.Connections, Open: s.opened, EncryptUnderlay: s.cfg.EncryptUnderlay, DrainOn: s.cfg.DrainOn,
		Deadlines: s.deadlines(), Images: site.images, MemberFiles: site.memberFiles, Now: time.Now, Clock: site.clock, Log: s.cfg.Log,
		Energy: &controller.Energy{Book: site.energy, Sample: site.agents.EnergySample, Sensors: site.sensors.of},
		Unseal: site.sealer.Open,
	}
}

// addresses are what the API tells of the provisioning network; nil when there is none.
func (s *Server) addresses() apiserver.Provisioning {
	if s.network.Interface == "" {
		return nil
	}
	return addresses{network: s.network, target: s.cfg.Provision.Target}
}

// candidate names this server in elections: its state directory, whose lock only one server holds.
func candidate(stateDir string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return host + ":" + stateDir
}
