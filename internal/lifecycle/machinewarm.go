package lifecycle

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// warmSilence is how long nothing may be heard of a machine that waits in its boot agent, which asks every few seconds, before it counts as gone.
const warmSilence = 30 * time.Second

// idle is what a machine does that was inspected or cleaned, and that nobody has: it waits in its boot agent where the site keeps machines warm, and goes
// off else.
func (in MachineInput) idle() []MachineOperation {
	if in.Deadlines.IdleOff <= 0 && in.WarmOthers >= in.Deadlines.Warm || in.keptOff() {
		return in.stop(api.MachineStopping, false, "")
	}
	return []MachineOperation{
		SetMachinePhase{To: api.MachineWarm, Message: "waits in its boot agent"},
		machineEvent(in, EventMachineWarm, "machine %s stays on, and waits for what it boots next", in.Record.Name),
		WakeAt{Time: in.Now.Add(warmSilence)},
	}
}

// keptOff reports whether a machine is not to wait for anybody: an operator wants it off, or wants nobody to get it.
func (in MachineInput) keptOff() bool {
	r, req := in.Record, in.Intent.Request
	cleanedSince := func(c *api.MachineClean) bool { return c != nil && c.StartedAt.After(req.At) }
	off := req.Action == api.PowerActionOff && !cleanedSince(r.Clean) && !cleanedSince(r.Cleaning) // somebody has had it since
	held := r.Quarantine != nil && (r.Quarantine.By != "" || r.Phase != api.MachineCleaning)
	return off || held || in.Drained || in.Intent.RemoveRequestedAt != nil || in.Intent.Clean.Number > r.DoneClean
}

// warm is a machine that waits in its boot agent for what it boots next.
func (in MachineInput) warm() []MachineOperation {
	r, req := in.Record, in.Intent.Request
	switch {
	case in.Intent.RemoveRequestedAt != nil:
		return in.stop(api.MachineRemoving, false, "")
	case r.Tenant != nil || r.Quarantine != nil:
		return in.stop(api.MachineStopping, false, "")
	}
	silentAt := in.heardAt().Add(warmSilence)
	if !in.Now.Before(silentAt) { // it has lost its power, hangs, or was cut off: off it is known to be well
		return append([]MachineOperation{machineEvent(in, EventMachineLostPower, "machine %s is not heard of while it waits", r.Name)}, in.stop(api.MachineStopping, true, "")...)
	}
	switch {
	case in.Tenant.Holds():
		return in.beginMember(in.Tenant)
	case req.Number > r.DoneRequest:
		return in.request(req)
	case in.Intent.Clean.Number > r.DoneClean:
		return in.cleanRequested()
	case in.Intent.Inspect > r.DoneInspect:
		return in.stop(api.MachineStopping, false, "") // once it is off it is inspected
	}
	offAt := r.ChangedAt.Add(in.Deadlines.IdleOff)
	switch {
	case in.Drained:
		return in.stop(api.MachineStopping, false, "")
	case in.WarmOthers < in.Deadlines.Warm:
		return []MachineOperation{WakeAt{Time: silentAt}}
	case in.Now.Before(offAt):
		return []MachineOperation{WakeAt{Time: silentAt}, WakeAt{Time: offAt}}
	}
	return in.stop(api.MachineStopping, false, "")
}

// heardAt is when the boot agent was heard last; a leader that has just begun has not heard what the one before did.
func (in MachineInput) heardAt() time.Time {
	at := in.Record.ChangedAt
	for _, t := range []time.Time{in.LeaderSince, in.Boot.LastHeard} {
		if t.After(at) && (t == in.LeaderSince || in.Boot.Generation == in.Record.Boot.Generation) {
			at = t
		}
	}
	return at
}

// warmUp wakes a machine that is off while fewer wait than the site keeps: it is inspected, and waits then. nil: it stays as it is.
func (in MachineInput) warmUp() []MachineOperation {
	r := in.Record
	if in.WarmOthers+in.WarmSoon >= in.Deadlines.Warm || r.Phase != api.MachineOff || r.Power != api.PowerOff || r.InspectedAt == nil || r.Tenant != nil ||
		r.Quarantine != nil || in.Tenant != nil || in.keptOff() {
		return nil
	}
	if _, problem := in.Environment(InspectEnvironment); problem != "" {
		return nil
	}
	ops := []MachineOperation{machineEvent(in, EventMachineWarm, "machine %s is woken to wait for what it boots next", r.Name)}
	return append(ops, in.begin(api.BootInspect, InspectEnvironment, TakeUp{Request: r.DoneRequest, Inspect: r.DoneInspect})...)
}

// stray switches a machine off that is on without an order of the site, once it has been for as long as machines may be idle.
func (in MachineInput) stray() []MachineOperation {
	r := in.Record
	if in.Deadlines.IdleOff <= 0 || r.Phase != api.MachineOff || r.Power != api.PowerOn || !in.Power.Observes || !in.Power.ForcesOff || in.Agent.Connected ||
		in.Tenant != nil || in.InUse != "" {
		return nil
	}
	since := r.PowerObservedAt
	if r.ChangedAt.After(since) {
		since = r.ChangedAt
	}
	if at := since.Add(in.Deadlines.IdleOff); in.Now.Before(at) {
		return []MachineOperation{WakeAt{Time: at}}
	}
	ops := []MachineOperation{machineEvent(in, EventMachineStopping, "machine %s is on, and nobody asked for it", r.Name)}
	return append(ops, in.stop(api.MachineStopping, true, "")...)
}

// bootOps decides a boot. A machine that waits in its boot agent goes on from there: its power is left alone.
func (in MachineInput) bootOps(b BeginBoot) []MachineOperation {
	if in.Record.Phase != api.MachineWarm || b.Purpose == api.BootInspect || b.Purpose == api.BootClean {
		return []MachineOperation{b}
	}
	b.Warm = true
	return []MachineOperation{b, NoteBoot{Seen: BootSeen{Stages: []api.StageTime{{Stage: api.StagePower, At: in.Now}}}}}
}

func warmText(r *api.MachineRecord) string {
	if r.Phase == api.MachineWarm {
		return ", from its boot agent"
	}
	return ""
}
