package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent/layers"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/machine/bootbin"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/roundtrip"
)

// Main wires a node agent from its options and runs it until ctx ends.
func Main(ctx context.Context, opts config.Agent, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("the node agent needs root to make namespaces, networks and control groups; run it with sudo")
	}
	dir := filepath.Join(opts.StateDir, "nodes", opts.Name)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("the agent's directory can't be made: %w; choose another state directory with --state", err)
	}
	lock, err := lockNode(dir, opts.Name)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if _, _, err := net.SplitHostPort(opts.Server); err != nil {
		return fmt.Errorf("server address %q: %w; write HOST:PORT", opts.Server, err)
	}
	known, err := OpenCredentials(ctx, opts, dir, log)
	if err != nil {
		return err
	}
	go known.Run(ctx)
	underlay, err := underlayAddress(opts.Underlay, opts.Server)
	if err != nil {
		return err
	}
	members, err := memberbin.Install(dir)
	if err != nil {
		return err
	}
	if opts.MemberMAC != "" {
		cfg := Config{StateDir: dir, Log: log, PowerOff: machinePower(opts.AllowPowerOff)}
		known.Use(&cfg)
		return runAsMember(ctx, cfg, opts, underlay, members, known)
	}
	return runAsNode(ctx, opts, dir, underlay, members, known, log)
}

// runAsNode runs the agent of a node that is the site's: it carries members of many clusters.
func runAsNode(ctx context.Context, opts config.Agent, dir string, underlay netip.Addr, members memberbin.Files, known *Credentials, log *slog.Logger) error {
	networks, adapters, key, err := openFabric(ctx, opts, underlay, dir, log)
	if err != nil {
		return err
	}
	node, err := describe(opts, underlay, key)
	if err != nil {
		return err
	}
	if node.Capacity.DiskBytes, err = diskBytes(opts, dir); err != nil {
		return err
	}
	if opts.InRAM {
		node.InRAM = inRAM(ctx, dir, log)
	}
	cfg := Config{
		StateDir: dir, HomeDir: filepath.Join(opts.StateDir, "home"),
		Fabric: networks, Log: log, PowerOff: machinePower(opts.AllowPowerOff), CheckHost: checkThisHost, Conditions: opts.Conditions,
	}
	if !opts.SharedCPUs { // else several nodes are one machine, and each error would be told for each
		cfg.Faults = thisMachinesFaults
	}
	useTrunk(ctx, &cfg, &node, opts.TrunkInterface, networks.Underlay)
	known.Use(&cfg)
	cfg.Adapters = adapters
	// Images have connections of their own: else a large one would hold up what the stream says.
	images, endPeers, err := openImages(ctx, &cfg, opts, underlay, node, known.Client())
	if err != nil {
		return err
	}
	defer endPeers()
	sampler, err := openEnergy(opts)
	if err != nil {
		return err
	}
	go sampler.Run(ctx)
	cfg.Energy = sampler
	cfg.RoundTrips = func(ctx context.Context, peers []netip.Addr) (map[netip.Addr]time.Duration, error) {
		return roundtrip.Measure(ctx, underlay, peers)
	}
	gpus, err := openGPUs(ctx, &cfg, opts, dir, log)
	if err != nil {
		return err
	}
	cfg.Layers = layers.New(filepath.Join(dir, "layers"), images, log)
	serverCPUs, serverMemory, err := placesOfServers(opts, node)
	if err != nil {
		return err
	}
	catalog := environment.Catalog{environment.NewLocal()}
	containers, err := openContainers(ctx, container.Config{
		StateDir: dir, Node: opts.Name, Attacher: networks, Environments: catalog, Images: images, MemberBinary: members.Binary,
		RankLibrary: members.RankLibrary, GPUs: gpus, ServerCPUs: serverCPUs, ServerMemory: serverMemory, Logger: log,
	}, &node)
	if err != nil {
		return err
	}
	machines, err := openMachines(opts, vm.Config{StateDir: dir, Node: opts.Name, Attacher: networks, Images: images, GPUs: gpus, Logger: log}, &node)
	if err != nil {
		return err
	}
	if err := openVolumes(&cfg, opts, networks, underlay, dir, members.Binary, key != ""); err != nil {
		return err
	}
	endResponder, err := openResponder(ctx, &cfg)
	if err != nil {
		return err
	}
	defer endResponder()
	cfg.Node, cfg.Drivers, cfg.Inspect, cfg.Underlay = node, []driver.Driver{containers, machines}, catalog.Inspect, networks.Underlay
	return errors.Join(Run(ctx, cfg), containers.Close(), machines.Close(), closePool(ctx, cfg.Volumes))
}

