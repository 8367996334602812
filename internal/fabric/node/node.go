// Package node makes tenant networks of bridges, veth pairs, VXLAN tunnels, VLANs and nftables rules, in the network namespace of the process.
//
// Apply reads the kernel, carries out the operations that package plan lists, and reads back. Audit returns a plan that should be empty.
// Attach makes a member's port. The package must never decide which members are connected: the given networks say that. Start with
// Apply.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/fabric/shortcut"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// Config is the configuration of a Fabric.
type Config struct {
	plan.Config
	// Logger may be nil.
	Logger *slog.Logger
	// PrivateKey is this node's for the encryption of the underlay; the zero value means that the node can't encrypt.
	PrivateKey wgtypes.Key
	// NoShortcuts makes all frames between members pass the bridge, as on a kernel that has nothing else; for tests and comparisons.
	NoShortcuts bool
	// Functions hands out the functions of the node's adapters; nil: there are none.
	Functions FunctionHolder
}

// Fabric implements fabric.Fabric on the kernel's Ethernet devices.
type Fabric struct {
	cfg  Config
	log  *slog.Logger
	node netns.Handle
	nft  rulesReader
	// remover deletes the ports of members that leave at the same time together.
	remover   linkRemover
	shortcuts shortcuts
	guards    guards
	limits    limits
	// again are the second announcements of floating addresses.
	again later

	// mu is held for writing by Apply, for reading by what works on single ports.
	mu      sync.RWMutex
	applied []fabric.Network
	// sealed are the tunnels of something else than networks when those were last applied.
	sealed []fabric.Tunnel
	// underlayMTU is the MTU of the underlay when networks were last applied.
	underlayMTU int
	// trunkMTU is the MTU of the trunk at that time.
	trunkMTU int
	// shortcutting: ports should have shortcuts, as it was when networks were last applied.
	shortcutting bool
	// parentRate is what ports with rates shared when networks were last applied.
	parentRate int64
	// advised is what was last logged about others that may close the way out, unplaced what was about floating addresses that can't be here.
	advised, unplaced string

	// sealing are the tunnels that the next Apply seals.
	sealing atomic.Pointer[[]fabric.Tunnel]

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
	if cfg.PrivateKey != (wgtypes.Key{}) {
		cfg.PublicKey = cfg.PrivateKey.PublicKey().String()
	}
	f := &Fabric{cfg: cfg, log: log, node: node, guards: guards{probe: plan.GuardProbe()}, limits: newLimits(), shortcuts: shortcuts{log: log, table: shortcut.New()}}
	f.shortcuts.off.Store(cfg.NoShortcuts)
	return f, nil
}

// Close lets go of the network namespace; networks, ports and their shortcuts stay.
func (f *Fabric) Close() error {
	f.again.close()
	return errors.Join(f.shortcuts.table.Close(), f.node.Close())
}

// Seal implements fabric.Fabric.
func (f *Fabric) Seal(tunnels []fabric.Tunnel) {
	tunnels = slices.Clone(tunnels)
	f.sealing.Store(&tunnels)
}

// Apply converges the node on exactly these networks.
func (f *Fabric) Apply(ctx context.Context, networks []fabric.Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	release, err := f.node.Lock() // other sites on this machine look at our rules, too
	if err != nil {
		return err
	}
	defer release()
	want := wanted{networks: networks}
	if tunnels := f.sealing.Load(); tunnels != nil {
		want.tunnels = *tunnels
	}
	seen, ops, err := f.plan(ctx, want)
	if err != nil {
		return err
	}
	if len(ops) > 0 {
		var rest []plan.Operation
		if seen, rest, err = f.carryOut(ctx, want, ops); err != nil {
			return err
		}
		if heard(rest) { // before the rules that now keep it out
			if seen, rest, err = f.carryOut(ctx, want, rest); err != nil {
				return err
			}
		}
		if len(rest) > 0 {
			return fmt.Errorf("the kernel differs after %d operations; first difference: %s", len(ops), firstLine(rest[0].String()))
		}
	}
	f.advise(ctx, networks, seen)
	f.applied, f.sealed, f.underlayMTU, f.shortcutting = slices.Clone(networks), want.tunnels, seen.UnderlayMTU, seen.Shortcuts()
	f.trunkMTU = seen.TrunkMTU
	f.parentRate = plan.ParentRate(seen)
	return nil
}

