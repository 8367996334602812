package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// logFlags adds the logging flags of the long-running commands.
func logFlags(cmd *cobra.Command, l *config.Log, level string) {
	cmd.Flags().StringVar(&l.Level, "log-level", level, "log level: debug, info, warn or error")
	cmd.Flags().StringVar(&l.Format, "log-format", "text", "log format: text or json")
}

// checkLog refuses unknown levels and formats.
func checkLog(l config.Log) error {
	switch l.Level {
	case "debug", "info", "warn", "error":
	default:
		return usage("--log-level %q is unknown; use debug, info, warn or error", l.Level)
	}
	switch l.Format {
	case "text", "json":
		return nil
	default:
		return usage("--log-format %q is unknown; use text or json", l.Format)
	}
}

// stateFlag adds --state; its default follows NEARMETAL_STATE.
func (a *app) stateFlag(cmd *cobra.Command, dir *string, what string) {
	cmd.Flags().StringVar(dir, "state", config.StateDir, what+" (NEARMETAL_STATE)")
}

// stateDir is the state directory a flag, the environment or the default names, in this order.
func (a *app) stateDir(cmd *cobra.Command, flag string) string {
	if f := cmd.Flags().Lookup("state"); f != nil && f.Changed {
		return flag
	}
	return a.state()
}

// poolFlags adds --network-pool and --network-pool6.
func poolFlags(cmd *cobra.Command, pool, pool6 *string) {
	cmd.Flags().StringVar(pool6, "network-pool6", "", "IPv6 prefix of /48 or shorter that networks with IPv6 get their subnets from (default: a unique local prefix of the site's own)")
	cmd.Flags().StringVar(pool, "network-pool", "", "IPv4 prefix of /19 or shorter that clusters' networks are cut from; clusters that exist keep theirs (default 10.64.0.0/10)")
}

// egressFlag adds --egress-open.
func egressFlag(cmd *cobra.Command, open *[]string) {
	cmd.Flags().StringArrayVar(open, "egress-open", nil, "private IPv4 prefix that members with egress reach, such as 10.20.0.0/16; may be repeated (default: none)")
}

// floatingFlags adds the flags of floating addresses; pools says where they come from by default.
func floatingFlags(cmd *cobra.Command, f *config.Floating, pools string) {
	cmd.Flags().StringArrayVar(&f.Pools, "floating-pool", nil, "IPv4 prefix that floating addresses come from; may be repeated (default: "+pools+")")
	cmd.Flags().IntVar(&f.Connections, "project-connections", fabric.DefaultConnections, "tracked connections to the outside that a project may have on each node")
}

// encryptFlag adds the flag of an encrypted underlay.
func encryptFlag(cmd *cobra.Command, encrypt *bool) {
	cmd.Flags().BoolVar(encrypt, "encrypt-underlay", false, "encrypt networks and volumes between nodes with WireGuard; nodes without it carry no network or volume that needs other nodes; give it to all servers of the site")
}

// checkFloating refuses limits that no node can enforce.
func checkFloating(f config.Floating) error {
	if f.Connections < 1 || f.Connections > maxConnections {
		return usage("--project-connections is %d; give 1 to %d", f.Connections, maxConnections)
	}
	return nil
}

// vlanFlag adds the flag of the VLANs that networks can have.
func vlanFlag(cmd *cobra.Command, pool *string) {
	cmd.Flags().StringVar(pool, "vlan-pool", "", "VLAN IDs that networks can have, like 100-199; give it to all servers of the site (default: none)")
}

// maxConnections is more than the kernel tracks for all.
const maxConnections = 1 << 30

