package api

import "time"

// NodePhase is a phase in the life of a node. A node whose machine the site powers and boots is, while it is not in use, in its machine's phase
// (MachinePhase): booting, off ...
type NodePhase string

// The phases of a node.
const (
	NodeReady   NodePhase = "ready"   // its agent is connected and the host checks passed
	NodeUnknown NodePhase = "unknown" // its agent is not heard of, the death timer has not run out
	NodeDown    NodePhase = "down"    // not heard of for longer than the death timer
	NodePending NodePhase = "pending" // enrolled, and waits for an administrator's approval
)

// Core is one core slot a node offers. A node offers a physical CPU in more than one slot only when it is oversubscribed.
type Core struct {
	Slot     int `json:"slot"`
	CPU      int `json:"cpu"`
	NUMANode int `json:"numa_node"`
}

// NUMANode is one memory node of a machine.
type NUMANode struct {
	ID          int   `json:"id"`
	MemoryBytes int64 `json:"memory_bytes"`
	// HugePages are the huge pages that the node has set aside there; they are not in MemoryBytes.
	HugePages []HugePages `json:"huge_pages,omitempty"`
}

// HugePages is a pool of huge pages of one size.
type HugePages struct {
	PageBytes int64 `json:"page_bytes"`
	Bytes     int64 `json:"bytes"`
}

// NodeCapacity is the capacity that a node offers to members.
type NodeCapacity struct {
	Cores       []Core     `json:"cores"`
	MemoryBytes int64      `json:"memory_bytes"`
	NUMANodes   []NUMANode `json:"numa_nodes"`
	// DiskBytes is the room for private disks of members.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// UplinkBitsPerSecond is the rate of the link of the data network, which minimum rates of ports are taken from; 0: not known.
	UplinkBitsPerSecond int64 `json:"uplink_bits_per_second,omitempty"`
	// Devices are the devices of which members may hold parts.
	Devices []Device `json:"devices,omitempty"`
	// Ports are the node's own ends of fabrics, in the order in which a member that gets the whole node uses them.
	Ports []NodePort `json:"ports,omitempty"`
}

// NodePort is a physical port of a node that leads to a switch.
type NodePort struct {
	// Name is stable on its node: a PCI address, such as 0000:3b:00.0.
	Name string `json:"name"`
	// Fabric is the cell of the fabric that the port is connected to. At is how that fabric knows the port: a GUID, or a switch with one of its
	// ports.
	Fabric string `json:"fabric"`
	At     string `json:"at"`
	// Technology is ethernet for a port on a switch that the site manages, and infiniband for one of an adapter that was inspected in a machine; empty:
	// another one that the node's agent was told of.
	Technology FabricTechnology `json:"technology,omitempty"`
	// MAC is that of the NIC, where it is known; a member's port there has it.
	MAC string `json:"mac,omitempty"`
}

// StackCheck is the result of a driver's host checks on a node.
type StackCheck struct {
	Stack Stack `json:"stack"`
	OK    bool  `json:"ok"`
	// By is the executor that carries the stack's members; empty: the node's agent.
	By Executor `json:"by,omitempty"`
	// Problems tell what is missing and what to do, one a line.
	Problems []string `json:"problems,omitempty"`
	// Warnings tell what works worse than it could, and why.
	Warnings []string `json:"warnings,omitempty"`
	// CPUModels are the CPU models that virtual machines can have on this node with all their features, sorted.
	CPUModels []string `json:"cpu_models,omitempty"`
	// Machines is what makes virtual machines here; absent where none can run.
	Machines *MachineMaker `json:"machines,omitempty"`
}

// MachineMaker is what makes virtual machines on a node. A machine's memory can move between nodes whose makers are alike.
type MachineMaker struct {
	// QEMU and Libvirt are the series, such as 7.2.
	QEMU    string `json:"qemu"`
	Libvirt string `json:"libvirt"`
	// Processor is the node's, which its machines see; absent where processors are emulated.
	Processor *ProcessorKind `json:"processor,omitempty"`
}

// ProcessorKind is the kind of a processor, by the numbers that it reports of itself.
type ProcessorKind struct {
	Vendor string `json:"vendor"`
	Family string `json:"family"`
	Model  string `json:"model"`
}

// BuilderCheck reports whether a node can build environments.
type BuilderCheck struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems,omitempty"`
}

