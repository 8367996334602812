package agent

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/bootagent/bootctl"
)

// powerOffPause is how long to wait for the power to go before it is asked again.
const powerOffPause = 30 * time.Second

// powerOff is what the agent knows of an order to power off.
type powerOff struct {
	busy    bool
	next    time.Time // when to ask again
	ignored int64     // the boot generation of an order that was told to be ignored
	problem string
}

// errNoPower: nothing here may end this machine.
var errNoPower = errors.New("this machine was not booted by its server, and its agent runs without --allow-power-off; power the machine off by hand")

// convergePower asks for the power to go, once nothing of any member runs here, or at once if members are to end with it. An order for another boot is none for this one: it was
// given before the machine was booted anew.
func (a *Agent) convergePower(ctx context.Context, now time.Time) {
	if a.desired == nil || a.desired.PowerOff == nil || !a.hearing.current() {
		return
	}
	order := a.desired.PowerOff
	if own := a.cfg.Node.BootGeneration; order.BootGeneration != own {
		if a.power.ignored != order.BootGeneration {
			a.power.ignored = order.BootGeneration
			a.cfg.Log.WarnContext(ctx, "ignored an order to power off another boot of this machine", "boot_generation", own, "ordered", order.BootGeneration)
		}
		return
	}
	if a.power.busy {
		return
	}
	for _, m := range a.members {
		if m.busy || alive(m.state) && !order.WithMembers {
			return // its end wakes the loop
		}
	}
	if a.bringsBack() {
		return // so does that
	}
	if now.Before(a.power.next) {
		a.wakeAt(a.power.next)
		return
	}
	a.power.busy = true
	a.cfg.Log.InfoContext(ctx, "powering off at the server's order")
	go func() {
		bounded, cancel := context.WithTimeout(ctx, powerOffPause)
		defer cancel()
		err := errNoPower
		if a.cfg.PowerOff != nil {
			err = a.cfg.PowerOff(bounded)
		}
		a.post(ctx, func() {
			a.power.busy, a.power.next, a.power.problem = false, a.cfg.Clock.Now().Add(powerOffPause), ""
			if err != nil {
				a.power.problem = "the machine can't be powered off: " + err.Error()
				a.cfg.Log.ErrorContext(ctx, "this machine can't be powered off", "error", err)
			}
		})
	}()
}

// machinePower is how this machine is powered off: by its first process when it is the boot agent, else as its operator does, if
// allowed; nil: not at all.
func machinePower(allowed bool) func(context.Context) error {
	switch {
	case bootctl.Available():
		return bootctl.PowerOff
	case allowed:
		return func(ctx context.Context) error { return exec.CommandContext(ctx, "systemctl", "poweroff").Run() }
	default:
		return nil
	}
}