// provisionFlags adds the flags of servers that boot machines.
func provisionFlags(cmd *cobra.Command, p *config.Provision) {
	cmd.Flags().StringVar(&p.Interface, "provision", "", "interface on the provisioning network: machines boot over it (empty: none do)")
	cmd.Flags().BoolVar(&p.Proxy, "provision-proxy", false, "another DHCP server gives addresses there; only tell machines what to boot")
	cmd.Flags().StringVar(&p.Machines, "machine-range", "", "addresses of machines, FROM-TO (default: the most of the interface's network)")
	cmd.Flags().StringVar(&p.Strangers, "stranger-range", "", "addresses of machines that are not enrolled yet, FROM-TO (default: a quarter of it)")
	cmd.Flags().StringVar(&p.Loaders, "loaders", config.Loaders, "folder of iPXE's loaders")
	cmd.Flags().Var(timeoutFlag(&p.Target, config.BootTarget), "boot-target", "how long a boot should take; a slower one is shown as such")
	cmd.Flags().Var(timeoutFlag(&p.BootDeadline, lifecycle.DefaultMachineDeadlines().Boot), "boot-deadline", "how long a boot may take before it has failed")
	cmd.Flags().DurationVar(&p.VerifyEvery, "verify-every", lifecycle.DefaultMachineDeadlines().Verify, "how long a machine may be off before it is woken to prove that it still boots, one at a time (0: never)")
	cmd.Flags().StringVar(&p.FirmwareList, "firmware-list", "", "file in YAML with the versions of firmware that machines may have; others are quarantined when they are inspected or cleaned (default: any version; see docs/guides/bare-metal.md)")
	cmd.Flags().DurationVar(&p.IdleOff, "idle-off", 0, "how long a machine that nobody has stays on, in its boot agent, before it goes off (0: it goes off once it was inspected or cleaned)")
	cmd.Flags().IntVar(&p.Warm, "warm", 0, "how many machines that nobody has stay on, in their boot agents: a cluster of whole machines gets these without waiting for power and firmware; too few are woken")
	cmd.Flags().DurationVar(&p.SensorsEvery, "sensors-every", sensors.DefaultEvery, "how often a machine's BMC is asked for its sensors, one machine at a time (0: never)")
	cmd.Flags().BoolVar(&p.RotateBMCPasswords, "rotate-bmc-passwords", true, "change the password of a machine's BMC after each member that had the machine (nearmetal node bmc-password NODE shows it)")
}

// startFlag adds the flag of how long members may take to start.
func userHomesFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "user-homes", false, "give a cluster the home of its user, which outlives it, unless it asks for another (cluster create --home)")
}

func startFlag(cmd *cobra.Command, deadline *time.Duration) {
	cmd.Flags().Var(timeoutFlag(deadline, lifecycle.DefaultDeadlines().Start), "start-deadline", "how long members may take to be ready before they have failed, and a lost one is replaced; longer where processors are emulated")
}

// logLimitFlags adds the flags of how much output the server stores.
func logLimitFlags(cmd *cobra.Command, l *config.Logs) {
	cmd.Flags().Var((*bytesFlag)(&l.SiteBytes), "log-limit", "stored output of all jobs, like 20GiB; the oldest of ended jobs is removed first (default: a tenth of the file system, at most 50GiB)")
	cmd.Flags().Var((*bytesFlag)(&l.ProjectBytes), "project-log-limit", "stored output of one project's jobs (default: half of --log-limit)")
	cmd.Flags().Var((*bytesFlag)(&l.JobBytes), "job-log-limit", "stored output of one job; the rest is discarded and counted (default: 256MiB, at most a quarter of --project-log-limit)")
}

// bytesFlag is a flag with a size, 0 for its default.
type bytesFlag int64

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return api.Bytes(*b).String()
}

func (b *bytesFlag) Set(text string) error {
	bytes, err := api.ParseBytes(text)
	if err == nil && bytes <= 0 {
		err = fmt.Errorf("%q is too small; give 1 byte or more", text)
	}
	*b = bytesFlag(bytes)
	return err
}

func (*bytesFlag) Type() string { return "size" }

// call runs a wired-in command.
func call[O any](ctx context.Context, name string, run func(context.Context, O) error, opts O) error {
	if run == nil {
		return usage("this build of nearmetal has no %q command", name)
	}
	return run(ctx, opts)
}

