package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// CleanEnvironment is the environment that machines boot to be cleaned: kernel and initrd, with the same boot agent that inspects.
const CleanEnvironment = InspectEnvironment

// noteEvery is the pause between two commits that hold nothing but further bytes of a cleaning.
const noteEvery = 10 * time.Second

// CleanSeen is what a machine reported of its cleaning.
type CleanSeen struct {
	// DryRun, Done, the bytes and Steps are as in api.MachineClean.
	DryRun, Done      bool
	Bytes, TotalBytes int64
	Steps             []api.CleanStep
	// ProgressAt is when a report last had something new: more bytes, or another state or method of a step.
	ProgressAt time.Time
	// Expect is how long the machine may have nothing new to report: a disk that erases itself says how long that takes.
	Expect time.Duration
}

// clean begins a boot that cleans the machine, or says why there can be none. It is how whoever plans for a machine that a tenant had begins its
// cleaning once it is off. MachineRecord.Clean, with a generation above that of the tenant's boot, proves the success; MachineRecord.Quarantine
// says that it failed.
func (in MachineInput) clean(dryRun bool) []MachineOperation {
	r := in.Record
	took := TakeUp{Request: r.DoneRequest, Inspect: r.DoneInspect}
	digest, problem := in.Environment(CleanEnvironment)
	if problem != "" {
		return in.begin(api.BootClean, CleanEnvironment, took) // says why there is none
	}
	deadline := in.Now.Add(in.Deadlines.Boot)
	return []MachineOperation{
		BeginBoot{Purpose: api.BootClean, Environment: CleanEnvironment, Digest: digest, Deadline: deadline, Attempt: 1, DryRun: dryRun},
		SetMachinePhase{To: api.MachineCleaning},
		machineEvent(in, EventMachineBooting, "machine %s boots to be cleaned%s", r.Name, dryText(dryRun)),
		WakeAt{Time: deadline},
	}
}

func dryText(dryRun bool) string {
	if dryRun {
		return " (dry run)"
	}
	return ""
}

// cleanRequested takes up a request to clean a machine at rest. One that is on goes off first: memory loses what it holds without power.
func (in MachineInput) cleanRequested() []MachineOperation {
	if in.Power.Observes && in.Power.ForcesOff && in.Power.State != api.PowerOff {
		return in.stop(api.MachineStopping, true, "")
	}
	return append([]MachineOperation{TakeUpClean{Number: in.Intent.Clean.Number}}, in.clean(in.Intent.Clean.DryRun)...)
}

// cleanReady takes up a request to clean a machine that is on: once it is off it is cleaned.
func (in MachineInput) cleanReady() []MachineOperation {
	r := in.Record
	if in.InUse == "" {
		return in.stop(api.MachineStopping, false, "")
	}
	message := fmt.Sprintf("can't be cleaned: %s", in.InUse)
	return []MachineOperation{
		TakeUpClean{Number: in.Intent.Clean.Number},
		SetMachinePhase{To: r.Phase, Message: message},
		machineEvent(in, EventMachineRefused, "machine %s %s", r.Name, message),
	}
}

// cleanSeen is what was reported of the cleaning that goes on; nil: nothing yet.
func (in MachineInput) cleanSeen() *CleanSeen {
	r := in.Record
	if r.Boot == nil || r.Boot.Purpose != api.BootClean || in.Boot.Generation != r.Boot.Generation {
		return nil
	}
	return in.Boot.Clean
}

// dryRun reports whether the boot that goes on only says what it would clean.
func (in MachineInput) dryRun() bool {
	r := in.Record
	return r.Boot != nil && r.Boot.Purpose == api.BootClean && r.Cleaning != nil && r.Cleaning.DryRun
}

// deadline is when a boot has failed. A cleaning takes as long as the machine's disks need, so its deadline moves with its progress.
func (in MachineInput) deadline() time.Time {
	r := in.Record
	at := r.Boot.Deadline
	later := func(t time.Time) {
		if t.After(at) {
			at = t
		}
	}
	if r.Phase != api.MachineCleaning {
		return at
	}
	if seen := in.cleanSeen(); seen != nil {
		later(seen.ProgressAt.Add(in.Deadlines.Progress + seen.Expect))
	}
	if r.Cleaning != nil && !r.Cleaning.At.IsZero() {
		later(in.LeaderSince.Add(in.Deadlines.Progress)) // a new leader has not heard what the one before did
	}
	return at
}