// NodeRecord is a node of the inventory as its agent last reported it; stored.
type NodeRecord struct {
	Name         string              `json:"name"`
	Labels       map[string]string   `json:"labels,omitempty"`
	Capacity     NodeCapacity        `json:"capacity"`
	Stacks       []StackCheck        `json:"stacks"`
	Environments []EnvironmentOnNode `json:"environments"`
	// Underlay is the node's address on the data network, the VXLAN tunnel end point.
	Underlay string `json:"underlay,omitempty"`
	// UnderlayMTU is the MTU of the link that bears Underlay, in bytes; 0: not known.
	UnderlayMTU int `json:"underlay_mtu,omitempty"`
	// WireGuardKey is the node's public key for an encrypted underlay, in base64; empty on a node whose kernel has no WireGuard.
	WireGuardKey string `json:"wireguard_key,omitempty"`
	// Trunk is the link that carries VLANs; nil on a node without one.
	Trunk *Trunk `json:"trunk,omitempty"`
	// Adapters are those that the agent was given cells for, in the order of their addresses.
	Adapters []Adapter `json:"adapters,omitempty"`
	// GPUs are those that the agent found, in the order of their PCI addresses, then of their names. GPUProblems are why there may be more that it could
	// not read, one a line.
	GPUs        []NodeGPU `json:"gpus,omitempty"`
	GPUProblems []string  `json:"gpu_problems,omitempty"`
	// GPUPrograms: the node has the programs of remote GPUs, so members there can use those of any node.
	GPUPrograms bool `json:"gpu_programs,omitempty"`
	// Oversubscribed is true when a physical CPU backs more than one slot, of this node or (dev --nodes) of another.
	Oversubscribed bool   `json:"oversubscribed"`
	AgentVersion   string `json:"agent_version"`
	// BootGeneration is the generation of the boot that the agent runs in; 0: it was not booted by us.
	BootGeneration int64 `json:"boot_generation,omitempty"`
	// InRAM: everything that members leave on the node is in its memory, and gone when its power is.
	InRAM bool `json:"in_ram,omitempty"`
	// Images: the node can carry built environments on the container stack (it can mount their roots).
	Images bool `json:"images,omitempty"`
	// Builder is the result of the checks whether environments can be built on the node; nil: it offers no builds.
	Builder *BuilderCheck `json:"builder,omitempty"`
	// VolumePool is the room for volumes; nil: the agent offers none.
	VolumePool *VolumePool `json:"volume_pool,omitempty"`
	// VolumeSharing is whether volumes cross from and to the node; nil: its agent does not know how.
	VolumeSharing *VolumeSharing `json:"volume_sharing,omitempty"`
	FirstSeenAt   time.Time      `json:"first_seen_at"`
	// Places are where the node is on the site's fabrics, one for each cell. They are for placement, and never stored.
	Places []NodePlace `json:"-"`
	// Disks are those of the node's machine that inspection found. They are for placement, and never stored.
	Disks []Disk `json:"-"`
	// VerifiedAt is when the node's machine last proved that it boots; zero: never, or it is no machine of the site. It is for placement, and never stored.
	VerifiedAt time.Time `json:"-"`
}

// NodeControl is the intent of operators for a node. It is stored apart from its agent's reports, and only while there is any intent.
type NodeControl struct {
	Name string `json:"name"`
	// Drained: it gets no new members. Those that can move, go to other nodes as soon as they have room. Reason, By and Since are those of the drain.
	Drained bool      `json:"drained"`
	Reason  string    `json:"reason,omitempty"`
	By      string    `json:"by,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Stay: the drain keeps only new members away, and those that could move stay. It is set by a drain of policy.
	Stay bool `json:"stay,omitempty"`
	// Findings are those that policy has drained the node for, and that last or that nobody has undrained it after.
	Findings []string `json:"findings,omitempty"`
	// Windows are the node's maintenance windows that are not over, by their beginnings. Window is the one that it is drained for; empty: it is not
	// drained for any.
	Windows []MaintenanceWindow `json:"windows,omitempty"`
	Window  string              `json:"window,omitempty"`
	// Builder is set while the node is a trusted builder: what it builds is signed. Nothing that its agent says makes it one.
	Builder *BuilderTrust `json:"builder,omitempty"`
}

// BuilderTrust is a user's decision to trust a node as a builder.
type BuilderTrust struct {
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since"`
}