func (a *app) devCommand() *cobra.Command {
	opts := config.Dev{Streams: a.Streams}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a server and node agents on this machine",
		Long: `Run a server and node agents on this machine, in the foreground, until Ctrl-C. Clusters and their members live on when it
ends; restarting it on the same state directory finds them.

With --nodes N there are N separate agent processes with namespaces of their own, which share the machine's cores; what
is oversubscribed is labelled so everywhere. Needs root.`,
		Example: "  nearmetal dev\n  nearmetal dev --nodes 4 --node-cores 2 --state /tmp/nm --listen 127.0.0.1:7701",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.StateDir = a.stateDir(cmd, opts.StateDir)
			if opts.Nodes < 1 {
				return usage("--nodes is %d; start at least 1 node", opts.Nodes)
			}
			if opts.NodeCores < 0 {
				return usage("--node-cores is %d; give the number of core slots per node, or 0 to divide the machine's", opts.NodeCores)
			}
			if err := firstError(checkListen(opts.Listen), checkFloating(opts.Floating), readPoolSize(&config.Agent{}, opts.VolumePool), checkLog(opts.Log)); err != nil {
				return err
			}
			return call(cmd.Context(), "dev", a.Commands.Dev, opts)
		},
	}
	a.stateFlag(cmd, &opts.StateDir, "state directory")
	cmd.Flags().StringVar(&opts.Listen, "listen", config.Listen, "HOST:PORT of the HTTPS API")
	cmd.Flags().IntVar(&opts.Nodes, "nodes", 1, "number of node agents")
	cmd.Flags().IntVar(&opts.NodeCores, "node-cores", 0, "core slots per node (0: the machine's cores divided among the nodes)")
	cmd.Flags().StringVar(&opts.VolumePool, "volume-pool-size", "", "size of the file that holds volumes on each node, like 20GiB, or off (default: a tenth of the disk, at most 64GiB)")
	cmd.Flags().StringVar(&opts.BuildSources, "build-sources", "", "folder below which recipes' files, directories and archives are read (empty: they can name none)")
	remoteGPUFlags(cmd, &opts.RemoteGPUs, &opts.GPUPrograms)
	cmd.Flags().IntVar(&opts.RemoteGPUNodes, "remote-gpu-nodes", 1, "how many nodes hand out remote GPUs, the first ones")
	_ = cmd.Flags().MarkHidden("remote-gpu-nodes")
	cdiFlag(cmd, &opts.CDIDirs)
	poolFlags(cmd, &opts.NetworkPool, &opts.NetworkPool6)
	ethernetFlag(cmd, &opts.EthernetFiles)
	vlanFlag(cmd, &opts.VLANPool)
	egressFlag(cmd, &opts.EgressOpen)
	floatingFlags(cmd, &opts.Floating, "a part of the nodes' network")
	cmd.Flags().BoolVar(&opts.InfiniBand, "infiniband", false, "simulate an InfiniBand fabric, cell ib0, that each node has a port of (needs ibsim-utils, opensm and infiniband-diags)")
	encryptFlag(cmd, &opts.EncryptUnderlay)
	cmd.Flags().StringVar(&opts.RAPLTree, "rapl-tree", "", "folder with the counters of the processors' energy, for one node, or stand-in for counters that follow CPU time (default: /sys/class/powercap for one node, none for several)")
	userHomesFlag(cmd, &opts.UserHomes)
	startFlag(cmd, &opts.StartDeadline)
	provisionFlags(cmd, &opts.Provision)
	logLimitFlags(cmd, &opts.Logs)
	logFlags(cmd, &opts.Log, "info")
	return cmd
}

