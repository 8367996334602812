package agent

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// countEvery is the pause between two readings of ports' counters.
const countEvery = 5 * time.Second

// sendCounts sends the counters of ports on a stream: all at first, and then those that changed.
func (a *Agent) sendCounts(ctx context.Context, stream *agentstream.ClientConn) error {
	again := time.NewTicker(countEvery)
	defer again.Stop()
	var sent map[string]api.PortCounters
	for {
		counted, err := a.cfg.Fabric.Count(ctx)
		if err != nil && ctx.Err() == nil {
			a.cfg.Log.WarnContext(ctx, "the ports' counters can't be read", "error", err)
		}
		if err == nil {
			if counts := agentstream.CountsSince(sent, counted); counts != nil {
				if err := stream.Send(agentstream.Up{Counts: counts}); err != nil {
					return err
				}
			}
			sent = counted
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}