// carryOut carries out a plan, reads back, and returns what differs.
func (f *Fabric) carryOut(ctx context.Context, want wanted, ops []plan.Operation) (plan.Observed, []plan.Operation, error) {
	if err := f.executeAll(ctx, ops); err != nil {
		return plan.Observed{}, nil, err
	}
	seen, rest, err := f.plan(ctx, want)
	if err != nil {
		return plan.Observed{}, nil, fmt.Errorf("reading back: %w", err)
	}
	return seen, rest, nil
}

// heard reports whether nothing differs but entries of tunnels, which frames made while a plan was carried out.
func heard(rest []plan.Operation) bool {
	return len(rest) > 0 && !slices.ContainsFunc(rest, func(op plan.Operation) bool { _, forget := op.(plan.ForgetMember); return !forget })
}

// advise logs, once, what may keep members from the outside.
func (f *Fabric) advise(ctx context.Context, networks []fabric.Network, seen plan.Observed) {
	advice := ""
	if slices.ContainsFunc(networks, func(n fabric.Network) bool { return n.Egress }) {
		listing, _ := f.nft.others()
		advice = wayout.Advice(seen.WayOut(), listing, wayout.BridgeLinks)
	}
	if advice != "" && advice != f.advised {
		f.log.WarnContext(ctx, "members of networks with egress may be unable to reach the outside", "why", advice)
	}
	f.advised = advice
	unplaced := strings.Join(plan.Unplaced(networks, seen), "; ")
	if unplaced != "" && unplaced != f.unplaced {
		f.log.WarnContext(ctx, "floating addresses don't lead to their members", "why", unplaced)
	}
	f.unplaced = unplaced
}

// Audit reads the kernel and tells what differs from the networks last applied.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := wanted{f.applied, f.sealed}
	seen, ops, err := f.plan(ctx, want)
	if err != nil {
		return nil, err
	}
	return plan.Drifts(f.planConfig(want), fabric.OnBridges(f.applied), seen, ops), nil
}

// Probe looks at the ports.
func (f *Fabric) Probe(ctx context.Context) (map[string]string, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var links map[string]plan.Link
	err := f.node.Do(func() (err error) {
		links, err = listPorts()
		return err
	})
	if err != nil {
		return nil, err
	}
	wrong := plan.Problems(fabric.OnBridges(f.applied), links)
	f.probeFunctions(ctx, wrong)
	return wrong, nil
}

// wanted is what a plan is made for.
type wanted struct {
	networks []fabric.Network
	tunnels  []fabric.Tunnel
}

// planConfig is the configuration of plans.
func (f *Fabric) planConfig(want wanted) plan.Config {
	cfg := f.cfg.Config
	cfg.Tunnels = want.tunnels
	return cfg
}

// plan reads the kernel and plans.
func (f *Fabric) plan(ctx context.Context, want wanted) (plan.Observed, []plan.Operation, error) {
	networks := want.networks
	if err := fabric.Validate(networks); err != nil {
		return plan.Observed{}, nil, err
	}
	seen, err := f.observe(ctx)
	if err != nil {
		return plan.Observed{}, nil, err
	}
	bridged := fabric.OnBridges(networks) // what Compute makes of them is no input of it: members beyond the VLAN have no peer
	seen.CanGuard = f.guards.can(ctx, f.node, f.log, bridged)
	seen.CanShape = f.limits.can(ctx, f.log, bridged)
	ops, err := plan.Compute(f.planConfig(want), networks, seen)
	return seen, ops, err
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if more {
		line += " ..."
	}
	return line
}
