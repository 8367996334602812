// Package ethernet makes tenant networks of bridges, veth pairs, VXLAN tunnels and nftables rules, in the network namespace of
// the process.
//
// Plan is pure: from the networks that should be and the kernel's state as read, it lists the operations that are missing. Apply
// carries them out and reads back; Audit is a plan that should be empty. It must never decide who is connected to whom:
// that is in the networks it is given. Start reading at Plan; the isolation rules are in rules.go.
package ethernet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/wayout"
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
	cfg  Config
	log  *slog.Logger
	node netns.Handle
	nft  rulesReader
	// remover deletes the ports of members that leave at the same time together.
	remover linkRemover

	// mu is held for writing by Apply, for reading by what works on single ports.
	mu      sync.RWMutex
	applied []fabric.Network
	// underlayMTU is the MTU of the underlay when networks were last applied.
	underlayMTU int
	// advised is what was last logged about others that may close the way out.
	advised string

	// spaces holds the paths of the network namespaces of members attached by this process, by port.
	spaces sync.Map
}

var _ fabric.Fabric = (*Fabric)(nil)

// New returns a fabric that works in the network namespace of the calling thread. Nothing is changed before the first Apply.
func New(cfg Config) (*Fabric, error) {
	if cfg.Underlay.IsValid() && !cfg.Underlay.Is4() {
		return nil, fmt.Errorf("underlay address %v is not an IPv4 address; tunnels run over IPv4", cfg.Underlay)
	}
	node, err := netns.Current()
	if err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Fabric{cfg: cfg, log: log, node: node}, nil
}

// Close lets go of the network namespace; networks and ports stay.
func (f *Fabric) Close() error { return f.node.Close() }

// Apply converges the node on exactly these networks.
func (f *Fabric) Apply(ctx context.Context, networks []fabric.Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	release, err := f.node.Lock() // other sites on this machine look at our rules, too
	if err != nil {
		return err
	}
	defer release()
	seen, ops, err := f.plan(ctx, networks)
	if err != nil {
		return err
	}
	if len(ops) > 0 {
		if err := f.executeAll(ctx, ops); err != nil {
			return err
		}
		var rest []Operation
		if seen, rest, err = f.plan(ctx, networks); err != nil {
			return fmt.Errorf("reading back: %w", err)
		}
		if len(rest) > 0 {
			return fmt.Errorf("the kernel differs after %d operations; first difference: %s", len(ops), firstLine(rest[0].String()))
		}
	}
	f.advise(ctx, networks, seen)
	f.applied, f.underlayMTU = slices.Clone(networks), seen.UnderlayMTU
	return nil
}

// advise logs, once, what may keep members from the outside.
func (f *Fabric) advise(ctx context.Context, networks []fabric.Network, seen Observed) {
	advice := ""
	if slices.ContainsFunc(networks, func(n fabric.Network) bool { return n.Egress }) {
		listing, _ := f.nft.others()
		advice = wayout.Advice(forwardingSeen(seen), listing, wayout.BridgeLinks)
	}
	if advice != "" && advice != f.advised {
		f.log.WarnContext(ctx, "members of networks with egress may be unable to reach the outside", "why", advice)
	}
	f.advised = advice
}

// Audit reads the kernel and tells what differs from the networks last applied.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ops, err := f.plan(ctx, f.applied)
	if err != nil {
		return nil, err
	}
	var drifts []fabric.Drift
	for _, op := range ops {
		drifts = append(drifts, op.Drift())
	}
	return drifts, nil
}

// Probe looks at the ports.
func (f *Fabric) Probe(ctx context.Context) (map[string]string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var links map[string]Link
	err := f.node.Do(func() (err error) {
		links, err = listPorts()
		return err
	})
	if err != nil {
		return nil, err
	}
	wrong := map[string]string{}
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if problem := portProblem(links, PortName(p.ID), bridgeName(n.Index)); problem != "" {
				wrong[p.ID] = problem
			}
		}
	}
	return wrong, nil
}

// portProblem tells what is wrong with a port, "" for nothing.
func portProblem(links map[string]Link, name, bridge string) string {
	port, exists := links[name]
	switch {
	case !exists:
		return "its network port is gone"
	case !port.Up:
		return "its network port is down"
	case port.Master != bridge:
		return "its network port is not on its network's bridge"
	case !links[bridge].Up:
		return "its network's bridge is down"
	default:
		return ""
	}
}

// plan reads the kernel and plans.
func (f *Fabric) plan(ctx context.Context, networks []fabric.Network) (Observed, []Operation, error) {
	seen, err := f.observe(ctx)
	if err != nil {
		return Observed{}, nil, err
	}
	ops, err := Plan(f.cfg, networks, seen)
	return seen, ops, err
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if more {
		line += " ..."
	}
	return line
}