// late is the problem of a boot whose deadline has passed.
func (in MachineInput) late() string {
	r := in.Record
	if r.Phase == api.MachineCleaning && in.cleanSeen() != nil {
		return fmt.Sprintf("its cleaning reported no progress for %s: see its console", in.deadline().Sub(in.cleanSeen().ProgressAt))
	}
	return fmt.Sprintf("not %s within %s%s", wantedOf(r.Phase), in.Deadlines.Boot, reached(r.Boot, in.Power))
}

// cleaning is a machine on its way through a cleaning.
func (in MachineInput) cleaning() []MachineOperation {
	r, seen := in.Record, in.cleanSeen()
	if seen == nil || r.Cleaning == nil {
		return in.trouble()
	}
	note := NoteClean{Clean: *r.Cleaning}
	note.Clean.At, note.Clean.Done = in.Now, seen.Done
	note.Clean.Bytes, note.Clean.TotalBytes, note.Clean.Steps = seen.Bytes, seen.TotalBytes, seen.Steps
	if !seen.Done {
		return append(in.cleanProgress(note), in.trouble()...)
	}
	problem := notClean(note.Clean, seen.DryRun)
	if problem != "" {
		return append([]MachineOperation{note}, in.fail(problem)...)
	}
	ops := []MachineOperation{}
	if note.Clean.DryRun {
		ops = append(ops, note, machineEvent(in, EventMachineCleaned, "machine %s reported what a cleaning would do; nothing was erased", r.Name))
		return append(ops, in.stop(api.MachineStopping, false, "")...)
	}
	renewed := true
	if ops, renewed, problem = in.renew(); problem != "" {
		return append(append(ops, note), in.fail("its BMC is not as it was before the member: "+problem)...)
	}
	if !renewed {
		return append(append(ops, in.cleanProgress(note)...), in.trouble()...)
	}
	note.Proved = true
	ops = append(ops, note, Verified{}, machineEvent(in, EventMachineCleaned, "machine %s is clean", r.Name))
	if held := in.firmware(); held != nil {
		return append(ops, held...)
	}
	if r.Quarantine != nil && r.Quarantine.By == "" {
		ops = append(ops, ReleaseMachine{}, machineEvent(in, EventMachineReleased, "machine %s is out of quarantine: it is clean", r.Name))
	}
	return append(ops, in.idle()...)
}

// cleanProgress takes down what is new of a cleaning that goes on: a step's state at once, bytes now and then.
func (in MachineInput) cleanProgress(note NoteClean) []MachineOperation {
	was, is := in.Record.Cleaning, &note.Clean
	switch {
	case !SameSteps(was.Steps, is.Steps) || was.TotalBytes != is.TotalBytes:
	case was.Bytes == is.Bytes:
		return nil
	case in.Now.Before(was.At.Add(noteEvery)):
		return []MachineOperation{WakeAt{Time: was.At.Add(noteEvery)}}
	}
	return []MachineOperation{note}
}

// SameSteps reports whether steps differ in bytes and seconds only.
func SameSteps(a, b []api.CleanStep) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Target != b[i].Target || a[i].State != b[i].State || a[i].Method != b[i].Method || len(a[i].Tried) != len(b[i].Tried) {
			return false
		}
	}
	return true
}

// notClean returns why a cleaning that has ended is no success, or "". In a dry run it is whatever the plan says would fail.
func notClean(c api.MachineClean, reportedDry bool) string {
	if len(c.Steps) == 0 {
		return "the machine reported no step of its cleaning"
	}
	if !c.DryRun && reportedDry {
		return "the machine only planned its cleaning, instead of carrying it out"
	}
	if c.DryRun {
		return ""
	}
	for _, s := range c.Steps {
		switch s.State {
		case api.CleanDone, api.CleanSkipped:
		case api.CleanFailed:
			return fmt.Sprintf("%s %s is not clean: %s", s.Kind, s.Target, s.Message)
		default:
			return fmt.Sprintf("%s %s is not clean: its step ended %q", s.Kind, s.Target, s.State)
		}
	}
	return ""
}

