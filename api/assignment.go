package api

import (
	"net/netip"
	"time"
)

// Assignment is what one member holds on one node. It is immutable: a change is a new assignment in a new generation.
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
	Rank int    `json:"rank"`
	Node string `json:"node"`
	// Slots are the node's core slots taken (Node.Capacity.Cores[].Slot); no two live assignments share one.
	Slots []int `json:"slots"`
	// CPUs are the physical CPUs behind Slots; NUMANodes the memory nodes they belong to.
	CPUs        []int `json:"cpus"`
	NUMANodes   []int `json:"numa_nodes"`
	MemoryBytes int64 `json:"memory_bytes"`
	// Oversubscribed is true when the node offers a CPU in more than one slot.
	Oversubscribed bool       `json:"oversubscribed,omitempty"`
	Address        netip.Addr `json:"address"`
	// MAC is the address of the member's interface, locally administered (IEEE 802c), derived from network index and host.
	MAC         string `json:"mac"`
	Stack       Stack  `json:"stack"`
	Environment string `json:"environment"`
	// EnvironmentDigest is the image that the environment's name stood for when this was decided; empty for "local", which has none.
	EnvironmentDigest string `json:"environment_digest,omitempty"`
	// TakenAt is when it was decided, by the site's clock: usage counts from then.
	TakenAt time.Time `json:"taken_at"`
	// Replaces is the ID of the lost assignment in whose place it stands; empty for a member that is the first of its name.
	Replaces string `json:"replaces,omitempty"`
	// Attempt counts the replacements of this member in a row, none of which stayed ready; 0 for the first.
	Attempt int `json:"attempt,omitempty"`
	// Spare marks room that is held for a replacement: nothing is carried out on the node for it.
	Spare bool `json:"spare,omitempty"`
}

// Network is a cluster's private network. Everything follows from Index, which is unique among live clusters of a site.
type Network struct {
	// Index, 1 to 4095, names the network everywhere: bridge nmbrINDEX, VXLAN network identifier, nftables table.
	Index int `json:"index"`
	// Prefix is the subnet, a /20 (4,093 members): block number Index of the site's pool. The default pool, 10.64.0.0/10, has room for
	// index 1 to 1023. Gateway is the subnet's first host.
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway"`
	Egress  bool         `json:"egress,omitempty"`
	// IDBase is the first host UID and GID of the cluster's user namespaces; IDCount follow.
	IDBase  uint32 `json:"id_base"`
	IDCount uint32 `json:"id_count"`
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
	Network    Network      `json:"network"`
	// Chunks name the immutable assignment chunks that are true in this generation.
	Chunks []ChunkRef `json:"chunks,omitempty"`
	// Clean lists the IDs of releasing assignments that their executor has confirmed clean. They go with their chunk once all of
	// it is clean.
	Clean []string `json:"clean,omitempty"`
	// Lost are members that died and have not been replaced yet.
	Lost []LostMember `json:"lost,omitempty"`
	// PlacedAt is when its first assignments became true; the time limit counts from then. ExpiresAt follows from both.
	PlacedAt *time.Time `json:"placed_at,omitempty"`
	// WarnedFor is the end of the time limit that was warned of; ExpiredAt is when the limit was found to have passed.
	WarnedFor *time.Time `json:"warned_for,omitempty"`
	ExpiredAt *time.Time `json:"expired_at,omitempty"`
	// UsageSeq numbers the usage records written for it so far.
	UsageSeq int64 `json:"usage_seq,omitempty"`
	// ChangedAt is when Phase last changed; the deadlines of a phase count from it. Other commits leave it as it is.
	ChangedAt time.Time  `json:"changed_at"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
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
}

// Quarantine keeps the resources of an assignment that could not be cleaned in time out of the free view.
type Quarantine struct {
	Assignment Assignment `json:"assignment"`
	Reason     string     `json:"reason"`
	Since      time.Time  `json:"since"`
}
