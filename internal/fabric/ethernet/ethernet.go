// Package ethernet makes tenant networks of bridges, veth pairs, VXLAN tunnels and nftables rules, in the network namespace of
// the process.
//
// Plan is pure: from the networks that should be and the kernel's state as read, it lists the operations that are missing. Apply
// carries them out and reads back; Audit is a plan that should be empty. It must never decide who is connected to whom:
// that is in the networks it is given. Start reading at Plan.
package ethernet

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Config is what the fabric has to know about its node.
type Config struct {
	// Underlay is this node's address in the network that carries the tunnels; the zero value means that there is none, and
	// networks with peers are refused.
	Underlay netip.Addr
	// UnderlayMTU in bytes; 0 means the MTU of the link that bears Underlay. It must be the same on all nodes.
	UnderlayMTU int
	// Protected are networks that members never reach through egress, besides all tenant networks, the underlay and the
	// node's own addresses: management networks, for instance.
	Protected []netip.Prefix
	// Logger may be nil.
	Logger *slog.Logger
}

// Fabric implements fabric.Fabric on the kernel's Ethernet devices.
type Fabric struct {
	cfg Config
}

var _ fabric.Fabric = (*Fabric)(nil)

// New returns a fabric that works in the network namespace of the process. Nothing is changed before the first Apply.
func New(cfg Config) (*Fabric, error) {
	return &Fabric{cfg: cfg}, nil
}

var errNotYet = errors.New("ethernet: not made yet")

// Apply converges the node on exactly these networks.
func (f *Fabric) Apply(ctx context.Context, networks []fabric.Network) error { return errNotYet }

// Audit reads the kernel and tells what differs from the networks last applied.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) { return nil, errNotYet }

// Attach connects a member; its port must be among the networks last applied.
func (f *Fabric) Attach(ctx context.Context, port driver.Port) error { return errNotYet }

// Detach removes a member's port.
func (f *Fabric) Detach(ctx context.Context, id string) error { return errNotYet }
