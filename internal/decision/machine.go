package decision

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// MachineChange is the set of writes of one commit for a machine.
type MachineChange struct {
	// Record is the record after the commit.
	Record api.MachineRecord
	// Inspected: the hardware last reported is stored with it.
	Inspected bool
	// Forget removes the machine instead.
	Forget bool
	// Dirty: there is something to write.
	Dirty  bool
	Events []api.Event
	WakeAt time.Time
}

// ApplyMachine turns operations on a machine into what one commit writes. record is nil before the first decision. A change of phase that
// the table of machines does not have, and an operation that is not known here, is an error, and nothing is to be written.
func ApplyMachine(intent *api.MachineIntent, record *api.MachineRecord, ops []lifecycle.MachineOperation, now time.Time) (MachineChange, error) {
	var c MachineChange
	from := api.MachinePhase("")
	if record != nil {
		c.Record, from = *record, record.Phase
	}
	for _, op := range ops {
		switch op := op.(type) {
		case lifecycle.Emit:
			c.Events = append(c.Events, api.Event{Time: now, Reason: op.Reason, Message: op.Message, Node: op.Node})
		case lifecycle.WakeAt:
			if c.WakeAt.IsZero() || op.Time.Before(c.WakeAt) {
				c.WakeAt = op.Time
			}
		case lifecycle.EnrollMachine:
			c.Record = api.MachineRecord{
				Name: intent.Name, UID: intent.UID, Phase: api.MachineEnrolled, Index: op.Index, Generation: 1, Power: api.PowerUnknown, ChangedAt: now,
			}
			c.Dirty = true
		case lifecycle.ForgetMachine:
			if err := lifecycle.Machines().Check(from, ""); err != nil {
				return MachineChange{}, err
			}
			c.Forget, c.Dirty = true, true
		default:
			if err := applyMachine(&c, op, now); err != nil {
				return MachineChange{}, err
			}
			c.Dirty = true
		}
	}
	return c, nil
}

func applyMachine(c *MachineChange, op lifecycle.MachineOperation, now time.Time) error {
	r := &c.Record
	switch op := op.(type) {
	case lifecycle.SetMachinePhase:
		if op.To != r.Phase {
			if err := lifecycle.Machines().Check(r.Phase, op.To); err != nil {
				return err
			}
			r.ChangedAt = now
			switch op.To {
			case api.MachineStopping, api.MachineRemoving, api.MachineFailed: // one that could not be stopped is known by it
			default:
				r.Stop = nil
			}
		}
		r.Phase, r.Message = op.To, op.Message
	case lifecycle.TakeUp:
		r.DoneRequest, r.DoneInspect = op.Request, op.Inspect
	case lifecycle.BeginBoot:
		beginBoot(r, op, now)
	case lifecycle.TakeUpClean, lifecycle.TakeUpHold, lifecycle.NoteClean, lifecycle.CleanedAfterTenant, lifecycle.QuarantineMachine, lifecycle.ReleaseMachine:
		applyClean(r, op, now)
	case lifecycle.BeginDuty, lifecycle.EndDuty, lifecycle.DropDuty, lifecycle.NoteDrift:
		r.BMC = applyBMC(r.BMC, op, now)
	case lifecycle.BeginStop:
		r.Generation++
		r.Stop = &api.MachineStop{Generation: r.Generation, CutAt: op.CutAt, Deadline: op.Deadline, ThenBoot: op.ThenBoot}
	case lifecycle.PauseTenant:
		if r.Tenant != nil {
			paused := *r.Tenant
			paused.Paused = true
			r.Tenant = &paused
		}
	case lifecycle.NoteUnheard:
		if r.Stop != nil {
			stop := *r.Stop
			stop.Unheard = true
			r.Stop = &stop
		}
	case lifecycle.NotePower:
		if op.State != r.Power {
			r.PowerObservedAt = op.At
		}
		r.Power, r.PowerMessage = op.State, op.Message
	case lifecycle.NoteBoot:
		noteBoot(r, op.Seen)
	case lifecycle.NoteInspection:
		at := now
		r.InspectedAt, r.Health, r.LastVerifiedAt = &at, op.Health, &at
		c.Inspected = true
	case lifecycle.Verified:
		at := now
		r.LastVerifiedAt = &at
	default:
		return &lifecycle.UnhandledOperation{Handler: "the machine's decision", Operation: op}
	}
	return nil
}

// beginBoot begins another boot of a machine.
func beginBoot(r *api.MachineRecord, op lifecycle.BeginBoot, now time.Time) {
	r.Generation++
	r.Attempt = op.Attempt
	r.Boot = &api.Boot{
		Generation: r.Generation, Purpose: op.Purpose, Environment: op.Environment, Digest: op.Digest, DecidedAt: now, Deadline: op.Deadline, Member: op.Member,
		Warm: op.Warm, Files: op.Files,
	}
	switch t := r.Tenant; {
	case op.Member == "":
	case t == nil || t.Assignment != op.Member:
		r.Tenant = &api.MachineTenant{Assignment: op.Member, Cluster: op.Cluster, Generation: r.Generation}
	case t.Paused:
		again := *t
		again.Paused = false
		r.Tenant = &again
	}
	if op.Purpose == api.BootClean {
		r.Cleaning = &api.MachineClean{Generation: r.Generation, DryRun: op.DryRun, WasOff: r.Power == api.PowerOff, StartedAt: now}
	}
}

// noteBoot takes what was heard into the record, which keeps the first time that it was told of a stage.
func noteBoot(r *api.MachineRecord, seen lifecycle.BootSeen) {
	boot := *r.Boot
	boot.Stages = slices.Clone(boot.Stages)
	for _, s := range seen.Stages {
		if !slices.ContainsFunc(boot.Stages, func(have api.StageTime) bool { return have.Stage == s.Stage }) {
			boot.Stages = append(boot.Stages, s)
		}
	}
	order := api.BootStages()
	slices.SortStableFunc(boot.Stages, func(a, b api.StageTime) int { return slices.Index(order, a.Stage) - slices.Index(order, b.Stage) })
	boot.LoaderBytes = max(boot.LoaderBytes, seen.LoaderBytes)
	boot.ReadyBytes = max(boot.ReadyBytes, seen.ReadyBytes)
	boot.RootBytes = max(boot.RootBytes, seen.RootBytes)
	boot.PeerBytes = max(boot.PeerBytes, seen.PeerBytes)
	boot.Local = boot.Local || seen.Local
	if boot.RedeemedAt == nil && !seen.RedeemedAt.IsZero() {
		at := seen.RedeemedAt
		boot.RedeemedAt = &at
	}
	r.Boot = &boot
	if seen.Firmware != "" {
		r.Firmware = seen.Firmware
	}
	if seen.Architecture != "" {
		r.Architecture = seen.Architecture
	}
}
