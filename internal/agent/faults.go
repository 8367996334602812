package agent

import (
	"context"
	"reflect"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
)

// faultsEvery is the pause between two looks at the errors that the hardware has counted.
const faultsEvery = time.Minute

// thisMachinesFaults reads those of the running machine.
func thisMachinesFaults(ctx context.Context) api.HardwareFaults {
	return inspection.Faults(ctx, "/", inspection.Wear)
}

// sendFaults sends the errors that the hardware has counted: at first, and then when they have changed.
func (a *Agent) sendFaults(ctx context.Context, stream *agentstream.ClientConn) error {
	again := time.NewTicker(faultsEvery)
	defer again.Stop()
	var sent api.HardwareFaults
	for first := true; ; first = false {
		now := a.cfg.Faults(ctx)
		if ctx.Err() == nil && (first || !reflect.DeepEqual(now, sent)) {
			if err := stream.Send(agentstream.Up{Faults: &now}); err != nil {
				return err
			}
			sent = now
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
		}
	}
}