func (a *app) serverCommand() *cobra.Command {
	opts := config.Server{Streams: a.Streams}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server (control plane)",
		Long: `Run a server in the foreground until Ctrl-C. It keeps its state in the state directory, writes an administrator's
token to DIR/token, and serves the API by HTTPS and on the Unix socket DIR/` + config.SocketName + `.`,
		Example: "  nearmetal server --state /var/lib/nearmetal --listen 10.0.0.1:7700",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.StateDir = a.stateDir(cmd, opts.StateDir)
			if err := firstError(checkListen(opts.Listen), checkFloating(opts.Floating), checkLog(opts.Log)); err != nil {
				return err
			}
			return call(cmd.Context(), "server", a.Commands.Server, opts)
		},
	}
	a.stateFlag(cmd, &opts.StateDir, "state directory")
	cmd.Flags().StringVar(&opts.Listen, "listen", config.Listen, "HOST:PORT of the HTTPS API")
	poolFlags(cmd, &opts.NetworkPool, &opts.NetworkPool6)
	cmd.Flags().StringVar(&opts.PKeyPool, "pkey-pool", "", "partition keys that networks on InfiniBand can have, like 0x100-0x1ff; give it to all servers of the site (default: none)")
	infiniBandFlag(cmd, &opts.InfiniBandFiles)
	ethernetFlag(cmd, &opts.EthernetFiles)
	drainOnFlag(cmd, &opts.DrainOn)
	vlanFlag(cmd, &opts.VLANPool)
	egressFlag(cmd, &opts.EgressOpen)
	floatingFlags(cmd, &opts.Floating, "none")
	encryptFlag(cmd, &opts.EncryptUnderlay)
	userHomesFlag(cmd, &opts.UserHomes)
	startFlag(cmd, &opts.StartDeadline)
	provisionFlags(cmd, &opts.Provision)
	logLimitFlags(cmd, &opts.Logs)
	logFlags(cmd, &opts.Log, "info")
	return cmd
}

