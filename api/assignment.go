package api

import (
	"time"
)

// Assignment is what one member holds on one node. It is immutable: a change is a new assignment in a new generation. There are four
// exceptions: a saved member's assignment is cut down (Saved), a resized member's holds another size (Resizing), one whose cluster attaches or
// detaches volumes claims others (VolumesNumber), and one that succeeds another stops being its part when it takes over (From).
// Its resources are in use from the commit that makes it true until its executor has confirmed it clean.
type Assignment struct {
	// ID is never used again: CLUSTERUID.MEMBERNAME.GENERATION; executors name their objects by it.
	ID         string `json:"id"`
	ClusterUID string `json:"cluster_uid"`
	Cluster    string `json:"cluster"`
	// Generation is the cluster generation that made this assignment; executors reject operations of an older one.
	Generation int64  `json:"generation"`
	Group      string `json:"group"`
	// Member is the member's name and host name, a DNS label.
	Member string `json:"member"`
	// Rank orders the members of the cluster, 0 first; it follows topology.
	Rank int `json:"rank"`
	// Of is the ID of the member that this is a part of: what it holds on another node, or what others must prove clean. A part has no
	// rank and runs nothing of its own; it is released with its member. Empty for a member. One that succeeds another (From) is a part of that
	// until it takes over.
	Of string `json:"of,omitempty"`
	// Node is where all of it lies.
	Node string `json:"node"`
	// CleanBy must all prove it clean, and there is at least one.
	CleanBy []Prover `json:"clean_by"`
	// RAMBoot is the boot generation of the node in whose memory everything lies that the assignment leaves there: once that boot has
	// ended, machine off and read back, it is as clean as its agent could prove. 0: some of it is on a disk or in a device.
	RAMBoot int64 `json:"ram_boot,omitempty"`
	// Whole is the whole machine: nothing else is placed on it.
	Whole bool `json:"whole,omitempty"`
	// Slots are the node's core slots taken (Node.Capacity.Cores[].Slot); no two live assignments share one.
	Slots []int `json:"slots"`
	// CPUs are the physical CPUs behind Slots; NUMANodes the memory nodes they belong to.
	CPUs      []int `json:"cpus"`
	NUMANodes []int `json:"numa_nodes"`
	// Memory is what it may use of the node's memory nodes, which need not be those of its CPUs.
	Memory []MemoryClaim `json:"memory"`
	// ReserveBytes is what it takes of its node's memory besides: what carries it needs some for itself.
	ReserveBytes int64 `json:"reserve_bytes,omitempty"`
	// Oversubscribed is true when the node offers a CPU in more than one slot.
	Oversubscribed bool `json:"oversubscribed,omitempty"`
	// SharesMemory is true for a member that shares what MPI needs for messages through memory with the other members of its cluster on
	// its node: System V IPC, and processes and user IDs, by which ranks open each other's memory.
	SharesMemory bool `json:"shares_memory,omitempty"`
	// UserIDs are the host's user and group IDs that the cluster's user namespaces have; all members of a cluster share them.
	UserIDs IDRange `json:"user_ids,omitzero"`
	// Devices are parts of the node's devices. Ports are ends of networks; a member is known by the address of its first.
	Devices []DeviceClaim `json:"devices,omitempty"`
	Ports   []PortClaim   `json:"ports,omitempty"`
	// HCAs are the ports on InfiniBand fabrics of the whole machine that it has. They are in the partition of the cluster's own network.
	HCAs []HCAClaim `json:"hcas,omitempty"`
	// Volumes are those that it has attached, by their paths; one at /home is its home.
	Volumes []VolumeClaim `json:"volumes,omitempty"`
	// Data are the ways of the datasets for which its group leaves them open (DatasetAuto), as they were decided with its place.
	Data []DataClaim `json:"data,omitempty"`
	// VolumesNumber counts the changes of Volumes since the assignment was made.
	VolumesNumber int64 `json:"volumes_number,omitempty"`

	Stack       Stack  `json:"stack"`
	Environment string `json:"environment"`
	// Display gives a virtual machine a screen, which is reached through its node.
	Display bool `json:"display,omitempty"`
	// CPUModel is which processor a virtual machine has; "" is the node's own, or all that it can emulate.
	CPUModel string `json:"cpu_model,omitempty"`
	// DiskBytes is the size of the member's private disk on its node, 0 for one without.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// SizeNumber names the size that the member has (Size.Number). Resizing is set until the member has the size that a resize gave it.
	SizeNumber int64     `json:"size_number,omitempty"`
	Resizing   *Resizing `json:"resizing,omitempty"`
	// EnvironmentDigest is the image that the environment's name stood for when this was decided; empty for "local", which has none.
	EnvironmentDigest string `json:"environment_digest,omitempty"`
	// TakenAt is when it was decided, by the site's clock: usage counts from then.
	TakenAt time.Time `json:"taken_at"`
	// SizedAt is when a resize last changed what it holds, nil when none has: usage of what it holds now counts from then.
	SizedAt *time.Time `json:"sized_at,omitempty"`
	// Replaces is the ID of the lost assignment in whose place it stands; empty for a member that is the first of its name.
	Replaces string `json:"replaces,omitempty"`
	// From is the ID of the assignment that this one succeeds: the same member, which goes on here with what it has in memory.
	From string `json:"from,omitempty"`
	// Live is of one that succeeds a member which runs until it goes on here. Without it the member goes on from disk.
	Live bool `json:"live,omitempty"`
	// Saved is of a member that is on its node's disk with its memory. It was cut down by the commit that says so: it holds its ports, and no
	// cores, no memory and no devices any more.
	Saved bool `json:"saved,omitempty"`
	// Resumes is of a saved member that goes back to a snapshot: the ID of the assignment whose state it begins with.
	Resumes string `json:"resumes,omitempty"`
	// Snapshot is of an assignment that is no member, but keeps the state of one on its node's disk (DiskBytes). Saved tells that the snapshot
	// is complete. Nil for others.
	Snapshot *SnapshotClaim `json:"snapshot,omitempty"`
	// Attempt counts the replacements of this member in a row, none of which stayed ready; 0 for the first.
	Attempt int `json:"attempt,omitempty"`
	// Spare marks room that is held for a replacement: nothing is carried out on the node for it.
	Spare bool `json:"spare,omitempty"`
}