// NodeIdentity is the key whose holder may speak for a node. It is stored, and shown to administrators. A node without one is refused.
type NodeIdentity struct {
	Node string `json:"node"`
	// ID is in the node's certificates. What enrolls later under the same name has another.
	ID string `json:"id"`
	// Key is the SHA-256 of the public key in use, in hexadecimal. Next is that of a renewal that has not been used yet.
	Key  string `json:"key"`
	Next string `json:"next,omitempty"`
	// Boot is the generation of the boot that it was made for, and ends with; 0: it is for good.
	Boot int64 `json:"boot,omitempty"`
	// Member is the assignment that the node is: its agent runs in the hands of that member's users, and is believed about nothing but the member.
	// Empty: the node is the site's.
	Member     string    `json:"member,omitempty"`
	EnrolledAt time.Time `json:"enrolled_at"`
	// EnrolledBy names the user or the enrollment token, Token is the ID of the latter.
	EnrolledBy string `json:"enrolled_by"`
	Token      string `json:"token,omitempty"`
	// ApprovedAt is nil while nobody has approved it.
	ApprovedAt *time.Time `json:"approved_at,omitempty"`
	ApprovedBy string     `json:"approved_by,omitempty"`
	// RenewedAt is the time of issue of its newest certificate, EndsAt the end of that certificate.
	RenewedAt time.Time `json:"renewed_at"`
	EndsAt    time.Time `json:"ends_at"`
}

// NodeEnrollment is the body by which a node asks for an identity.
type NodeEnrollment struct {
	Name string `json:"name"`
	// Request is a certificate request (PKCS #10, RFC 2986) in PEM, for the key that the node has made. Names in it mean nothing.
	Request string `json:"request"`
	// Token is the secret of an enrollment token. The administrator on the server's machine needs none.
	Token string `json:"token,omitempty"`
}

// NodeRenewal is the body by which a node asks for its next certificate.
type NodeRenewal struct {
	// Request is as in NodeEnrollment, for another key.
	Request string `json:"request"`
}

// NodeCertificate is the answer to a node that has enrolled or renewed.
type NodeCertificate struct {
	// Certificate is in PEM. Pin is that of the site's CA. Site identifies the site, and stays when the CA is replaced.
	Certificate string `json:"certificate"`
	Pin         string `json:"pin"`
	Site        string `json:"site"`
	// RenewInSeconds is the time from now until the next certificate must be requested: clocks of nodes are not trusted.
	RenewInSeconds float64 `json:"renew_in_seconds"`
	// Approved is false while the node waits for an administrator.
	Approved bool `json:"approved"`
}

// DrainRequest is the body of a drain.
type DrainRequest struct {
	Reason string `json:"reason,omitempty"`
}

// EnvironmentOnNode reports whether an environment can run on a node, and its digest there.
type EnvironmentOnNode struct {
	Name string `json:"name"`
	// Description is one sentence for people.
	Description string   `json:"description,omitempty"`
	Stacks      []Stack  `json:"stacks"`
	Digest      string   `json:"digest,omitempty"`
	OK          bool     `json:"ok"`
	Problems    []string `json:"problems,omitempty"`
}

// Offer is the capacity, stacks and environments that a node has for members. Its agent confirms them. While no agent runs there, they follow
// from its inspected hardware.
type Offer struct {
	// Confirmed is true for an agent's word. What is not confirmed can be placed only where whole machines are handed out.
	Confirmed bool         `json:"confirmed"`
	Capacity  NodeCapacity `json:"capacity"`
	Stacks    []StackCheck `json:"stacks"`
	// Environments are the node's own environments and the built ones that suit it.
	Environments []EnvironmentOnNode `json:"environments"`
	// Oversubscribed is true when a physical CPU backs more than one slot, of this node or (dev --nodes) of another.
	Oversubscribed bool `json:"oversubscribed"`
	// Differences tell, one a line, where the agent's word is not what was inspected.
	Differences []string `json:"differences,omitempty"`
}

