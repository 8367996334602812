package agent

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// usesEvery is the pause between two readings of what members use.
const usesEvery = 5 * time.Second

// sendUses sends what the members on this node use, as far as their drivers can tell, and what the node consumes meanwhile.
func (a *Agent) sendUses(ctx context.Context, stream *agentstream.ClientConn) error {
	again := time.NewTicker(usesEvery)
	defer again.Stop()
	for {
		uses := a.uses()
		if len(uses) > 0 {
			if err := stream.Send(agentstream.Up{Uses: uses}); err != nil {
				return err
			}
		}
		if err := a.sendEnergy(ctx, stream, uses); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}

// uses reads what the members that were last observed have used.
func (a *Agent) uses() map[string]api.MemberUse {
	a.outbox.mu.Lock()
	newest := a.outbox.newest
	a.outbox.mu.Unlock()
	uses := map[string]api.MemberUse{}
	if newest == nil {
		return uses
	}
	for _, m := range newest.Members {
		for _, d := range a.drivers {
			meter, ok := d.(driver.Meter)
			if !ok {
				continue
			}
			if use, err := meter.Use(m.ID); err == nil { // else it is another driver's, or it does not run
				uses[m.ID] = use
				break
			}
		}
	}
	return uses
}
