package node

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/nftables"
)

// guards knows whether the node's kernel can enforce security groups. Ports that have some are closed and refused where it can't.
type guards struct {
	// probe is a script that the kernel takes if it can.
	probe string

	mu sync.Mutex
	// works: the kernel took the probe. It is asked again as long as it does not, since a module may be loaded later.
	works bool
	// why is the last refusal.
	why error
}

// CanGuard reports why the kernel can't enforce security groups, nil if it can. It changes nothing.
func CanGuard(ctx context.Context) error { return nftables.Check(ctx, plan.GuardProbe()) }

// can reports whether the kernel can enforce the security groups of networks. Without any, it is not asked.
func (g *guards) can(ctx context.Context, node netns.Handle, log *slog.Logger, networks []fabric.Network) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.works || !slices.ContainsFunc(networks, func(n fabric.Network) bool { return len(n.Groups) > 0 }) {
		return g.works
	}
	why := node.Do(func() error { return nftables.Check(ctx, g.probe) })
	if why != nil && g.why == nil {
		log.WarnContext(ctx, "ports with security groups are refused and closed: the kernel can't enforce the groups", "error", why)
	}
	g.works, g.why = why == nil, why
	return g.works
}

// refusal returns why the kernel can't enforce security groups, nil if it can.
func (g *guards) refusal() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}