// Node is a node as the API shows it, with a part for each whose word it is: its machine, its agent, its operators.
type Node struct {
	Name string `json:"name"`
	// Labels are the labels that node selectors see.
	Labels  map[string]string `json:"labels,omitempty"`
	Phase   NodePhase         `json:"phase"`
	Message string            `json:"message,omitempty"`
	Offer   Offer             `json:"offer"`
	// Allocated are the slots and bytes of live assignments, those being released included.
	AllocatedCores       int      `json:"allocated_cores"`
	AllocatedMemoryBytes int64    `json:"allocated_memory_bytes"`
	AllocatedDiskBytes   int64    `json:"allocated_disk_bytes,omitempty"`
	QuarantinedCores     int      `json:"quarantined_cores"`
	Members              []string `json:"members"`
	// RoundTrips are how far it is to other nodes, as a node measures that hands out GPUs.
	RoundTrips map[string]RoundTrip `json:"round_trips,omitempty"`
	// GPUUses are who holds which part of the node's GPUs.
	GPUUses []DeviceUse `json:"gpu_uses,omitempty"`
	// Machine is set for a node whose power and boot are ours, Agent for one whose agent has called, Control while operators want something of it.
	// A drained node is empty of members when Members is.
	Machine *MachinePart `json:"machine,omitempty"`
	Agent   *AgentPart   `json:"agent,omitempty"`
	Control *NodeControl `json:"control,omitempty"`
	// Identity is shown to administrators.
	Identity *NodeIdentity `json:"identity,omitempty"`
}

// AgentPart is an agent's report about itself and its node, without the offer.
type AgentPart struct {
	Version string `json:"version"`
	// Underlay is the node's address on the data network.
	Underlay string `json:"underlay,omitempty"`
	// UnderlayMTU is the MTU of the link that bears Underlay, in bytes; 0: not known.
	UnderlayMTU int `json:"underlay_mtu,omitempty"`
	// Trunk is the link that carries VLANs; nil on a node without one.
	Trunk *Trunk `json:"trunk,omitempty"`
	// Adapters are those that the agent was given cells for, in the order of their addresses.
	Adapters []Adapter `json:"adapters,omitempty"`
	// GPUs and GPUProblems are as in NodeRecord.
	GPUs        []NodeGPU `json:"gpus,omitempty"`
	GPUProblems []string  `json:"gpu_problems,omitempty"`
	// BootGeneration, InRAM, Images and Builder are as in NodeRecord.
	BootGeneration int64         `json:"boot_generation,omitempty"`
	InRAM          bool          `json:"in_ram,omitempty"`
	Images         bool          `json:"images,omitempty"`
	Builder        *BuilderCheck `json:"builder,omitempty"`
	// VolumePool is the room that the node has for volumes, VolumeBytes the sum of the sizes of those that lie there.
	VolumePool  *VolumePool `json:"volume_pool,omitempty"`
	VolumeBytes int64       `json:"volume_bytes,omitempty"`
	// VolumeSharing is whether volumes cross from and to the node; omitted where the agent does not know how.
	VolumeSharing *VolumeSharing `json:"volume_sharing,omitempty"`
	FirstSeenAt   time.Time      `json:"first_seen_at"`
	LastSeenAt    *time.Time     `json:"last_seen_at,omitempty"`
}

// Environment is an environment as the API shows it, gathered from the nodes.
type Environment struct {
	Name        string  `json:"name"`
	Description string  `json:"description"`
	Stacks      []Stack `json:"stacks"`
	// Project owns an environment that was made of a cluster's files, and other projects don't see it. Empty: it is the site's.
	Project string `json:"project,omitempty"`
	// Image is the image that a built environment's name stands for, Recipe the text it was built from (where one environment is shown). Nil for one
	// of the nodes' own.
	Image  *Image `json:"image,omitempty"`
	Recipe string `json:"recipe,omitempty"`
	// Saved is the cluster that the environment is made of (where one environment is shown); nil: it is not.
	Saved     *SavedCluster `json:"saved,omitempty"`
	UpdatedAt *time.Time    `json:"updated_at,omitempty"`
	// Nodes tells for every node whether it can run there.
	Nodes []EnvironmentNode `json:"nodes"`
}

// EnvironmentNode is one node's report about an environment.
type EnvironmentNode struct {
	Node     string   `json:"node"`
	OK       bool     `json:"ok"`
	Digest   string   `json:"digest,omitempty"`
	Problems []string `json:"problems,omitempty"`
}
