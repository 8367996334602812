// Package config holds the options of the long-running commands (dev, server, agent, demo) and the program's version.
//
// It is the seam between the command line, which fills the options in, and the packages that run them; it must never read
// flags, files or the environment itself. Start with Dev.
package config

import (
	"context"
	"io"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// Defaults that the command line, the server and the documentation share.
const (
	// StateDir is the default state directory.
	StateDir = "/var/lib/nearmetal"
	// Listen is the default address of the HTTPS API.
	Listen = "127.0.0.1:7700"
	// SocketName is the file name of the API's Unix socket in the state directory.
	SocketName = "server.sock"
	// TokenName is the file name of the administrator's token in the state directory.
	TokenName = "token"
)

// Streams are where a command reads and writes.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Log says how the long-running commands log.
type Log struct {
	// Level is "debug", "info", "warn" or "error".
	Level string
	// Format is "text" or "json".
	Format string
}

// Dev are the options of `nearmetal dev`: a server and its agents in one command.
type Dev struct {
	Streams Streams
	Log     Log
	// StateDir is the state directory.
	StateDir string
	// Listen is HOST:PORT of the HTTPS API.
	Listen string
	// Nodes is the number of node agents, at least 1.
	Nodes int
	// NodeCores is the number of core slots each node offers; 0 divides the machine's cores among the nodes, and more
	// than that oversubscribes them.
	NodeCores int
	// BuildSources is the folder below which recipes' files are read; empty: they can name none.
	BuildSources string
	// CDIDirs is --cdi-dir of each agent; empty: its default.
	CDIDirs []string
	// GPUPrograms is --gpu-programs of each agent, RemoteGPUs is --remote-gpus of the first RemoteGPUNodes of them; 0: of one.
	GPUPrograms    string
	RemoteGPUs     RemoteGPUs
	RemoteGPUNodes int
	// VolumePool is --volume-pool-size of each agent; empty: its default.
	VolumePool string
	// NetworkPool is what clusters' networks get their addresses from, an IPv4 prefix; empty: the default.
	NetworkPool string
	// VLANPool is the VLAN IDs that networks can have, FIRST-LAST, for members on nodes that have a trunk; empty: none.
	VLANPool string
	// EthernetFiles are the files with the settings of the site's Ethernet switches, by cell.
	EthernetFiles map[string]string
	// NetworkPool6 is what networks with IPv6 get their IPv6 subnets from, a prefix of /48 or shorter; empty: the site's unique local one.
	NetworkPool6 string
	Floating     Floating
	// EgressOpen are the private IPv4 prefixes that members with egress reach; all others are closed to them.
	EgressOpen []string
	// EncryptUnderlay makes nodes exchange members' frames through WireGuard only.
	EncryptUnderlay bool
	// RAPLTree is --rapl-tree of the agents; RAPLStandIn makes a tree whose counters follow CPU time. Empty: the default for one node, off for several.
	RAPLTree string
	// UserHomes gives clusters that ask for no home that of their user.
	UserHomes bool
	// StartDeadline is how long members may take to be ready before they have failed; 0: as lifecycle has it.
	StartDeadline time.Duration
	// InfiniBand simulates an InfiniBand fabric that each node has a port of.
	InfiniBand bool
	Provision  Provision
	Logs       Logs
}

// Server are the options of `nearmetal server`.
type Server struct {
	Streams  Streams
	Log      Log
	StateDir string
	// Listen is HOST:PORT of the HTTPS API.
	Listen string
	// NetworkPool is what clusters' networks get their addresses from, an IPv4 prefix; empty: the default.
	NetworkPool string
	// VLANPool is the VLAN IDs that networks can have, FIRST-LAST; empty: none.
	VLANPool string
	// PKeyPool is the partition keys that networks on InfiniBand can have, FIRST-LAST; empty: none.
	PKeyPool string
	// InfiniBandFiles are the files with the settings of the site's InfiniBand fabrics, by cell.
	InfiniBandFiles map[string]string
	// EthernetFiles are the files with the settings of the site's Ethernet switches, by cell.
	EthernetFiles map[string]string
	// NetworkPool6 is what networks with IPv6 get their IPv6 subnets from, a prefix of /48 or shorter; empty: the site's unique local one.
	NetworkPool6 string
	Floating     Floating
	// EgressOpen are the private IPv4 prefixes that members with egress reach; all others are closed to them.
	EgressOpen []string
	// DrainOn are the findings for which nodes are drained.
	DrainOn []api.DrainCause
	// EncryptUnderlay makes nodes exchange members' frames through WireGuard only.
	EncryptUnderlay bool
	// UserHomes gives clusters that ask for no home that of their user.
	UserHomes bool
	// StartDeadline is how long members may take to be ready before they have failed; 0: as lifecycle has it.
	StartDeadline time.Duration
	Provision     Provision
	Logs          Logs
}

// Floating is about floating addresses and what reaches members through them.
type Floating struct {
	// Pools are the IPv4 prefixes that floating addresses come from. Empty: the site has none; dev takes a part of its nodes' network.
	Pools []string
	// Connections is how many tracked connections a project may have on a node; 0 takes the default.
	Connections int
}

// Logs bound the stored output of jobs and builds, in bytes; 0 takes the default (monitor.LimitsFor).
type Logs struct {
	JobBytes, ProjectBytes, SiteBytes int64
}

// Provision says where and how machines boot over the network.
type Provision struct {
	// Interface is on the provisioning network, with an IPv4 address; empty: this server boots no machines.
	Interface string
	// Proxy: another DHCP server gives addresses there.
	Proxy bool
	// Machines and Strangers are ranges of addresses, FROM-TO; empty: three quarters and one quarter of the interface's network.
	Machines, Strangers string
	// Loaders is the folder of iPXE's loaders.
	Loaders string
	// Target is how long a boot should take at most; a slower one is shown as such.
	Target time.Duration
	// BootDeadline is how long it may take before it has failed.
	BootDeadline time.Duration
	// VerifyEvery is how long a machine may be off before it is woken to prove that it still boots; 0: it is never woken.
	VerifyEvery time.Duration
	// FirmwareList is the file with the firmware that machines may have; empty: any.
	FirmwareList string
	// IdleOff is how long a machine that nobody has stays on before it goes off; 0: it goes off at once.
	IdleOff time.Duration
	// Warm is how many such machines stay on.
	Warm int
	// SensorsEvery is the pause between two readings of a machine's sensors; 0: they are not read.
	SensorsEvery time.Duration
	// RotateBMCPasswords changes the password of a machine's BMC after each member that had the machine.
	RotateBMCPasswords bool
}

// Ports on the provisioning network, besides those of DHCP and TFTP.
const (
	// BootPort serves the boot API by HTTPS, ImagePort scripts, kernels and images by HTTP.
	BootPort  = 7701
	ImagePort = 7780
)

// Defaults of provisioning.
const (
	Loaders    = "/usr/lib/ipxe"
	BootTarget = 3 * time.Minute
)

// Agent are the options of `nearmetal agent`.
type Agent struct {
	Streams Streams
	Log     Log
	// StateDir is the state directory of this node; the agent keeps its own below nodes/NAME.
	StateDir string
	// Server is HOST:PORT of the server's HTTPS API.
	Server string
	// EnrollTokenFile holds an enrollment token, which carries the pin of the server's CA, for a node that has no identity yet. On the server's
	// machine none is needed.
	EnrollTokenFile string
	// Name is the node's name, a DNS label; by default the host name up to its first dot.
	Name string
	// Labels are the node's labels, which node selectors match.
	Labels map[string]string
	// Cores is the number of core slots offered; 0 offers one for every core, more oversubscribes.
	Cores int
	// CPUs limits the node to these physical CPUs; empty: all that the agent may use.
	CPUs []int
	// SharedCPUs tells that other nodes use the same CPUs (dev with more nodes than cores): all is labelled oversubscribed.
	SharedCPUs bool
	// MemoryBytes limits what the node offers; 0: the machine's memory less a tenth.
	MemoryBytes int64
	// DiskBytes limits the private disks of members that the node offers; 0: what is free on the disk of its state less a reserve.
	DiskBytes int64
	// VolumePoolBytes is the size of the file that holds the node's volumes, where the file system of the state shares no blocks itself; 0: a tenth
	// of that file system, and 64 GiB at most. With NoVolumes, the node keeps none.
	VolumePoolBytes int64
	NoVolumes       bool
	// VolumePoolSparse has that file take room on the disk as volumes are written, and not when it is made.
	VolumePoolSparse bool
	// VolumeGroup and VolumeThinPool name the thin pool of LVM that holds the node's volumes; empty: they are in the directory of its state.
	VolumeGroup, VolumeThinPool string
	// HugePages is the part of the machine's reserved huge pages that the node offers; other nodes of the machine may offer the other parts.
	HugePages inventory.Part
	// GPUs is the part of the machine's GPUs that the node gives to members. CDIDirs are the folders with CDI files; empty: those of the system.
	GPUs    inventory.Part
	CDIDirs []string
	// GPUAllow are the GPUs that members get, by ID, PCI address or words of the model; none: all of that part. GPUKinds are names of kinds, NAME=WHAT.
	GPUAllow []string
	GPUKinds []string
	// PassthroughGPUs are the GPUs that virtual machines may get, as in GPUAllow, or "all". PassthroughClearing is how their memory is cleared between
	// owners: proven or reset.
	PassthroughGPUs     []string
	PassthroughClearing string
	// GPUPrograms is the folder with the programs of remote GPUs; empty: gpuremote beside this program, and else /usr/lib/nearmetal/gpuremote, where one is there.
	GPUPrograms string
	// RemoteGPUs are handed out by servers to members of any node: none, all, or opencl:SIZE.
	RemoteGPUs RemoteGPUs
	// Underlay is the node's IP address or interface name on the data network; empty lets the agent choose.
	Underlay string
	// TrunkInterface is the link that carries VLANs; empty: the node has no members of networks on VLANs.
	TrunkInterface string
	// Fabrics are the adapters that members may have, each with the cell of the fabric that it is connected to.
	Fabrics []FabricPort
	// VirtualFunctions is how many virtual functions each of these adapters gets, by its name in Fabrics; those without are left as they are.
	VirtualFunctions map[string]int
	// VirtualPorts are the cells whose subnet manager has virtualization.
	VirtualPorts []string
	// Simulated is where the node's port on a simulated fabric is, for members that get that port; zero: it has none.
	Simulated SimulatedPort
	// FabricPorts are ports of this machine on fabrics of the site, for members that get the whole machine.
	FabricPorts []api.NodePort
	// UplinkRate is what the data network's link carries: members' ports with rates share it. 0: what the kernel says of the link.
	UplinkRate api.Rate
	// Conditions allows members to have network conditions: the agent forwards their packets, and needs CPU time for that.
	Conditions bool
	// InRAM: whoever made the machine's root says that it is in memory, so that nothing of members outlasts the boot.
	InRAM bool
	// BootGeneration is the generation of the boot the agent runs in, as the server gave it to a machine that it booted; 0: another's.
	BootGeneration int64
	// MemberMAC is set on a machine that the server booted to be a member: the MAC address of the interface that it booted by. Its agent carries that
	// member and offers nothing.
	MemberMAC string
	// PeerListen is ADDRESS:PORT at which the node serves the images it holds to other nodes. Empty is any port of the underlay address,
	// when that is known; PeerListenOff serves none.
	PeerListen string
	// KeepImages is how many images that nothing needs any more are kept while there is room.
	KeepImages int
	// DatasetBytes bounds the replicas of datasets on the node, and DatasetRate the bytes per second that it fetches of them from sources; 0: no bound.
	DatasetBytes, DatasetRate int64
	// CacheBytes bounds the caches of datasets on the node, all together; 0: a tenth of the disk, at most 64 GiB. NoCaches: it keeps none.
	CacheBytes int64
	NoCaches   bool
	// CacheBlock is what a cache fetches at once, in bytes, and CachePrefetch how many blocks ahead of its readers.
	CacheBlock    int64
	CachePrefetch int
	// CacheLow and CacheHigh are percents of a cache's size: over the second, it removes files until it is at the first. 0: 80 and 90.
	CacheLow, CacheHigh int
	// Builder tells whether the node offers to build environments.
	Builder Builder
	// BuildSources is the folder below which recipes' files, directories and archives are read; empty: recipes can name none.
	BuildSources string
	// RAPLTree is where the counters of the processors' energy are; empty: where Linux has them. RAPLOff reads none.
	RAPLTree string
	// EnergyFile describes further sources of energy readings: outlets of power distribution units, a program; empty: there are none.
	EnergyFile string
	// AllowPowerOff lets the server power off a machine that it did not boot.
	AllowPowerOff bool
}

// FabricPort is an adapter of a node that is connected to a cell.
type FabricPort struct {
	Cell string
	// Adapter is its PCI address, such as 0000:3b:00.0, or the name of its network interface when the agent starts.
	Adapter string
}

// SimulatedPort is a node's port on a simulated InfiniBand fabric.
type SimulatedPort struct {
	Cell string
	// GUID is 16 hexadecimal digits.
	GUID string
}

// RAPLOff is the value of Agent.RAPLTree that reads no counters.
const RAPLOff = "off"

// RAPLStandIn is the value of Dev.RAPLTree for which counters are made up.
const RAPLStandIn = "stand-in"

// PeerListenOff is the value of Agent.PeerListen that serves no images to other nodes.
const PeerListenOff = "off"

// DefaultKeepImages is how many images that nothing needs a node keeps by default.
const DefaultKeepImages = 2

// Builder tells when a node offers to build environments.
type Builder string

// The values of Builder.
const (
	BuilderAuto Builder = "auto" // when the host checks pass; else its record says what they found
	BuilderOff  Builder = "off"
)

// Demo are the options of `nearmetal demo`.
type Demo struct {
	Streams Streams
	Log     Log
	// StateDir is the state directory; empty makes a temporary one and removes it at the end.
	StateDir string
	// Report is the file the HTML report is written to.
	Report string
	// Pairs is the number of paired host and cluster measurements.
	Pairs int
	// Thorough measures longer: HPL of a size that takes 20 s at least.
	Thorough bool
}

// RemoteData are the options of `nearmetal measure remote-data`.
type RemoteData struct {
	Streams Streams
	// Out is the directory of the results.
	Out string
	// Python is an interpreter with uproot and XRootD.
	Python string
	// Delays are added to round trips. Losses and Duplicates are percentages of packets, and Rates limit the link; each counts for either direction.
	Delays             []time.Duration
	Losses, Duplicates []float64
	Rates              []api.Rate
	// Jobs run at once, and Loaders beside them.
	Jobs, Loaders []int
	// Rounds is how often each way is measured, Megabytes the size of the file.
	Rounds    int
	Megabytes int
	// Cluster is where the jobs run, "": as processes of this machine. Far is the cluster whose network has the conditions, Members are those that have the
	// jobs, and Load is what loaders load there.
	Cluster, Far, Load string
	Members            []int
}

// SoftwareCache are the options of `nearmetal measure software-cache`.
type SoftwareCache struct {
	Streams Streams
	// Out is the directory of the results.
	Out string
	// Tree has the files of the program that Command starts.
	Tree    string
	Command []string
	// Megabytes are the sizes of the cache. Delay is added to round trips, and Rate limits the link.
	Megabytes []int
	Delay     time.Duration
	Rate      api.Rate
	Rounds    int
}

// GPUStudy are the options of `nearmetal measure gpu`.
type GPUStudy struct {
	Streams Streams
	// Out is the directory of the results.
	Out string
	// Programs is the folder with the programs of remote GPUs; empty: that beside this program, else the system's.
	Programs string
	// API is opencl or cuda, Size one of the kernels' sizes, Kernels those to run: none is all.
	API     string
	Size    string
	Kernels []string
	// Rounds is how often each way is measured.
	Rounds int
	// Member is CLUSTER/MEMBER, whose GPU is used over the cluster's network; empty: none. InMember runs a shell script there.
	Member   string
	InMember func(ctx context.Context, script string) ([]byte, error)
	// Expected is what the member's GPU was expected to cost, in times of a local one; nil: there is no member. 0: nothing was expected.
	Expected func(ctx context.Context) (float64, error)
}

// SiteKeys are the keys of a site, as people see them.
type SiteKeys struct {
	// CAs are the newest first: the first is in use.
	CAs []SiteCA `json:"cas"`
	// SecretsSince is since when each secret is in use, the oldest first; zero: since the site's first start.
	SecretsSince []time.Time `json:"secrets_since"`
}

// SiteCA is one of a site's CAs.
type SiteCA struct {
	// Pin is the SHA-256 of its SubjectPublicKeyInfo (RFC 7469, section 2.4), base64url: what ends a token's line.
	Pin       string    `json:"pin"`
	MadeAt    time.Time `json:"made_at"`
	ExpiresAt time.Time `json:"expires_at"`
}