func (a *app) agentCommand() *cobra.Command {
	opts := config.Agent{Streams: a.Streams}
	var disk, volumePool, thinPool, cpus, memory, hugePages, builder string
	var adapters adapterOptions
	var fabricPorts []string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run a node agent",
		Long: `Run the agent of this node in the foreground until Ctrl-C. At its first start it makes a key and enrolls the node with an
enrollment token ('nearmetal node enroll-token create'), which carries the pin of the server's CA; on the server's machine none is
needed. From then on it connects with short-lived certificates, which it renews by itself. Members live on when the agent ends; the
agent finds them when it starts again. Needs root.`,
		Example: "  nearmetal agent --server 10.0.0.1:7700 --enroll-token-file enroll.token --label rack=r1",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.StateDir = a.stateDir(cmd, opts.StateDir)
			if opts.Cores < 0 {
				return usage("--cores is %d; give the number of core slots to offer, or 0 for one per core", opts.Cores)
			}
			var err error
			if opts.CPUs, err = inventory.ParseList(cpus); err != nil {
				return usage("--cpus: %v", err)
			}
			if memory != "" {
				bytes, err := api.ParseBytes(memory)
				if err != nil {
					return usage("--memory: %v", err)
				}
				opts.MemoryBytes = int64(bytes)
			}
			if disk != "" {
				bytes, err := api.ParseBytes(disk)
				if err != nil {
					return usage("--disk: %v", err)
				}
				opts.DiskBytes = int64(bytes)
			}
			if opts.HugePages, err = inventory.ParsePart(hugePages); err != nil {
				return usage("--huge-pages: %v", err)
			}
			if opts.FabricPorts, err = parseFabricPorts(fabricPorts); err != nil {
				return err
			}
			opts.Builder = config.Builder(builder)
			if err := firstError(readPoolSize(&opts, volumePool), readThinPool(&opts, thinPool, volumePool), checkNodeName(opts.Name), checkLabels("--label", opts.Labels), checkServer(opts.Server),
				checkImageOptions(opts), adapters.read(&opts), checkLog(opts.Log)); err != nil {
				return err
			}
			return call(cmd.Context(), "agent", a.Commands.Agent, opts)
		},
	}
	a.stateFlag(cmd, &opts.StateDir, "state directory of this node")
	cmd.Flags().StringVar(&opts.Server, "server", config.Listen, "HOST:PORT of the server's HTTPS API")
	cmd.Flags().StringVar(&opts.EnrollTokenFile, "enroll-token-file", "", "file with an enrollment token, for the first start")
	cmd.Flags().StringVar(&opts.Name, "name", "", "node name, a DNS label (default: the host name)")
	cmd.Flags().StringToStringVar(&opts.Labels, "label", nil, "node label KEY=VALUE, may be repeated")
	cmd.Flags().IntVar(&opts.Cores, "cores", 0, "core slots to offer; more than there are oversubscribes (0: one per core)")
	cmd.Flags().StringVar(&cpus, "cpus", "", "physical CPUs to use, like 0-3,8 (default: all)")
	cmd.Flags().BoolVar(&opts.SharedCPUs, "shared-cpus", false, "other nodes use the same CPUs: label everything oversubscribed")
	cmd.Flags().StringVar(&memory, "memory", "", "memory to offer, like 64GiB (default: all but a tenth)")
	cmd.Flags().StringVar(&disk, "disk", "", "room for private disks of virtual machines to offer, like 500GiB (default: what is free but a tenth)")
	volumePoolFlags(cmd, &opts, &volumePool, &thinPool)
	cmd.Flags().StringVar(&hugePages, "huge-pages", "all", "reserved huge pages to offer: all, none, or a part such as 2/3, the second of three equal parts")
	cmd.Flags().Var(bitRate{&opts.UplinkRate}, "uplink-rate", "what the link of the data network carries, like 25Gbit; ports with rates share it (default: the link's speed, where the kernel knows it)")
	cmd.Flags().StringVar(&opts.Underlay, "underlay", "", "address or interface on the data network (default: chosen)")
	cmd.Flags().StringVar(&opts.TrunkInterface, "trunk-interface", "", "interface that carries VLANs of networks, like eth1 (default: none, and no members of such networks)")
	adapters.flags(cmd)
	gpuFlags(cmd, &opts)
	cmd.Flags().StringVar(&opts.PeerListen, "peer-listen", "", "ADDRESS:PORT to serve images to other nodes at, or off (default: the address on the data network, when that is known)")
	cmd.Flags().StringVar(&opts.BuildSources, "build-sources", "", "folder below which recipes' files, directories and archives are read (empty: they can name none)")
	cmd.Flags().IntVar(&opts.KeepImages, "keep-images", config.DefaultKeepImages, "images to keep that nothing needs any more, while there is room")
	fabricPortFlag(cmd, &fabricPorts)
	cmd.Flags().StringVar(&builder, "builder", string(config.BuilderAuto), "offer to build environments: auto (when the host checks pass) or off; a build may use half of the memory offered, 1 GiB at least")
	bootedFlags(cmd, &opts)
	energyFlags(cmd, &opts)
	cmd.Flags().BoolVar(&opts.Conditions, "conditions", false, "let members have network conditions: this agent forwards their packets then, and takes CPU time for that")
	logFlags(cmd, &opts.Log, "info")
	return cmd
}

// bootedFlags adds the options about the machine's boot and power.
func bootedFlags(cmd *cobra.Command, opts *config.Agent) {
	cmd.Flags().BoolVar(&opts.InRAM, "in-ram", false, "report that everything members leave on this node is in its memory; refused where the state directory is on a disk, or memory is swapped to one")
	cmd.Flags().Int64Var(&opts.BootGeneration, "boot-generation", 0, "generation of the boot it runs in, on a machine that the server booted")
	cmd.Flags().StringVar(&opts.MemberMAC, "as-member", "", "carry the member that this machine is and nothing else: MAC address of the interface it booted by, on a machine that the server booted for a cluster")
	cmd.Flags().BoolVar(&opts.AllowPowerOff, "allow-power-off", false, "let the server power off this machine although it did not boot it")
}

