package api

import "time"

// Stack says how a member is carried: on the bare machine, in a virtual machine or in a container.
type Stack string

// The stacks. A node offers those whose driver passed its host checks.
const (
	StackMetal     Stack = "metal"
	StackVM        Stack = "vm"
	StackContainer Stack = "container"
)

// Shape is what every member of a group holds.
type Shape struct {
	// Cores is the number of exclusive cores per member, at least 1; it defaults to 1.
	Cores int `json:"cores,omitempty"`
	// Memory is the memory limit per member; it defaults to 512MiB.
	Memory Bytes `json:"memory,omitempty"`
	// Disk is the size of the private disk of each virtual machine whose environment is the disk of another system; it defaults to that disk's
	// size, and is 0 for all other members.
	Disk Bytes `json:"disk,omitempty"`
}

// Group is a set of like members.
type Group struct {
	// Name is a DNS label, unique in the cluster; members are called NAME-0, NAME-1, ... It defaults to the cluster's name.
	Name string `json:"name,omitempty"`
	// Size is the number of members, at least 1; it defaults to 1.
	Size int `json:"size,omitempty"`
	// ShapeName names a shape of the site, which gives Cores and Memory where they are not given. What the group was made with stays when the
	// shape changes.
	ShapeName string `json:"shape,omitempty"`
	Shape
	// Stack defaults to "container".
	Stack Stack `json:"stack,omitempty"`
	// Environment defaults to "local".
	Environment string `json:"environment,omitempty"`
	// NodeSelector limits the group to nodes that carry all these labels.
	NodeSelector map[string]string `json:"node_selector,omitempty"`
	// Spares is how many more places of this shape are held, on other nodes where possible, for members that die.
	Spares int `json:"spares,omitempty"`
	// Interface is what each member's port on the cluster's own network is: macvtap, vf or pf. "" is veth for containers and virtio for virtual
	// machines. On the technology infiniband it asks for a port on the cluster's partition, vf or pf, and is stored among Networks.
	Interface Interface `json:"interface,omitempty"`
	// Adapter narrows the adapters whose functions those ports are on. It is for the interfaces vf, pf and macvtap.
	Adapter DeviceChoice `json:"adapter,omitzero"`
	// Standby is that of a GroupNetwork, for the cluster's own network.
	Standby bool `json:"standby,omitempty"`
	// Networks are networks on which each member has a port, besides the cluster's own. NAME is a further private network of the cluster; groups
	// that name it share it. project/NAME is a network of the cluster's project, which other clusters may be on. Members have them as eth1,
	// eth2 and so on: private ones first, each kind in the order in which the cluster's groups first name them.
	Networks []GroupNetwork `json:"networks,omitempty"`
	// ShareMemory lets members of the cluster that are on one node exchange messages through memory: they share System V IPC, and see each
	// other's processes. nil: they do.
	ShareMemory *bool `json:"share_memory,omitempty"`
	// Display gives each virtual machine a screen: 'nearmetal cluster console --vnc' shows it.
	Display bool `json:"display,omitempty"`
	// CPUModel is which processor virtual machines have, by QEMU's name, such as "Haswell": the same on every node that can carry it. "" is
	// the node's own, or all that it can emulate.
	CPUModel string `json:"cpu_model,omitempty"`
	// HugePages is the size of the pages of the node that hold the memory of virtual machines: 2MiB or 1GiB. 0 is ordinary memory.
	HugePages Bytes `json:"huge_pages,omitempty"`
	// UserData is for cloud-init in virtual machines whose environment is the disk of another system: a cloud-config, a script, or any other text
	// that cloud-init takes.
	UserData string `json:"user_data,omitempty"`
	// Interconnect limits the group to nodes with a port in a cell that has these properties.
	Interconnect Interconnect `json:"interconnect,omitzero"`
	// GPU is what each member gets of GPUs, as in GPURequest. It is stored among Devices.
	GPU GPURequest `json:"gpu,omitempty"`
	// LocalDisks are disks that the machine of each member has. They are for whole machines.
	LocalDisks []DiskRequest `json:"local_disks,omitempty"`
	// Datasets are datasets of the cluster's project that members read; at most 8. NAME is a copy on the member's node, read-only, at /datasets/NAME.
	// NAME:stream, NAME:cached and NAME:preloaded are read by URL (DatasetURLs): from the sources, or through a cache on the member's node, which has all of
	// it before the member starts if it is preloaded. NAME:auto leaves the way to placement, and NAME:auto:0.2 says that a member reads a fifth of it.
	Datasets []string `json:"datasets,omitempty"`
	// Reads is the fraction of each dataset with an open way (NAME:auto) that a member reads, where the dataset itself has none. It is stored among Datasets.
	Reads float64 `json:"reads,omitempty"`
	// Devices are what each member gets of nodes' devices.
	Devices []DeviceRequest `json:"devices,omitempty"`
	// Checks are run in every member; one that fails makes the member unhealthy, and it is replaced.
	Checks []Check `json:"checks,omitempty"`
	// PortMTU is for placement, and never stored: it follows from Networks.
	PortMTU PortMTU `json:"-"`
	// VolumePlace is for placement, and never stored: it follows from the cluster's volumes.
	VolumePlace VolumePlace `json:"-"`
	// DataPlace is for placement, and never stored: it follows from what nodes have of Datasets.
	DataPlace DataPlace `json:"-"`
	// Ends is for placement, and never stored: when the members are gone at the latest. Zero: they have no limit.
	Ends time.Time `json:"-"`
}