// openContainers opens the driver of containers, and notes whether the node can mount built environments.
func openContainers(ctx context.Context, cfg container.Config, node *api.NodeRecord) (*container.Driver, error) {
	d, err := container.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := d.CheckImages(); err != nil {
		cfg.Logger.WarnContext(ctx, "built environments are disabled on this node: their roots can't be mounted", "error", err)
	} else {
		node.Images = true
	}
	return d, nil
}

// openMachines opens the driver of virtual machines, and labels the node by how their processors work, unless its operator has.
func openMachines(opts config.Agent, cfg vm.Config, node *api.NodeRecord) (*vm.Driver, error) {
	var err error
	if cfg.SpareCPUs, err = spareCPUs(opts, *node); err != nil {
		return nil, err
	}
	cfg.Boot, cfg.Program, cfg.HomeServer = bootbin.Binary, memberbin.Binary, memberbin.Binary
	if len(vm.Missing()) == 0 && node.Labels[LabelProcessors] == "" {
		labels := maps.Clone(node.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[LabelProcessors] = "kvm"
		if vm.Acceleration() != nil {
			labels[LabelProcessors] = "tcg"
		}
		node.Labels = labels
	}
	return vm.New(cfg)
}

// LabelProcessors is the label of nodes that carry virtual machines: "kvm" where the processors of these are the host's, "tcg" where they are
// emulated.
const LabelProcessors = "vm-processors"

// inRAM reports whether everything below the state directory is in memory, as far as can be seen; else the site takes the machine's power for
// no proof that members left nothing.
func inRAM(ctx context.Context, dir string, log *slog.Logger) bool {
	swaps, err := os.ReadFile("/proc/swaps")
	if err == nil {
		err = inventory.CheckInRAM(dir, swaps)
	}
	if err != nil {
		log.WarnContext(ctx, "what members leave on this node may outlast its power", "error", err)
	}
	return err == nil
}

// handshakePatience bounds a TLS handshake. It is work for both ends, and takes seconds where one of them gets little CPU time; an attempt that is
// cut short brings the next one no nearer. The server allows as much.
const handshakePatience = 10 * time.Second

// idleConnection is how long a connection that nobody uses is kept.
const idleConnection = 2 * time.Minute

// streamTransport is how the stream reaches the server.
func streamTransport(config *tls.Config) *http.Transport {
	return &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true,
		// Else an attempt made while the network was cut goes on long after it is back: TCP doubles its pauses to a minute.
		DialContext: (&net.Dialer{Timeout: reconnectMax}).DialContext, TLSHandshakeTimeout: handshakePatience,
		// A server that went away without a word is noticed by pings (RFC 9113, section 6.7).
		IdleConnTimeout: idleConnection,
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 3 * time.Second},
	}
}

