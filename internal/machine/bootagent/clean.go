package bootagent

import (
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
)

// cleanPause is the pause between two reports of a cleaning.
const cleanPause = 2 * time.Second

// clean erases what a tenant left on the machine, reports while it goes on, and does what it is told until it is told to power off. It does so only
// where both the kernel's command line and the server say that this boot is for that.
func (a *Agent) clean(ctx context.Context) error {
	order := a.welcome.Clean
	if a.args.Purpose != api.BootClean || order == nil {
		return errors.New("the server asks for a cleaning without an order, or the kernel's command line does not: nothing is erased")
	}
	if err := a.modules.settle(ctx); err != nil {
		return err
	}
	mountEFIVariables(0)
	progress := cleaning.NewProgress()
	work, stop := context.WithCancel(ctx)
	defer stop()
	a.log.Info("cleaning the machine", "dry_run", order.DryRun)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cleaning.New(order.Disks).Clean(work, *order, progress)
	}()
	var hardware *api.Hardware
	for try := 0; ; {
		report, begun := progress.Report()
		if !begun {
			pause(ctx, ended, cleanPause)
			continue
		}
		a.logSteps(report)
		if report.Done && hardware == nil {
			found, _ := inspection.Collect(ctx, inspection.Source{Root: "/", BootMAC: a.args.MAC, PartDeadline: a.healthDeadline()})
			hardware = &found
		}
		report.Hardware = hardware
		var next boot.Instruction
		if err := a.calls.post(ctx, boot.CleanPath, report, &next); err != nil {
			a.log.Error("the progress of the cleaning can't be reported", "error", err)
			if isFinal(err) && try >= 5 {
				return err
			}
			if err := backoff(ctx, min(try, 4)); err != nil {
				return err
			}
			try++
			continue
		}
		try = 0
		a.obey(next)
		if report.Done {
			pause(ctx, nil, max(cleanPause, time.Duration(next.RetrySeconds*float64(time.Second))))
		} else {
			pause(ctx, ended, cleanPause)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// pause waits, or until something has ended.
func pause(ctx context.Context, ended <-chan struct{}, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ended:
	case <-ctx.Done():
	}
}

// logSteps prints what has changed of the steps to the console.
func (a *Agent) logSteps(report boot.CleanReport) {
	for _, s := range report.Steps {
		key := s.Target + string(s.State) + s.Method
		if a.cleanLogged[key] {
			continue
		}
		if a.cleanLogged == nil {
			a.cleanLogged = map[string]bool{}
		}
		a.cleanLogged[key] = true
		a.log.Info("cleaning", "part", s.Kind, "target", s.Target, "state", s.State, "method", s.Method, "verified", s.Verified, "message", s.Message)
	}
}