// SharesMemory tells whether members of the group share memory with others of their cluster on the same node.
func (g Group) SharesMemory() bool {
	return g.Stack == StackContainer && (g.ShareMemory == nil || *g.ShareMemory)
}

// Check is a command that tells whether a member can do its work: exit code 0 says yes.
type Check struct {
	// Name is a DNS label, unique in the group.
	Name    string   `json:"name"`
	Command []string `json:"command"`
	// Interval is the time from the end of one run to the start of the next; it defaults to 30s, and is at least 1s.
	Interval Duration `json:"interval,omitempty"`
	// Timeout ends a run that takes longer, which then has failed; it defaults to 10s.
	Timeout Duration `json:"timeout,omitempty"`
	// Failures in a row make the member unhealthy; it defaults to 3.
	Failures int `json:"failures,omitempty"`
}

// ClusterSpec is what a user asks for, normalized: groups are always listed and every default is filled in.
type ClusterSpec struct {
	Groups []Group `json:"groups"`
	// Technology is what carries the cluster's own network: vxlan, vlan, or infiniband, which is a partition beside an own network of tunnels. ""
	// is vxlan.
	Technology Technology `json:"technology,omitempty"`
	// Cell is the cell of the fabric that carries the cluster's partition.
	Cell string `json:"cell,omitempty"`
	// Egress lets members open connections to the outside (NAT); without it they reach each other and nothing else.
	Egress bool `json:"egress,omitempty"`
	// Home is what members have as /home. Volumes are volumes of the project that all members have attached.
	Home    ClusterHome        `json:"home,omitzero"`
	Volumes []VolumeAttachment `json:"volumes,omitempty"`
	// TimeLimit is how long the cluster may live after it is placed; 0: no limit. 'extend' makes it longer.
	TimeLimit Duration `json:"time_limit,omitempty"`
	// Priority goes before fair share and age in the queue; higher comes first. Only an administrator may ask for one above 0.
	Priority int `json:"priority,omitempty"`
	// Queue lets a request wait that is possible but not now; without it, it is refused.
	Queue bool `json:"queue,omitempty"`
}