// describe is what the node offers, before the checks.
func describe(opts config.Agent, underlay netip.Addr, publicKey string) (api.NodeRecord, error) {
	usable, err := inventory.UsableCPUs()
	if err != nil {
		return api.NodeRecord{}, err
	}
	capacity, err := inventory.Discover("/", usable, inventory.Request{CPUs: opts.CPUs, Slots: opts.Cores, MemoryBytes: opts.MemoryBytes, HugePages: opts.HugePages})
	if err != nil {
		return api.NodeRecord{}, err
	}
	cpus := map[int]bool{}
	for _, c := range capacity.Cores {
		cpus[c.CPU] = true
	}
	capacity.Ports = append(capacity.Ports, opts.FabricPorts...)
	node := api.NodeRecord{
		Name: opts.Name, Labels: opts.Labels, Capacity: capacity, AgentVersion: config.Version(),
		Oversubscribed: opts.SharedCPUs || len(cpus) < len(capacity.Cores),
		BootGeneration: opts.BootGeneration, WireGuardKey: publicKey,
	}
	if underlay.IsValid() {
		node.Underlay = underlay.String()
	}
	return node, nil
}

// diskBytes is the room for private disks that the node offers.
func diskBytes(opts config.Agent, dir string) (int64, error) {
	if opts.InRAM { // its disk is its memory
		return 0, nil
	}
	room, err := inventory.DiskBytes(dir, inventory.MemberDisks)
	if err == nil && opts.DiskBytes > 0 {
		room = min(room, opts.DiskBytes)
	}
	return room, err
}

// spareCPUs are those of the node's CPUs that it offers to no member.
func spareCPUs(opts config.Agent, node api.NodeRecord) ([]int, error) {
	own := opts.CPUs // all others are somebody else's
	if len(own) == 0 {
		usable, err := inventory.UsableCPUs()
		if err != nil {
			return nil, err
		}
		own = usable
	}
	offered := cpusOf(node)
	return slices.DeleteFunc(slices.Clone(own), func(cpu int) bool { return slices.Contains(offered, cpu) }), nil
}

// placesOfServers are the CPUs and memory nodes of servers of remote GPUs: what no member has, where there is such, and else what all have.
func placesOfServers(opts config.Agent, node api.NodeRecord) (cpus, memory []int, err error) {
	if cpus, err = spareCPUs(opts, node); err != nil {
		return nil, nil, err
	}
	if len(cpus) == 0 {
		cpus = cpusOf(node)
	}
	for _, n := range node.Capacity.NUMANodes {
		memory = append(memory, n.ID)
	}
	return cpus, memory, nil
}

// cpusOf are the physical CPUs that a node offers.
func cpusOf(node api.NodeRecord) []int {
	var cpus []int
	for _, c := range node.Capacity.Cores {
		cpus = append(cpus, c.CPU)
	}
	slices.Sort(cpus)
	return slices.Compact(cpus)
}

// underlayAddress reads the option: an address, an interface's name, or nothing. Then it is the address this machine would
// reach the server from, unless that is the loopback: a node alone needs none.
func underlayAddress(option, server string) (netip.Addr, error) {
	if option == "" {
		// Connecting a datagram socket sends nothing; it only asks the routing table.
		conn, err := net.Dial("udp4", server)
		if err != nil {
			return netip.Addr{}, nil //nolint:nilerr // no route: the stream to the server will say so
		}
		defer func() { _ = conn.Close() }()
		local, err := netip.ParseAddrPort(conn.LocalAddr().String())
		if err != nil || local.Addr().IsLoopback() {
			return netip.Addr{}, nil //nolint:nilerr // as above
		}
		return local.Addr(), nil
	}
	if address, err := netip.ParseAddr(option); err == nil {
		return address, nil
	}
	link, err := net.InterfaceByName(option)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--underlay %q is neither an IP address nor an interface of this machine", option)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--underlay %s: %w", option, err)
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() {
			return prefix.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("--underlay: interface %s has no IPv4 address", option)
}

// lockNode takes the lock that one agent at a time holds on a node's directory; the file tells its process ID.
func lockNode(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the agent's directory %s can't be used: %w", dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("an agent for node %q already runs on %s; stop it, or start this one with another --name", name, dir)
	}
	// Whoever finds the lock held wants to know by whom. A full disk keeps that from them, not the node from its agent.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}
