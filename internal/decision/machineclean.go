package decision

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// applyClean carries out operations about what a tenant left, and about who may get the machine.
func applyClean(r *api.MachineRecord, op lifecycle.MachineOperation, now time.Time) {
	switch op := op.(type) {
	case lifecycle.TakeUpClean:
		r.DoneClean = op.Number
	case lifecycle.TakeUpHold:
		r.DoneHold = op.Number
	case lifecycle.NoteClean:
		clean := op.Clean
		r.Cleaning = &clean
		if op.Proved {
			r.Clean, r.Cleaning = &clean, nil
			if r.Tenant != nil && r.Tenant.Generation < clean.Generation {
				r.Tenant = nil
			}
		}
	case lifecycle.QuarantineMachine:
		r.Quarantine = &api.MachineQuarantine{Reason: op.Reason, By: op.By, Since: now, Firmware: op.Firmware}
	case lifecycle.ReleaseMachine:
		r.Quarantine = nil
	case lifecycle.CleanedAfterTenant:
		r.Tenant = nil
		if r.BMC != nil {
			b := *r.BMC
			b.Duty, b.Drift = nil, ""
			r.BMC = &b
		}
	}
}
