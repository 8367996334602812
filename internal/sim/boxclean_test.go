package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// leave notes that the environment of a boot has left something on the machine's disks; 0: nothing is left.
func (b *box) leave(generation int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = generation
}

// clean is the boot agent that erases the machine's disk, part by part, and may fail in that.
func (t *talker) clean(ctx context.Context, order *boot.CleanOrder) after {
	if order == nil {
		t.w.fail("machines", "%s boots to be cleaned and gets no order", t.name)
		return powerOff
	}
	disk := api.CleanStep{Kind: api.CleanDisk, Target: "sda", State: api.CleanPlanned, TotalBytes: 20}
	if t.w.drawnFor(fmt.Sprintf("%s cleaned at %s", t.name, t.w.since()), 3) > 0 {
		disk.TotalBytes = 4
	}
	report := boot.CleanReport{DryRun: order.DryRun, TotalBytes: disk.TotalBytes}
	fails := t.chance(Panic, 5)
	for disk.Bytes < disk.TotalBytes && !order.DryRun {
		if !pause(ctx, t.between(time.Second, 40*time.Second)) {
			return powerOff
		}
		disk.State = api.CleanRunning
		disk.Bytes++
		report.Bytes, report.Steps = disk.Bytes, []api.CleanStep{disk}
		var told boot.Instruction
		if t.post(boot.CleanPath, report, &told) != nil {
			continue
		}
		switch told.Do {
		case "poweroff":
			return powerOff
		case "reboot":
			return reboot
		}
	}
	switch {
	case order.DryRun:
	case fails:
		disk.State, disk.Message = api.CleanFailed, "input/output error"
		t.w.happened("cleaning failed")
	default:
		disk.State = api.CleanDone
		t.leave(0)
		t.forget()
		t.w.happened("cleaned")
	}
	report.Done, report.Steps = true, []api.CleanStep{disk}
	next, _ := t.obey(ctx, boot.CleanPath, report)
	return next
}

// askToClean asks for a machine to be cleaned, sometimes only for show.
func (w *world) askToClean(b *box, uid string) error {
	dryRun := w.drawnFor(fmt.Sprintf("%s dry at %s", b.name, w.since()), 4) == 0
	w.trace("%s is to be cleaned, dry: %t", b.name, dryRun)
	return w.putClean(b, uid, dryRun)
}

// putClean is what the API does with a request to clean a machine.
func (w *world) putClean(b *box, uid string, dryRun bool) error {
	s := w.up()
	_, _, err := s.repo.UpdateMachineIntent(s.ctx, b.name, uid, func(in *api.MachineIntent) error {
		in.Clean = api.CleanRequest{Number: in.Clean.Number + 1, DryRun: dryRun}
		return nil
	})
	return err
}

// hold quarantines or releases a machine.
func (w *world) hold(b *box, uid string, action api.HoldAction) error {
	w.trace("%s: %s", b.name, action)
	if action == api.HoldRelease { // whoever releases it answers for it
		b.wipe()
	}
	s := w.up()
	_, _, err := s.repo.UpdateMachineIntent(s.ctx, b.name, uid, func(in *api.MachineIntent) error {
		in.Hold = api.HoldRequest{Number: in.Hold.Number + 1, Action: action, Reason: "noise", By: "ann"}
		return nil
	})
	return err
}

// releaseAll ends every quarantine.
func (w *world) releaseAll() {
	for _, b := range w.boxes {
		if m := w.up().cache.View().Machine(b.name); m != nil && (m.Record != nil && m.Record.Quarantine != nil || m.Intent.Hold.Action == api.HoldQuarantine) {
			if err := w.hold(b, m.UID(), api.HoldRelease); err != nil {
				w.fail("machines", "%s can't be released: %v", b.name, err)
			}
		}
	}
}

// checkClean checks that a machine that is called clean has nothing left on its disks, and that nobody gets one in quarantine.
func (w *world) checkClean(b *box, before, after api.MachineRecord) {
	if c := after.Clean; c != nil && (before.Clean == nil || before.Clean.Generation != c.Generation) {
		w.happened("proved clean")
		b.mu.Lock()
		left := b.left
		b.mu.Unlock()
		if left != 0 {
			w.fail("machines", "%s is called clean by boot %d, and has what boot %d left", b.name, c.Generation, left)
		}
	}
	if after.Quarantine == nil {
		return
	}
	w.happened("in quarantine")
	if after.Phase == api.MachineBooting && before.Phase != api.MachineBooting {
		w.fail("machines", "%s boots for somebody, and is in quarantine: %s", b.name, after.Quarantine.Reason)
	}
}
