package api

import (
	"net/netip"
	"slices"
)

// Executor is a program that carries out assignments and proves them clean.
type Executor string

// The executors.
const (
	// ExecutorAgent is a node's agent. It proves by looking that nothing of an assignment is left on its node.
	ExecutorAgent Executor = "agent"
	// ExecutorProvisioner is the site's provisioner. It proves that a whole machine was powered off, and cleaned, after its member.
	ExecutorProvisioner Executor = "provisioner"
	// ExecutorFabric is the site's control of a fabric: a subnet manager, or switches. It proves by reading back that the ports of an
	// assignment are in none of its networks.
	ExecutorFabric Executor = "fabric"
)

// Prover is who must prove an assignment clean: an executor, and where it is, which is a node for an agent and a cell for a fabric.
type Prover struct {
	By Executor `json:"by"`
	At string   `json:"at"`
}

func (p Prover) String() string { return string(p.By) + " of " + p.At }

// ByAgents returns the agents of nodes as provers.
func ByAgents(nodes ...string) []Prover {
	provers := make([]Prover, 0, len(nodes))
	for _, n := range nodes {
		provers = append(provers, Prover{By: ExecutorAgent, At: n})
	}
	return provers
}

// Proof is the word of one prover that nothing of an assignment is left. It is stored while other provers still owe theirs.
type Proof struct {
	Assignment string `json:"assignment"`
	Prover
}

func (p Proof) String() string { return p.Assignment + " by the " + p.Prover.String() }

// MemoryClaim is memory of one memory node.
type MemoryClaim struct {
	NUMANode int   `json:"numa_node"`
	Bytes    int64 `json:"bytes"`
	// PageBytes is the size of the huge pages that it is of; 0 is ordinary memory.
	PageBytes int64 `json:"page_bytes,omitempty"`
}

// IDRange is a range of a host's user and group IDs.
type IDRange struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// DeviceClaim is a part of a device, handed out in one way: whole, a virtual function, a share.
type DeviceClaim struct {
	// Class is what was asked for, Device its stable ID on the node, Way how it is handed out.
	Class  string `json:"class"`
	Device string `json:"device"`
	Way    string `json:"way"`
	// Part is which of several equal parts it is, such as "vf3" for the virtual function with index 3; empty where parts have no names.
	Part string `json:"part,omitempty"`
	// Parent is the GPU that the device is a slice of, and Profile the slice's size; both are empty for all others. While the slice is not known any more,
	// nobody gets anything of that GPU.
	Parent  string `json:"parent,omitempty"`
	Profile string `json:"profile,omitempty"`
	// GUID is that of the device, where the part is an InfiniBand adapter's whole port.
	GUID string `json:"guid,omitempty"`
	// Takes is how much of the device's counters the part takes. It counts for quotas and usage, also when the device is no longer known.
	Takes map[string]int64 `json:"takes"`
	// Why tells people why this device was chosen, where its place was open.
	Why string `json:"why,omitempty"`
	// Cost is, of a GPU, what kernels were expected to take by it when it was chosen, in times of what they take on a local one; 0: nothing was expected.
	Cost float64 `json:"cost,omitempty"`
	// Figures tells people which figures that rests on: which were measured, and how long before.
	Figures string `json:"figures,omitempty"`
}

// PortKind is what a member's end of a network is.
type PortKind string

// The kinds of ports.
const (
	PortVeth    PortKind = "veth"    // a pair of virtual Ethernet links, one end in the member's network namespace
	PortTAP     PortKind = "tap"     // a virtual machine's para-virtual interface
	PortMACVTAP PortKind = "macvtap" // the same on a virtual or physical function, switched by the adapter
	PortVF      PortKind = "vf"      // a virtual function (SR-IOV)
	PortPF      PortKind = "pf"      // a whole physical port
)