// ClusterRequest is the body of a create, and what a manifest file holds. Either Groups is given, or the fields of
// one group stand at the top (the embedded Group, whose Name is then the cluster's).
type ClusterRequest struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Technology is what carries the cluster's own network: vxlan, the default, vlan, or infiniband, which is a partition beside an own network of
	// tunnels. If it is omitted, and interface asks for functions of adapters, it is infiniband where interconnect.technology is, else vlan.
	Technology Technology `json:"technology,omitempty"`
	// Cell is the cell of the fabric that carries the cluster's partition. It may be omitted where the site has only one.
	Cell   string  `json:"cell,omitempty"`
	Egress bool    `json:"egress,omitempty"`
	Groups []Group `json:"groups,omitempty"`
	// Home is what members have as /home. Volumes are volumes of the project that all members have attached, at most 8.
	Home    ClusterHome        `json:"home,omitzero"`
	Volumes []VolumeAttachment `json:"volumes,omitempty"`
	// Project owns the cluster; it defaults to the token's. Only an administrator may name another.
	Project   string   `json:"project,omitempty"`
	TimeLimit Duration `json:"time_limit,omitempty"`
	Priority  int      `json:"priority,omitempty"`
	Queue     bool     `json:"queue,omitempty"`

	Size         int               `json:"size,omitempty"`
	ShapeName    string            `json:"shape,omitempty"`
	Cores        int               `json:"cores,omitempty"`
	Memory       Bytes             `json:"memory,omitempty"`
	Disk         Bytes             `json:"disk,omitempty"`
	Stack        Stack             `json:"stack,omitempty"`
	Environment  string            `json:"environment,omitempty"`
	NodeSelector map[string]string `json:"node_selector,omitempty"`
	Spares       int               `json:"spares,omitempty"`
	Interface    Interface         `json:"interface,omitempty"`
	Adapter      DeviceChoice      `json:"adapter,omitzero"`
	Standby      bool              `json:"standby,omitempty"`
	Networks     []GroupNetwork    `json:"networks,omitempty"`
	ShareMemory  *bool             `json:"share_memory,omitempty"`
	Display      bool              `json:"display,omitempty"`
	CPUModel     string            `json:"cpu_model,omitempty"`
	HugePages    Bytes             `json:"huge_pages,omitempty"`
	UserData     string            `json:"user_data,omitempty"`
	// Interconnect and GPU are as in Group.
	Interconnect Interconnect `json:"interconnect,omitzero"`
	GPU          GPURequest   `json:"gpu,omitempty"`
	// LocalDisks are as in Group.
	LocalDisks []DiskRequest `json:"local_disks,omitempty"`
	Datasets   []string      `json:"datasets,omitempty"`
	Reads      float64       `json:"reads,omitempty"`
	Checks     []Check       `json:"checks,omitempty"`
}

// ClusterPhase is where a cluster is in its life. internal/lifecycle holds the table of transitions.
type ClusterPhase string

// The phases of a cluster.
const (
	ClusterPending   ClusterPhase = "pending"   // intent stored, no decision yet
	ClusterQueued    ClusterPhase = "queued"    // possible, but not now; 'explain' tells its place in the queue
	ClusterRefused   ClusterPhase = "refused"   // can't be placed; status.message names the binding constraint; holds nothing
	ClusterStarting  ClusterPhase = "starting"  // assignments committed, members coming up
	ClusterReady     ClusterPhase = "ready"     // every member is ready: SSH, names, hostfile
	ClusterScaling   ClusterPhase = "scaling"   // was ready; members are being added, or wait for room; the others can be used
	ClusterDegraded  ClusterPhase = "degraded"  // was ready; a member was lost and is being replaced, or waits for room
	ClusterPausing   ClusterPhase = "pausing"   // its members are being frozen
	ClusterPaused    ClusterPhase = "paused"    // every member is frozen and holds what it has
	ClusterResuming  ClusterPhase = "resuming"  // its members are being woken
	ClusterSaving    ClusterPhase = "saving"    // its members are being written to disk with their memory
	ClusterSaved     ClusterPhase = "saved"     // every member is on disk, and holds neither cores nor memory
	ClusterRestoring ClusterPhase = "restoring" // its saved members wait for room, or are going on from disk
	// ClusterSnapshotting is the phase of a cluster whose members stand still while they are written into a snapshot.
	ClusterSnapshotting ClusterPhase = "snapshotting"
	ClusterFailed       ClusterPhase = "failed"   // a member could not be started; status.message says why
	ClusterDeleting     ClusterPhase = "deleting" // every assignment is releasing; gone when all are confirmed clean
)

// MemberPhase is where a member is in its life, as its executor observes it.
type MemberPhase string

