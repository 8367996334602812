// Package fabric is the contract of a node's network executor: tenant networks and the ports of members on them.
//
// The whole desired set is applied each time (level-triggered). Package fabric/plan, which is pure, compares the desired set with the
// state read from the kernel. Package fabric/node carries out the difference and reads back. This package must never import store,
// apiserver or driver: drivers attach ports and know nothing else of networks.
//
// Package fabric/site is the contract of executors that act beyond nodes, on switches and subnet managers. Package fabric/fake is for
// tests. Package fabric/fabrictest holds the suites that all implementations pass.
package fabric

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Network is one tenant network as it should be on this node.
type Network struct {
	api.Network
	// Remotes are the members of this network on other nodes. Frames are exchanged with these members and no others. Empty: the network
	// stays on this node and needs no tunnel.
	Remotes []Remote `json:"remotes,omitempty"`
	// Ports are the members of this network on this node; isolation rules pin each to its MAC and address.
	Ports []Port `json:"ports,omitempty"`
	// Groups are the security groups of Ports, and those that their rules name.
	Groups []Group `json:"groups,omitempty"`
	// Floating are the addresses of the site's pool that lead to Ports. FloatingPool is that pool: members of a network with egress reach it, even
	// where it lies in a protected network.
	Floating     []Floating     `json:"floating,omitempty"`
	FloatingPool []netip.Prefix `json:"floating_pool,omitempty"`
	// Open are the private ranges that members of a network with egress reach, as far as they are not the site's own. All others are closed.
	Open []netip.Prefix `json:"open,omitempty"`
	// Connections is how many tracked connections the network's project may have on this node; 0 means DefaultConnections.
	Connections int `json:"connections,omitempty"`
	// Encrypted: frames to and from other nodes go through WireGuard only. All networks of a node are, or none is.
	Encrypted bool `json:"encrypted,omitempty"`
	// Side joins a VLAN to a network of tunnels on this node, which is then its gateway to the VLAN.
	Side VLANSide `json:"side,omitzero"`
}

// Remote is a member on another node. While a member moves, it may be behind two peers, or on this node as well.
type Remote struct {
	// Peer is the underlay address of the member's node: a VXLAN tunnel end point.
	Peer    netip.Addr `json:"peer"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	// Key is the public WireGuard key of the member's node, in base64; only encrypted networks have it.
	Key string `json:"key,omitempty"`
}

// Compare orders remotes by peer, then by address and MAC.
func (r Remote) Compare(other Remote) int {
	return cmp.Or(r.Peer.Compare(other.Peer), r.Address.Compare(other.Address), cmp.Compare(r.MAC, other.MAC))
}

// Peers returns the underlay addresses of the other nodes that carry members of the network, in order.
func (n Network) Peers() []netip.Addr {
	peers := make([]netip.Addr, 0, len(n.Remotes))
	for _, r := range n.Remotes {
		peers = append(peers, r.Peer)
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	return slices.Compact(peers)
}

// Drift is a difference between what was asked for and what was read back.
type Drift struct {
	Network int    // index of the network
	Object  string // "bridge nmbr3", "nftables chain forward"
	Want    string
	Got     string
}

// Meeting is what a node heard of one peer of a network while both exchanged probes.
type Meeting struct {
	// Peer is the underlay address of the other node.
	Peer netip.Addr `json:"peer"`
	// Small and Full report which probes of the peer arrived: small packets, and packets as large as the network's largest become in a tunnel.
	Small bool `json:"small,omitempty"`
	Full  bool `json:"full,omitempty"`
	// FullBytes is the size of a full probe on the underlay, in bytes.
	FullBytes int `json:"full_bytes,omitempty"`
	// Problem is why this node can't send probes to the peer.
	Problem string `json:"problem,omitempty"`
}

// Attacher makes and removes the ports of members. It is the part of a Fabric that drivers use.
type Attacher interface {
	// Attach makes the port at its place, and returns when the member can use it; repeating it is harmless. It returns
	// ErrNotApplied for a port that is not in the networks last applied, ErrPortKind for a place of a kind that this node can't
	// make, ErrUnguarded for a port with security groups on a node that can't enforce them, ErrUnshaped for a port with a quality of
	// service on a node that can't provide it, and what Place.Validate returns.
	Attach(ctx context.Context, port Port, place Place) error
	// Detach removes the ports of the assignment with this ID, wherever they are; detaching what is not there is no error.
	Detach(ctx context.Context, id string) error
}

// Fabric makes networks on this node. Its methods may be called at once by several goroutines.
//
// Order matters for safety: Attach refuses a port that is not in the networks last applied, because the rules that pin a port have
// to be in force before the port exists. After a restart of the agent Apply comes first.
type Fabric interface {
	Attacher
	// Apply converges this node on exactly these networks: missing ones are made, changed ones are changed, all others that
	// bear this product's names are removed. It returns after reading back; a difference that remains is an error.
	Apply(ctx context.Context, networks []Network) error
	// Seal says which tunnels of something else than networks are to go within WireGuard, from the next Apply on. Apply lets in their peers, keeps
	// packets of these tunnels from all other ways, and forgets tunnels that were not named any more.
	Seal(tunnels []Tunnel)
	// Audit reads the kernel and reports what differs from the networks last applied.
	Audit(ctx context.Context) ([]Drift, error)
	// Probe reports what is wrong with the ports of the networks last applied, by port ID; ports that are as they should be are
	// omitted. A port that was never attached is wrong, too. It changes nothing and costs one look at the kernel's links.
	Probe(ctx context.Context) (map[string]string, error)
	// Count returns the counters of the ports of the networks last applied, by port ID; ports that are not attached are omitted. They grow for
	// as long as a port is there, whichever process attached it.
	Count(ctx context.Context) (map[string]api.PortCounters, error)
	// Meet exchanges probes with all peers of a network at once, and reports what arrived. It returns when the peers and this node heard each
	// other, or after a few seconds. The peers have to meet at the same time and with the same mark, which tells calls apart. It changes
	// nothing. Probes go the way of tunnels, so nobody is met on a VLAN. A network that was not applied is ErrNoNetwork.
	Meet(ctx context.Context, network int, mark uint64) ([]Meeting, error)
}