// ClusterIntent is the user's side of a cluster; only the API writes it.
type ClusterIntent struct {
	Name   string            `json:"name"`
	UID    string            `json:"uid"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   ClusterSpec       `json:"spec"`
	// Project and User own it: quotas, fair share and usage are theirs.
	Project           string     `json:"project,omitempty"`
	User              string     `json:"user,omitempty"`
	CreatedAt         time.Time  `json:"created_at"`
	DeleteRequestedAt *time.Time `json:"delete_requested_at,omitempty"`
	// Paused asks for its members to be frozen where they are; they go on holding what they have.
	Paused bool `json:"paused,omitempty"`
	// PausedFiles are the files of members that have whole machines, as they were saved for the pause: the machines go off, and their roots are in memory.
	PausedFiles []MemberFiles `json:"paused_files,omitempty"`
	// Saved asks for its members to be on disk with their memory, holding neither cores nor memory. SaveAskedAt is when that, or the
	// opposite, was asked for last: it names the request.
	Saved       bool       `json:"saved,omitempty"`
	SaveAskedAt *time.Time `json:"save_asked_at,omitempty"`
	// Move is the move of members to other nodes that was asked for last; nil: none.
	Move *MoveIntent `json:"move,omitempty"`
	// Reboot is the reboot of members that was requested last; nil: none.
	Reboot *RebootIntent `json:"reboot,omitempty"`
	// ResizedAt is when the size of members was last changed: the age of what growing members ask for.
	ResizedAt *time.Time `json:"resized_at,omitempty"`
	// Data are the ways of the datasets for which its group leaves them open (DatasetAuto), as they were decided with its place.
	Data []DataClaim `json:"data,omitempty"`
	// VolumesNumber counts the changes of its volumes. Detaching are the volumes that its members are to let go of. They are in use until the record
	// names them in Detached, with the same number.
	VolumesNumber int64          `json:"volumes_number,omitempty"`
	Detaching     []VolumeDetach `json:"detaching,omitempty"`
	// Layers are the layers that its members have beside their roots. LayersNumber counts the changes of them. RemovedLayers are those that members are to
	// let go of. They are in use until the record has the number of their removal, or a later one.
	Layers        []Layer        `json:"layers,omitempty"`
	LayersNumber  int64          `json:"layers_number,omitempty"`
	RemovedLayers []LayerRemoval `json:"removed_layers,omitempty"`
	// Condition is what happens to what its members send; nil: nothing. ConditionNumber counts the changes of it.
	Condition       *NetworkCondition `json:"condition,omitempty"`
	ConditionNumber int64             `json:"condition_number,omitempty"`
	// Snapshots are the snapshots that are wanted. SnapshotRestore is the last request to restore one; nil: none.
	Snapshots       []SnapshotIntent `json:"snapshots,omitempty"`
	SnapshotRestore *SnapshotIntent  `json:"snapshot_restore,omitempty"`
	// Removed are names of members that were taken out by name: a group's members are the first Size names GROUP-0, GROUP-1, ...
	// that are not among them.
	Removed []string `json:"removed,omitempty"`
	// ScaledAt is when its groups were last changed: the age, in the queue, of what a scale-up asks for.
	ScaledAt *time.Time `json:"scaled_at,omitempty"`
}

// ClusterRecord is the leader's side of a cluster, the small header whose commit makes a generation true.
type ClusterRecord struct {
	Name       string       `json:"name"`
	UID        string       `json:"uid"`
	Generation int64        `json:"generation"`
	Phase      ClusterPhase `json:"phase"`
	Message    string       `json:"message,omitempty"`
	// Networks are its private networks, its own first; UserIDs those of its members' user namespaces.
	// Joined are the networks of its project on which its groups have ports.
	Networks []NetworkRef `json:"networks,omitempty"`
	Joined   []NetworkRef `json:"joined,omitempty"`
	UserIDs  IDRange      `json:"user_ids,omitzero"`
	// Chunks name the immutable assignment chunks that are true in this generation.
	Chunks []ChunkRef `json:"chunks,omitempty"`
	// Clean lists the IDs of releasing assignments that their executor has confirmed clean. They go with their chunk once all of
	// it is clean.
	Clean []string `json:"clean,omitempty"`
	// Proved are the proofs heard so far of releasing assignments that more than one must prove clean.
	Proved []Proof `json:"proved,omitempty"`
	// Lost are members that died and have not been replaced yet.
	Lost []LostMember `json:"lost,omitempty"`
	// PlacedAt is when its first assignments became true; the time limit counts from then. ExpiresAt follows from both.
	PlacedAt *time.Time `json:"placed_at,omitempty"`
	// WarnedFor is the end of the time limit that was warned of; ExpiredAt is when the limit was found to have passed.
	WarnedFor *time.Time `json:"warned_for,omitempty"`
	ExpiredAt *time.Time `json:"expired_at,omitempty"`
	// GaveUp is the save or the restore that failed last. As long as nothing else was asked for since, the opposite holds.
	GaveUp *GaveUp `json:"gave_up,omitempty"`
	// Moves are how moves of members ended: those of the intent's Move, and those off drained nodes.
	Moves []MoveRecord `json:"moves,omitempty"`
	// Snapshots are how requests for snapshots ended. SnapshotRestore is how the last request to restore one ended; nil: none has.
	Snapshots       []SnapshotRecord       `json:"snapshots,omitempty"`
	SnapshotRestore *SnapshotRestoreRecord `json:"snapshot_restore,omitempty"`
	// Detached are those of the intent's Detaching that no member has any more.
	Detached []VolumeDetach `json:"detached,omitempty"`
	// LayersNumber is the newest of the intent's with whose layers, and no others, all members were heard of.
	LayersNumber int64 `json:"layers_number,omitempty"`
	// Files are those of members whose machines went off for a pause. They are laid into the root of whoever boots under a member's name, until the cluster
	// is ready again.
	Files []MemberFiles `json:"files,omitempty"`
	// UsageSeq numbers the usage records written for it so far.
	UsageSeq int64 `json:"usage_seq,omitempty"`
	// ChangedAt is when Phase last changed; the deadlines of a phase count from it. Other commits leave it as it is.
	ChangedAt time.Time  `json:"changed_at"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
}

