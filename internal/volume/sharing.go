package volume

import (
	"context"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Sharing is what a node does so that the volumes of one cluster cross between nodes: it serves those that lie here, and reaches those of others.
type Sharing struct {
	ClusterUID string      `json:"cluster_uid"`
	UserIDs    api.IDRange `json:"user_ids"`
	// Peers are the other nodes that take part, by their addresses on the underlay. Where the underlay is encrypted there are none: agents that don't
	// know of encryption would send to them in clear.
	Peers []netip.Addr `json:"peers,omitempty"`
	// Encrypted: what nodes exchange goes through WireGuard only. Sealed are the other nodes that take part then.
	Encrypted bool         `json:"encrypted,omitempty"`
	Sealed    []SealedPeer `json:"sealed,omitempty"`
	// Serves are volumes of this node. Clients are the peers that have them; all others are shut out.
	Serves  []Share      `json:"serves,omitempty"`
	Clients []netip.Addr `json:"clients,omitempty"`
	// Port is this node's on the cluster's own network, where it serves volumes to members that have whole machines; nil: nowhere. Machines are those
	// members that are let in, by their addresses there: their users are root of the machine's kernel, which must be no tunnel's end.
	Port     *Port        `json:"port,omitempty"`
	Machines []netip.Addr `json:"machines,omitempty"`
	// Client: this node is to have volumes of peers. One that was shut out is not, until nothing is left of the members that it had.
	Client bool `json:"client,omitempty"`
	// Reaches are volumes of peers that say that they have let this node in.
	Reaches []Remote `json:"reaches,omitempty"`
	// Rates bound what this node sends to peers and machines for the cluster. Who is not among them is not bounded.
	Rates []PeerRate `json:"rates,omitempty"`
	// Settled: no node that was shut out has a volume of the cluster any more. Until then no other member begins to use one.
	Settled bool `json:"settled,omitempty"`
}

// Port is a port on a network that is the node's own, for volumes.
type Port struct {
	// ID is unlike those of members' ports, Network the network's index.
	ID      string     `json:"id"`
	Network int        `json:"network"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
}

// PortInterface is the name of the port in the namespace that the node serves from.
const PortInterface = "nfs1"

// PortID is the ID of a node's port for the volumes of a cluster.
func PortID(clusterUID string) string { return clusterUID + ".volumes" }

// LetsIn reports whether a client may have volumes of this node: a node by its address on the underlay, or a machine by that on the cluster's network.
func (s *Sharing) LetsIn(client netip.Addr) bool {
	return slices.Contains(s.Clients, client) || slices.Contains(s.Machines, client)
}

// Serving reports whether anybody may have volumes of this node.
func (s *Sharing) Serving() bool { return len(s.Clients)+len(s.Machines) > 0 }

// SealedPeer is another node of a site with an encrypted underlay.
type SealedPeer struct {
	// Peer is its address on the underlay, Key its public WireGuard key in base64.
	Peer netip.Addr `json:"peer"`
	Key  string     `json:"key"`
}

// AllPeers are the other nodes that take part, by their addresses on the underlay.
func (s Sharing) AllPeers() []netip.Addr {
	if !s.Encrypted {
		return s.Peers
	}
	peers := make([]netip.Addr, 0, len(s.Sealed))
	for _, p := range s.Sealed {
		peers = append(peers, p.Peer)
	}
	return peers
}

// firstVNI is the first identifier of a tunnel of volumes. Those of tenant networks are below.
const firstVNI = 1 << 23

// VNI identifies the VXLAN tunnel between the nodes. It is unique among clusters: their ranges of user IDs are disjoint, and larger than 512.
func (s Sharing) VNI() int { return firstVNI | int(s.UserIDs.First>>9) }

// HasDisks reports whether block volumes cross.
func (s *Sharing) HasDisks() bool {
	return slices.ContainsFunc(s.Serves, func(v Share) bool { return v.Block }) || slices.ContainsFunc(s.Reaches, func(r Remote) bool { return r.Block })
}

// Share is a volume that lies on this node and is served.
type Share struct {
	UID      string `json:"uid"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Block    bool   `json:"block,omitempty"`
}

// PeerRate bounds what a node sends to a peer, or to a machine, in a second.
type PeerRate struct {
	Peer           netip.Addr `json:"peer"`
	BytesPerSecond int64      `json:"bytes_per_second"`
}

// Remote is a volume that lies on another node, which has the address Server on the underlay; to a member with a whole machine, on the cluster's own
// network. Without one, what is there of it stays as it is.
type Remote struct {
	UID      string     `json:"uid"`
	Server   netip.Addr `json:"server"`
	ReadOnly bool       `json:"read_only,omitempty"`
	Block    bool       `json:"block,omitempty"`
}

// SharingState is what was found on a node of a cluster's sharing.
type SharingState struct {
	ClusterUID string `json:"cluster_uid"`
	// Serves are the UIDs of the volumes that clients see, Clients who is let in, nodes and machines alike.
	Serves  []string     `json:"serves,omitempty"`
	Clients []netip.Addr `json:"clients,omitempty"`
	// Reaches are the UIDs of other nodes' volumes that are there for members.
	Reaches []string `json:"reaches,omitempty"`
	// Problem is why it is not as wanted; empty otherwise. A Sharer leaves it empty; the agent fills it in.
	Problem string `json:"problem,omitempty"`
}

// Sharer carries volumes between nodes. Calls for different clusters may be concurrent; calls for one cluster never are.
type Sharer interface {
	// Describe tells what this node can do. It leaves nothing behind.
	Describe(ctx context.Context) api.VolumeSharing
	// Apply brings the sharing of a cluster to what is wanted. It shuts out first, and returns an error unless it has read back that nothing is
	// left of whom it shut out. A peer that does not answer keeps nothing else from being done. On error what was done stays, and Apply may be repeated.
	Apply(ctx context.Context, s Sharing) error
	// Observe returns what is found on the node.
	Observe(ctx context.Context) ([]SharingState, error)
	// Dir returns the directory by which members of a cluster have a volume of another node, Socket where machines have a block volume, by NBD.
	Dir(uid, clusterUID string) string
	Socket(uid, clusterUID string) string
	// End takes all of a cluster's sharing away. Repeating it is harmless.
	End(ctx context.Context, clusterUID string) error
}