// notCleaned is what follows for the cleaning from a failure of the machine: whoever had it may have left something, so nobody gets it.
func (in MachineInput) notCleaned(problem string) []MachineOperation {
	r := in.Record
	switch {
	case r.Phase == api.MachineCleaning && !in.dryRun():
		reason := "its cleaning failed: " + problem
		return []MachineOperation{QuarantineMachine{Reason: reason}, machineEvent(in, EventMachineHeld, "machine %s is quarantined: %s", r.Name, reason)}
	case r.Phase == api.MachineStopping && in.Intent.Clean.Number > r.DoneClean:
		return []MachineOperation{TakeUpClean{Number: in.Intent.Clean.Number}} // else it would be stopped for it again and again
	}
	return nil
}

// hold takes up a request to quarantine or to release the machine, in whatever phase.
func (in MachineInput) hold() []MachineOperation {
	r, req := in.Record, in.Intent.Hold
	took := TakeUpHold{Number: req.Number}
	if req.Action == api.HoldRelease {
		return in.release(took)
	}
	text := fmt.Sprintf("quarantined by %s: %s", orElse(req.By, "an operator"), req.Reason)
	if r.Phase == api.MachineReady && in.InUse != "" {
		message := "can't be quarantined: " + in.InUse
		return []MachineOperation{took, SetMachinePhase{To: r.Phase, Message: message}, machineEvent(in, EventMachineRefused, "machine %s %s", r.Name, message)}
	}
	ops := []MachineOperation{
		took,
		QuarantineMachine{Reason: req.Reason, By: orElse(req.By, "an operator")},
		machineEvent(in, EventMachineHeld, "machine %s is %s", r.Name, text),
	}
	switch r.Phase {
	case api.MachineReady, api.MachineWarm:
		return append(ops, in.stop(api.MachineStopping, false, "")...)
	case api.MachineBooting:
		return append(ops, in.stop(api.MachineStopping, true, "")...)
	default:
		return append(ops, SetMachinePhase{To: r.Phase, Message: text})
	}
}

// release ends the quarantine of a machine. One that has failed is off from then on if its power is.
func (in MachineInput) release(took TakeUpHold) []MachineOperation {
	r := in.Record
	by := orElse(in.Intent.Hold.By, "an operator")
	ops := []MachineOperation{took, ReleaseMachine{}, machineEvent(in, EventMachineReleased, "machine %s is released by %s", r.Name, by)}
	if r.Tenant != nil && !in.Tenant.Holds() { // whoever releases it answers for it
		ops = append(ops, CleanedAfterTenant{})
	}
	to, message := r.Phase, "released by "+by
	switch {
	case r.Phase != api.MachineFailed:
	case in.Power.Known && in.Power.Observes && in.Power.State == api.PowerOff && !in.Agent.Connected:
		to = api.MachineOff
	default:
		message += "; it may still be on: power it off, or clean it"
	}
	return append(ops, SetMachinePhase{To: to, Message: message})
}

// keptBack refuses to boot a machine in quarantine for anybody; nil: it is in none.
func (in MachineInput) keptBack(took TakeUp) []MachineOperation {
	r := in.Record
	if r.Quarantine == nil {
		return nil
	}
	message := quarantineText(r.Quarantine) + fmt.Sprintf("; clean it (nearmetal node clean %s) or release it (nearmetal node release %s)", r.Name, r.Name)
	return []MachineOperation{took, SetMachinePhase{To: r.Phase, Message: message}, machineEvent(in, EventMachineRefused, "machine %s is %s", r.Name, message)}
}

func quarantineText(q *api.MachineQuarantine) string {
	if q.By == "" {
		return "in quarantine: " + q.Reason
	}
	return fmt.Sprintf("in quarantine by %s: %s", q.By, q.Reason)
}