// The phases of a member.
const (
	MemberAssigned  MemberPhase = "assigned"  // committed; its node has not reported on it yet
	MemberPreparing MemberPhase = "preparing" // root, network and files are being made
	MemberStarting  MemberPhase = "starting"  // runs, but is not yet reachable by SSH
	MemberReady     MemberPhase = "ready"
	MemberUnhealthy MemberPhase = "unhealthy" // runs, but SSH, its network or one of its own checks says that it can't be used
	MemberPaused    MemberPhase = "paused"    // frozen
	MemberSaved     MemberPhase = "saved"     // on disk with its memory
	MemberFailed    MemberPhase = "failed"    // ended or could not be started
	MemberLost      MemberPhase = "lost"      // died; its replacement has no place yet
	MemberWaiting   MemberPhase = "waiting"   // asked for by a scale-up, has no place yet
	MemberSpare     MemberPhase = "spare"     // room held for a replacement
	MemberUnknown   MemberPhase = "unknown"   // its node is not heard of; never treated as off
	MemberReleasing MemberPhase = "releasing" // being stopped and cleaned; holds its resources until confirmed clean
)

// Cluster is a cluster as the API shows it: the user's intent joined with the leader's record and what members report.
type Cluster struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Project and User own it.
	Project string            `json:"project,omitempty"`
	User    string            `json:"user,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Spec    ClusterSpec       `json:"spec"`
	Status  ClusterStatus     `json:"status"`
}

// PausedFiles tells what was saved of the root of one member.
type PausedFiles struct {
	Member  string    `json:"member"`
	Bytes   int64     `json:"bytes"`
	SavedAt time.Time `json:"saved_at"`
}

// ClusterStatus is the observed side of a cluster.
type ClusterStatus struct {
	Phase ClusterPhase `json:"phase"`
	// Message tells why the cluster is in this phase, for people.
	Message string `json:"message,omitempty"`
	// Generation counts the committed decisions about this cluster, 0 before the first.
	Generation int64 `json:"generation"`
	// ReadyMembers of TotalMembers are ready.
	ReadyMembers int `json:"ready_members"`
	TotalMembers int `json:"total_members"`
	// CIDR is the cluster's private subnet.
	CIDR string `json:"cidr,omitempty"`
	// Oversubscribed is true when any member shares a physical core; such a cluster's measurements are labelled so.
	Oversubscribed bool           `json:"oversubscribed"`
	Members        []MemberStatus `json:"members"`
	CreatedAt      time.Time      `json:"created_at"`
	ReadyAt        *time.Time     `json:"ready_at,omitempty"`
	DeletedAt      *time.Time     `json:"deletion_requested_at,omitempty"`
	// ExpiresAt is when its time limit ends; nil when it has none, or is not placed yet.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Paused tells that it was asked to pause.
	Paused bool `json:"paused,omitempty"`
	// PausedFiles tells what was saved of the roots of members whose machines are off.
	PausedFiles []PausedFiles `json:"paused_files,omitempty"`
	// Saved tells that it was asked to be saved, and that this was not given up.
	Saved bool `json:"saved,omitempty"`
	// Move is the move of members that was asked for last; nil: none.
	Move *MoveStatus `json:"move,omitempty"`
	// Reboot is the reboot of members that was requested last; nil: none.
	Reboot *RebootStatus `json:"reboot,omitempty"`
	// DetachingVolumes are the names of volumes that its members are to let go of. Until all have, the volumes are in use.
	DetachingVolumes []string `json:"detaching_volumes,omitempty"`
	// Layers are its layers, by environment, with those that members are to let go of.
	Layers []LayerStatus `json:"layers,omitempty"`
	// Condition is that of its network; nil: it has none.
	Condition *NetworkConditionStatus `json:"condition,omitempty"`
	// Snapshots are its snapshots, the oldest first. SnapshotRestore is the last request to restore one; nil: none was made.
	Snapshots       []Snapshot             `json:"snapshots,omitempty"`
	SnapshotRestore *SnapshotRestoreStatus `json:"snapshot_restore,omitempty"`
}

// RebootStatus is a request to reboot members, and its progress.
type RebootStatus struct {
	AskedAt time.Time `json:"asked_at"`
	Hard    bool      `json:"hard,omitempty"`
	// Ended: every member has booted again, or will not.
	Ended   bool              `json:"ended"`
	Members []MemberRebooting `json:"members"`
}

// MemberRebooting is the reboot of one member.
type MemberRebooting struct {
	Member string      `json:"member"`
	Phase  RebootPhase `json:"phase"`
	// Message is why the member did not boot again; empty otherwise.
	Message string `json:"message,omitempty"`
}

// RebootPhase is the progress of the reboot of a member.
type RebootPhase string

// The phases of a reboot.
const (
	RebootWaiting RebootPhase = "waiting" // the member has not booted again yet
	RebootDone    RebootPhase = "done"    // the member has booted again; its own phase says whether it is ready
	RebootFailed  RebootPhase = "failed"  // the member was replaced, moved or released; the message says so
)

// MemberResizing is the resize of one member.
type MemberResizing struct {
	Phase ResizePhase `json:"phase"`
	// Shape is the size that the member is to have.
	Shape
	// Message says what the resize waits for; empty while its node is resizing the member.
	Message string `json:"message,omitempty"`
}

// ResizePhase is the progress of the resize of a member.
type ResizePhase string

// The phases of a resize. A member whose resize has ended has none.
const (
	ResizeWaiting  ResizePhase = "waiting"  // the member's node has no room for the new size, or nothing is decided yet
	ResizeApplying ResizePhase = "applying" // the new size is claimed, and the node has not answered yet
	ResizeReboot   ResizePhase = "reboot"   // the new size is claimed, and takes effect when the member reboots
)

// MoveStatus is a request to move members, and how far it is.
type MoveStatus struct {
	AskedAt time.Time `json:"asked_at"`
	To      string    `json:"to,omitempty"`
	Offline bool      `json:"offline,omitempty"`
	// Ended: every member has moved, or will not.
	Ended   bool           `json:"ended"`
	Members []MemberMoving `json:"members"`
}

// MemberMoving is the move of one member.
type MemberMoving struct {
	Member string    `json:"member"`
	Phase  MovePhase `json:"phase"`
	// From and To are nodes. To is empty while none is known.
	From string `json:"from"`
	To   string `json:"to,omitempty"`
	// Message is why it did not move, or what it waits for.
	Message string `json:"message,omitempty"`
	// SentBytes of about TotalBytes have arrived while it moves; both 0: unknown.
	SentBytes  int64 `json:"sent_bytes,omitempty"`
	TotalBytes int64 `json:"total_bytes,omitempty"`
	// Report is what it took; nil while that is not known.
	Report *MoveReport `json:"report,omitempty"`
}

// MovePhase is where the move of a member is.
type MovePhase string

// The phases of a move.
const (
	MoveWaiting MovePhase = "waiting" // it has not begun
	MoveMoving  MovePhase = "moving"  // it has a place on another node, and is on its way
	MoveMoved   MovePhase = "moved"
	MoveFailed  MovePhase = "failed" // it is where it was, or was replaced; the message says why
)

// MemberStatus is one member as the API shows it.
type MemberStatus struct {
	Name    string      `json:"name"`
	Group   string      `json:"group"`
	Rank    int         `json:"rank"`
	Node    string      `json:"node"`
	Address string      `json:"address"`
	Phase   MemberPhase `json:"phase"`
	Message string      `json:"message,omitempty"`
	// CPUs are the physical CPUs of the node the member is pinned to.
	CPUs           []int `json:"cpus"`
	MemoryBytes    int64 `json:"memory_bytes"`
	Oversubscribed bool  `json:"oversubscribed"`
	// Devices are what it holds of nodes' devices, which need not be its own node's.
	Devices []MemberDevice `json:"devices,omitempty"`
	// Data are the ways of the datasets for which its group leaves them open.
	Data []DataClaim `json:"data,omitempty"`
	// Attempt counts its replacements in a row, 0 for none.
	Attempt int `json:"attempt,omitempty"`
	// Resizing is set while it does not have the size of its group; CPUs and MemoryBytes are those that it has.
	Resizing *MemberResizing `json:"resizing,omitempty"`
	// VolumeChanges are the volumes that it is about to have, or to let go of.
	VolumeChanges []MemberVolumeChange `json:"volume_changes,omitempty"`
	// Moving is set while it is on its way to another node.
	Moving *MemberMoving `json:"moving,omitempty"`
	// Networks are its ports on further networks of the cluster, eth1 first; Address is that on the cluster's own.
	Networks []MemberNetwork `json:"networks,omitempty"`
}

// MemberNetwork is a member's port on a further network of its cluster.
type MemberNetwork struct {
	// Name is the network's name within the cluster.
	Name    string `json:"name"`
	Address string `json:"address"`
	// Address6 is its IPv6 address, on a network with IPv6.
	Address6 string `json:"address6,omitempty"`
}
