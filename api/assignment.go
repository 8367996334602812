package api

import (
	"net/netip"
	"time"
)

// Assignment is what one member holds on one node. It is immutable: a change is a new assignment in a new generation.
// Its resources are in use from the commit that makes it true until its executor has confirmed it clean.
type Assignment struct {
	// ID is unique for ever: CLUSTERUID.MEMBERNAME.GENERATION; executors name their objects by it.
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
	Name              string            `json:"name"`
	UID               string            `json:"uid"`
	Labels            map[string]string `json:"labels,omitempty"`
	Spec              ClusterSpec       `json:"spec"`
	CreatedAt         time.Time         `json:"created_at"`
	DeleteRequestedAt *time.Time        `json:"delete_requested_at,omitempty"`
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
	// Clean lists the IDs of releasing assignments that their executor has confirmed clean.
	Clean []string `json:"clean,omitempty"`
	// ChangedAt is when Phase last changed; the deadlines of a phase count from it. Other commits leave it as it is.
	ChangedAt time.Time  `json:"changed_at"`
	ReadyAt   *time.Time `json:"ready_at,omitempty"`
}

// ChunkRef points at an assignment chunk; all its assignments are held, or all are releasing.
type ChunkRef struct {
	ID        string `json:"id"`
	Count     int    `json:"count"`
	Releasing bool   `json:"releasing,omitempty"`
}

// Quarantine keeps the resources of an assignment that could not be cleaned in time out of the free view.
type Quarantine struct {
	Assignment Assignment `json:"assignment"`
	Reason     string     `json:"reason"`
	Since      time.Time  `json:"since"`
}