// SavedFiles name an archive in the site's store of members' files.
type SavedFiles struct {
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

// MemberFiles are the files that a member had changed in its root when its cluster was paused. They are for the member of this name alone.
type MemberFiles struct {
	Member string `json:"member"`
	// Assignment is what the member had then.
	Assignment string `json:"assignment"`
	SavedFiles
	SavedAt time.Time `json:"saved_at"`
}

// GaveUp is a request that failed, and was given up.
type GaveUp struct {
	// AskedAt names the request: the intent's SaveAskedAt.
	AskedAt time.Time `json:"asked_at"`
	Reason  string    `json:"reason"`
}

// MoveIntent requests that members move to other nodes.
type MoveIntent struct {
	// AskedAt names the request.
	AskedAt time.Time `json:"asked_at"`
	// Members are the IDs of their assignments as they were then: whoever goes on elsewhere, or was replaced, has another.
	Members []string `json:"members"`
	// To is the node where they are to go on; empty: any other than their own.
	To string `json:"to,omitempty"`
	// Offline asks for them to be saved, carried and restored, instead of moved while they run.
	Offline bool `json:"offline,omitempty"`
	MoveLimits
}

// RebootIntent requests that members boot again where they are.
type RebootIntent struct {
	// AskedAt names the request.
	AskedAt time.Time `json:"asked_at"`
	// Members are the IDs of their assignments at the time of the request. A member that was replaced or moved since has another ID.
	Members []string `json:"members"`
	// Hard resets members without asking their systems to shut down first.
	Hard bool `json:"hard,omitempty"`
}

// MoveLimits bounds what the move of a running member may take.
type MoveLimits struct {
	// BytesPerSecond bounds the bandwidth; 0: no limit.
	BytesPerSecond int64 `json:"bytes_per_second,omitempty"`
	// Downtime is how long a member should stand still at most; 0: 300 ms.
	Downtime Duration `json:"downtime,omitempty"`
}

// MoveRecord is how the move of one member ended.
type MoveRecord struct {
	// AskedAt names the request, or is when the node that the member was to leave was drained.
	AskedAt time.Time `json:"asked_at"`
	// Assignment is the one that the member had when it was asked for, From its node.
	Assignment string `json:"assignment"`
	Member     string `json:"member"`
	From       string `json:"from"`
	// To is where it went on, or was to; empty when no node could take it.
	To string `json:"to,omitempty"`
	// Failed is why it is where it was; empty when it moved.
	Failed  string    `json:"failed,omitempty"`
	EndedAt time.Time `json:"ended_at"`
	// Report is what it took; nil while that is not known.
	Report *MoveReport `json:"report,omitempty"`
}

// MoveReport tells what the move of a member took.
type MoveReport struct {
	// DowntimeSeconds is how long it stood still, 0 when that is not known. TotalSeconds is how long the whole took.
	DowntimeSeconds float64 `json:"downtime_seconds,omitempty"`
	TotalSeconds    float64 `json:"total_seconds"`
	// Bytes were sent, in Rounds over its memory; 0 rounds: unknown.
	Bytes  int64 `json:"bytes"`
	Rounds int   `json:"rounds,omitempty"`
}

// ChunkRef points at an assignment chunk; all its assignments are held, or all are releasing.
type ChunkRef struct {
	ID        string `json:"id"`
	Count     int    `json:"count"`
	Releasing bool   `json:"releasing,omitempty"`
	// ReleasedAt is when it turned to releasing: the cluster's usage ends, the clean deadline counts from then.
	ReleasedAt *time.Time `json:"released_at,omitempty"`
}

// LostMember is a member that died: its assignment is being released, its name and rank wait for a replacement.
type LostMember struct {
	Group  string `json:"group"`
	Member string `json:"member"`
	Rank   int    `json:"rank"`
	// Assignment and Node are those it had, Attempt is what its replacement's will be.
	Assignment string    `json:"assignment"`
	Node       string    `json:"node"`
	Attempt    int       `json:"attempt"`
	Reason     string    `json:"reason"`
	Since      time.Time `json:"since"`
	// Saved: it was on a disk, without cores or memory, which its replacement takes from the quota again.
	Saved bool `json:"saved,omitempty"`
	// Shape is what a virtual machine held of its node. A resize may have given its group another shape since. nil: that of its group.
	Shape *Shape `json:"shape,omitempty"`
}

// Quarantine keeps the resources of an assignment that could not be cleaned in time out of the free view.
type Quarantine struct {
	Assignment Assignment `json:"assignment"`
	// Proved are the proofs heard before it was quarantined.
	Proved []Proof   `json:"proved,omitempty"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}