// energyFlags adds the options about what the node reads of its energy.
func energyFlags(cmd *cobra.Command, opts *config.Agent) {
	cmd.Flags().StringVar(&opts.RAPLTree, "rapl-tree", "", "folder with the counters of the processors' energy, or off (default: /sys/class/powercap)")
	cmd.Flags().StringVar(&opts.EnergyFile, "energy-sources", "", "file with further sources of energy readings: outlets of power distribution units (SNMP), a program")
}

// datasetFlagsOfNode adds the options about the node's replicas of datasets.
func datasetFlagsOfNode(cmd *cobra.Command, opts *config.Agent) {
	cmd.Flags().Var(byteCount{&opts.DatasetBytes}, "dataset-size", "room for replicas of datasets, like 200GiB; those that nobody uses go first (default: what the disk has)")
	cmd.Flags().Var(byteCount{&opts.DatasetRate}, "dataset-rate", "what the node fetches of datasets from their sources in a second, all together, like 50MiB (default: no limit)")
	cmd.Flags().Var(cacheSize{opts}, "xcache", "room for caches of datasets (XCache), like 20GiB; off keeps no caches on this node (default: a tenth of its disk, at most 64GiB)")
	opts.CacheBlock = defaultCacheBlock
	cmd.Flags().Var(byteCount{&opts.CacheBlock}, "xcache-block", "what a cache fetches at once: a multiple of 4KiB, up to 512MiB")
	cmd.Flags().IntVar(&opts.CachePrefetch, "xcache-prefetch", 0, "how many blocks a cache fetches ahead of its readers")
	cmd.Flags().IntVar(&opts.CacheHigh, "xcache-high", 90, "percent of a cache's size above which it removes files that were not read for the longest time")
	cmd.Flags().IntVar(&opts.CacheLow, "xcache-low", 80, "percent of a cache's size at which it stops removing files")
}

// defaultCacheBlock is what a cache fetches at once, in bytes: small enough for jobs that read some branches of a file.
const defaultCacheBlock = 256 << 10

// volumePoolFlags adds the options about where the node's volumes are, and how much of its disk datasets get.
func volumePoolFlags(cmd *cobra.Command, opts *config.Agent, size, thinPool *string) {
	datasetFlagsOfNode(cmd, opts)
	cmd.Flags().StringVar(size, "volume-pool-size", "", "size of the file that holds volumes, like 200GiB, where the state directory is on neither XFS nor Btrfs; off keeps no volumes on this node (default: a tenth of its disk, at most 64GiB)")
	cmd.Flags().StringVar(thinPool, "volume-pool-lvm", "", "thin pool of LVM that holds volumes, like vg0/volumes, for this node alone among nodes; the logical volumes of others in it stay as they are (default: volumes are kept in the state directory)")
	cmd.Flags().BoolVar(&opts.VolumePoolSparse, "volume-pool-sparse", false, "let the file that holds volumes take room on the disk as they are written; members' writes fail when the disk is full")
}

// readPoolSize reads how large the file of the node's volumes may be.
func readPoolSize(opts *config.Agent, text string) error {
	switch text {
	case "":
		return nil
	case "off":
		opts.NoVolumes = true
		return nil
	}
	bytes, err := api.ParseBytes(text)
	switch {
	case err != nil:
		return usage("--volume-pool-size: %v; or give off", err)
	case bytes < leastPoolSize:
		return usage("--volume-pool-size: %s is too small; give at least %s, or off", bytes, api.Bytes(leastPoolSize))
	}
	opts.VolumePoolBytes = int64(bytes)
	return nil
}

// thinPoolText is a volume group and a thin pool, by the characters that LVM lets names have.
var thinPoolText = regexp.MustCompile(`^([A-Za-z0-9+_.][A-Za-z0-9+_.-]{0,31})/([A-Za-z0-9+_.][A-Za-z0-9+_.-]{0,62})$`)

