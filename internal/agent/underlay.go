package agent

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// underlayEvery is how often the link of the data network is read again.
const underlayEvery = 10 * time.Second

// errUnderlayChanged ends a stream whose greeting is no longer true.
var errUnderlayChanged = errors.New("the MTU or the rate of the data network's link changed, and is reported again")

// measureUnderlay adds what the data network's link carries to what the node is about to report. What can't be read is reported as before.
func (a *Agent) measureUnderlay(ctx context.Context, node *api.NodeRecord) {
	if a.cfg.Underlay == nil {
		return
	}
	if now, err := a.cfg.Underlay(ctx); err != nil {
		a.cfg.Log.WarnContext(ctx, "the link of the data network can't be read", "error", err)
	} else {
		a.opening.underlay = now
	}
	if node.Trunk != nil {
		trunk := api.Trunk{Interface: node.Trunk.Interface, MTU: a.opening.underlay.TrunkMTU, Problem: cmp.Or(a.cfg.NoVLANs, a.opening.underlay.TrunkProblem)}
		node.Trunk = &trunk
	}
	node.UnderlayMTU, node.Capacity.UplinkBitsPerSecond = a.opening.underlay.MTU, a.opening.underlay.BitsPerSecond
}

// watchUnderlay returns when the data network's link carries something else than was reported.
func (a *Agent) watchUnderlay(ctx context.Context, reported fabric.Underlay) error {
	look := time.NewTicker(a.opening.underlayEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
		if now, err := a.cfg.Underlay(ctx); err == nil && now != reported {
			a.cfg.Log.InfoContext(ctx, "the link of the data network changed", "mtu", now.MTU, "bits_per_second", now.BitsPerSecond, "mtu_before", reported.MTU)
			return errUnderlayChanged
		}
	}
}