// PortClaim is a member's end of a network.
type PortClaim struct {
	// Network is the UID of its network.
	Network string   `json:"network"`
	Kind    PortKind `json:"kind"`
	// Address is the member's in that network. MAC is the address of its interface, locally administered (IEEE 802c).
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	// GUID is the port GUID on InfiniBand, 16 hexadecimal digits such as 0e6d000000000003: of a whole port the adapter's own, else one that the site
	// gave. It is empty elsewhere.
	GUID string `json:"guid,omitempty"`
	// Limited: on InfiniBand, the port reaches full members of the partition only (InfiniBand Architecture Specification 1.2.1, 10.9.3).
	Limited bool `json:"limited,omitempty"`
	// SecurityGroups are the names of the port's security groups within the cluster's project, as its group named them when it was placed.
	SecurityGroups []string `json:"security_groups,omitempty"`
	// Quality is the port's quality of service, as its group asked for it when it was placed.
	Quality
	// Device is the node's port that it is, or is on. Fabric and At are where that is connected; the fabric must prove the port clean too. All are
	// empty for a port that only the node knows of.
	Device string `json:"device,omitempty"`
	// Standby: beside its virtual function, the port is one on the node's bridge with the same addresses, for the time without the function.
	Standby bool `json:"standby,omitempty"`
	// Part is the part of Device that it is, or is on, as in the DeviceClaim; empty for the whole port.
	Part   string `json:"part,omitempty"`
	Fabric string `json:"fabric,omitempty"`
	At     string `json:"at,omitempty"`
}

// HCAClaim is a port of an InfiniBand adapter of a whole machine. The fabric must prove it clean.
type HCAClaim struct {
	// Network is the UID of the network whose index is the number of the partition that the port is in.
	Network string `json:"network"`
	// Fabric is the cell of the fabric, At the port's GUID.
	Fabric string `json:"fabric"`
	At     string `json:"at"`
}

// SameAs reports whether two ports are one to the networks: where a node has them is its own business.
func (p *PortClaim) SameAs(other *PortClaim) bool {
	return p.Network == other.Network && p.Address == other.Address && p.MAC == other.MAC
}

// IsMember reports whether an assignment is a member that runs: no spare, no state of a snapshot, and no part of another assignment's member.
func (a *Assignment) IsMember() bool { return !a.Spare && a.Of == "" && a.Snapshot == nil }

// ByProvisioner reports whether the site's provisioner carries an assignment: its member has a whole machine, which boots for it.
func (a *Assignment) ByProvisioner() bool {
	return slices.ContainsFunc(a.CleanBy, func(p Prover) bool { return p.By == ExecutorProvisioner })
}

// IsSnapshot reports whether an assignment keeps the state of a member in a snapshot. It runs nothing.
func (a *Assignment) IsSnapshot() bool { return a.Snapshot != nil }

// IsSuccessor reports whether an assignment is where another member is to go on, and has not taken over from it yet. It is a part of that one.
func (a *Assignment) IsSuccessor() bool { return a.Of != "" && a.From == a.Of }

// IsPart reports whether an assignment is what a member holds besides its own: on another node, or cleaned by others.
func (a *Assignment) IsPart() bool { return a.Of != "" }

// ProvenBy reports whether the proofs are from all that must prove the assignment clean. One that names nobody is never clean.
func (a *Assignment) ProvenBy(proved func(Prover) bool) bool {
	return len(a.CleanBy) > 0 && !slices.ContainsFunc(a.CleanBy, func(p Prover) bool { return !proved(p) })
}

// MemoryBytes returns how much memory its member gets.
func (a *Assignment) MemoryBytes() int64 {
	sum := int64(0)
	for _, m := range a.Memory {
		sum += m.Bytes
	}
	return sum
}

// NodeMemoryBytes returns how much of its node's ordinary memory the assignment holds.
func (a *Assignment) NodeMemoryBytes() int64 {
	sum := a.ReserveBytes
	for _, m := range a.Memory {
		if m.PageBytes == 0 {
			sum += m.Bytes
		}
	}
	return sum
}

// HugePages returns the size of the huge pages that hold the member's memory, 0 for ordinary memory, and how many bytes of them it holds.
func (a *Assignment) HugePages() (size, bytes int64) {
	for _, m := range a.Memory {
		if m.PageBytes != 0 {
			size, bytes = m.PageBytes, bytes+m.Bytes
		}
	}
	return size, bytes
}

// MemoryNodes returns the memory nodes whose memory the assignment may use: those of its claims, or of its CPUs when no memory is claimed.
func (a *Assignment) MemoryNodes() []int {
	if len(a.Memory) == 0 {
		return a.NUMANodes
	}
	nodes := make([]int, 0, len(a.Memory))
	for _, m := range a.Memory {
		nodes = append(nodes, m.NUMANode)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// Address returns the member's address in its first network, which is not valid for one without a port.
func (a *Assignment) Address() netip.Addr {
	if len(a.Ports) == 0 {
		return netip.Addr{}
	}
	return a.Ports[0].Address
}

// MAC returns the address of the member's interface in its first network, empty for one without a port.
func (a *Assignment) MAC() string {
	if len(a.Ports) == 0 {
		return ""
	}
	return a.Ports[0].MAC
}