// readThinPool reads which thin pool holds the node's volumes. One has a size already.
func readThinPool(opts *config.Agent, text, size string) error {
	if text == "" {
		return nil
	}
	parts := thinPoolText.FindStringSubmatch(text)
	switch {
	case parts == nil:
		return usage("--volume-pool-lvm %q: give GROUP/POOL like vg0/volumes; the name of the group has at most 32 characters", text)
	case size != "" || opts.VolumePoolSparse:
		return usage("--volume-pool-lvm conflicts with --volume-pool-size and --volume-pool-sparse: those are about a file that holds volumes")
	}
	opts.VolumeGroup, opts.VolumeThinPool = parts[1], parts[2]
	return nil
}

// leastPoolSize is of what a file system for volumes can be made, in bytes.
const leastPoolSize = 512 << 20

// checkImageOptions checks the agent's options on images, builds and power.
func checkImageOptions(opts config.Agent) error {
	if opts.PeerListen != "" && opts.PeerListen != config.PeerListenOff {
		if _, err := netip.ParseAddrPort(opts.PeerListen); err != nil {
			return usage("--peer-listen %q: give ADDRESS:PORT like 10.0.0.5:7702, or off", opts.PeerListen)
		}
	}
	if opts.KeepImages < 0 {
		return usage("--keep-images is %d; give a number of images, or 0 for none", opts.KeepImages)
	}
	if opts.Builder != config.BuilderAuto && opts.Builder != config.BuilderOff {
		return usage("--builder is %q; use auto or off", opts.Builder)
	}
	if opts.MemberMAC != "" {
		if mac, err := net.ParseMAC(opts.MemberMAC); err != nil || len(mac) != 6 {
			return usage("--as-member %q: give a MAC address like 52:54:00:12:34:56", opts.MemberMAC)
		}
	}
	if opts.BootGeneration < 0 {
		return usage("--boot-generation is %d; generations count from 1", opts.BootGeneration)
	}
	return nil
}

// thoroughPairs is how many pairs a thorough demo measures, unless others are asked for.
const thoroughPairs = 20

func (a *app) demoCommand() *cobra.Command {
	opts := config.Demo{Streams: a.Streams}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Tour the life of a cluster, and measure its efficiency against bare metal",
		Long: `Start an embedded site, create a cluster of 2 members and run an MPI program on it. Measure ping-pong, HPL and STREAM on the bare host
and in the cluster alternately on the same cores, and write an HTML report; a run with a wrong result ends the demo. Then let the
cluster grow to a second node, kill a member while a job runs and show how both go on, drain the node, shrink the cluster, show its
usage, delete it, and prove that nothing is left. Takes about 2 minutes, and under 3 on 2 cores. Needs root, mpicc and hpcc.

With --thorough, messages and memory are measured in 20 pairs, and HPL solves a problem that takes 20 seconds at least, chosen from the
machine's memory and a trial. hpcc runs its other tests, too, so this takes the better part of an hour; each pair shows the time left.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Thorough && !cmd.Flags().Changed("pairs") {
				opts.Pairs = thoroughPairs
			}
			if opts.Pairs < 2 {
				return usage("--pairs is %d; an interval needs at least 2, better 6", opts.Pairs)
			}
			if err := checkLog(opts.Log); err != nil {
				return err
			}
			return call(cmd.Context(), "demo", a.Commands.Demo, opts)
		},
	}
	cmd.Flags().StringVar(&opts.StateDir, "state", "", "state directory (default: a temporary one, removed at the end)")
	cmd.Flags().StringVar(&opts.Report, "report", "nearmetal-demo.html", "file to write the HTML report to")
	cmd.Flags().IntVar(&opts.Pairs, "pairs", 6, "number of paired measurements (with --thorough: 20, and a third of them for HPL)")
	cmd.Flags().BoolVar(&opts.Thorough, "thorough", false, "measure HPL with a problem of 20 seconds at least, and more pairs")
	logFlags(cmd, &opts.Log, "warn") // what it tells is the demo's own story
	return cmd
}
