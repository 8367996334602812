// Package fabric is the contract of a node's network executor: tenant networks and the ports of members on them.
//
// The whole desired set is applied each time (level-triggered); a plan is computed by pure functions from the desired set and
// what was read from the kernel, carried out, and verified by reading back. It must never import store or apiserver.
// fabric/ethernet is bridges, VXLAN and nftables by netlink; fabric/fake is for tests; fabric/fabrictest is the suite both pass.
package fabric

import (
	"context"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Network is one tenant network as it should be on this node.
type Network struct {
	api.Network
	// Peers are the underlay addresses of the other nodes that carry members of this network: VXLAN tunnel end points. Empty:
	// the network stays on this node and needs no tunnel.
	Peers []netip.Addr `json:"peers,omitempty"`
	// Ports are the members of this network on this node; isolation rules pin each to its MAC and address.
	Ports []Port `json:"ports,omitempty"`
}

// Port is the identity a port is pinned to.
type Port struct {
	ID      string     `json:"id"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
}

// Drift is a difference between what was asked for and what was read back.
type Drift struct {
	Network int    // index of the network
	Object  string // "bridge nmbr3", "nftables chain forward"
	Want    string
	Got     string
}

// Fabric makes networks on this node. Its methods may be called at once by several goroutines.
//
// Order matters for safety: Attach refuses (ErrNotApplied) a port that is not in the networks last applied, because the rules
// that pin a port have to be in force before the port exists. After a restart of the agent Apply comes first.
type Fabric interface {
	driver.Attacher
	// Apply converges this node on exactly these networks: missing ones are made, changed ones are changed, all others that
	// bear this product's names are removed. It returns after reading back; a difference that remains is an error.
	Apply(ctx context.Context, networks []Network) error
	// Audit reads the kernel and reports what differs from the networks last applied.
	Audit(ctx context.Context) ([]Drift, error)
	// Probe tells what is wrong with the ports of the networks last applied, by member ID: those that are as they should be are
	// not in it. A port that was never attached is wrong, too. It changes nothing and costs one look at the kernel's links.
	Probe(ctx context.Context) (map[string]string, error)
}
