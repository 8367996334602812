package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// toldWithin is how long before the decision to stop a machine its agent may have been heard last and still have been told of it: agents are
// asked for a sign of life every second or so.
const toldWithin = 5 * time.Second

// offFor is how long the power of a machine must be read as off, and the machine be silent, until that is believed though nobody asked for it:
// BMCs report a power that is off for some seconds while a machine is reset, and the machine itself is not heard of while its kernel starts, up
// to 17 s of an emulated one.
const offFor = 20 * time.Second

// offAfterLie is how long the agent of a machine that was ready must be silent until its BMC is believed that said off before, while the machine
// was heard: that it lied then does not make it on now. A switch that starts anew makes machines silent too, for minutes.
const offAfterLie = 10 * time.Minute

// lostPower reports whether a machine that should be on has lost its power: it has been read as off since the machine was heard of last, again
// and again. A BMC that says off and is given the lie by the machine is not believed until it has said something else, or a machine that was
// ready has been silent for long; one that boots may be, and has a deadline. look is when to ask again; zero: when something is heard.
func (in MachineInput) lostPower() (lost bool, look time.Time) {
	r, p := in.Record, in.Power
	off := p.Observes && p.State == api.PowerOff && r.Power == api.PowerOff
	wasOn := r.Phase == api.MachineReady || Reached(r.Boot, api.StagePower) // a BMC that erred may never have confirmed that it woke it
	if !off || in.Agent.Connected || !wasOn {
		return false, time.Time{}
	}
	since := r.PowerObservedAt
	look = since.Add(offFor)
	if last := in.lastWord(); !since.After(last) {
		if r.Phase != api.MachineReady {
			return false, time.Time{}
		}
		since, look = last, last.Add(offAfterLie)
	}
	if listened := in.LeaderSince.Add(offFor); listened.After(look) {
		look = listened // a new leader has not heard what the one before did
	}
	if in.Now.Before(look) {
		return false, look
	}
	// The time alone is no second reading; it is on its way.
	return p.ObservedAt.Sub(since) >= offFor, in.Now
}

// restarted reports whether a machine that was ready was started anew by something else than a decision: its kernel panicked, somebody reset it, its
// power was away for a moment. Nothing of what it ran is left, since its firmware asks what to boot.
func (in MachineInput) restarted() bool {
	return !in.Agent.Connected && in.Boot.Restarted.After(in.lastWord())
}

// bootsAgain gives a machine that restarted by itself what it had, in a boot of its own. Its power is on: it asks already.
func (in MachineInput) bootsAgain() []MachineOperation {
	const problem = "restarted unexpectedly"
	boot := in.sameBoot(1)
	return []MachineOperation{
		boot,
		NoteBoot{Seen: BootSeen{Stages: []api.StageTime{{Stage: api.StagePower, At: in.Now}}}},
		SetMachinePhase{To: api.MachineBooting, Message: problem},
		machineEvent(in, EventMachineRetry, "machine %s boots again: %s", in.Record.Name, problem),
		WakeAt{Time: boot.Deadline},
	}
}

// silent reports whether nothing has been heard of a machine's agent for so long that it is not there.
func (in MachineInput) silent() bool {
	since := in.lastWord()
	if in.LeaderSince.After(since) {
		since = in.LeaderSince // a new leader has not heard what the one before did
	}
	return !in.Agent.Connected && !in.Now.Before(since.Add(offFor))
}

// lastWord is when the machine was last heard of in its boot; to have been woken counts, and what the record has of it outlives a leader.
func (in MachineInput) lastWord() time.Time {
	last := in.Agent.LastSeen
	later := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	for _, s := range in.Record.Boot.Stages {
		later(s.At)
	}
	if in.Boot.Generation == in.Record.Boot.Generation {
		later(in.Boot.LastHeard)
	}
	return last
}

// stop decides that a machine goes off.
func (in MachineInput) stop(to api.MachinePhase, force bool, then string) []MachineOperation {
	cut := in.Now.Add(in.Deadlines.Soft)
	if force {
		cut = in.Now
	}
	deadline := in.Now.Add(in.Deadlines.Stop)
	return []MachineOperation{
		BeginStop{CutAt: cut, Deadline: deadline, ThenBoot: then},
		SetMachinePhase{To: to},
		machineEvent(in, EventMachineStopping, "machine %s is powering off", in.Record.Name),
		WakeAt{Time: cut},
		WakeAt{Time: deadline},
	}
}

// stopping is a machine on its way off.
func (in MachineInput) stopping() []MachineOperation {
	r := in.Record
	if r.Stop == nil {
		return in.stop(r.Phase, false, "")
	}
	off, how := in.isOff()
	switch {
	case off && r.Phase == api.MachineRemoving:
		return in.forget(true)
	case off:
		return in.wentOff(how)
	case in.vouchedFor():
		return in.forget(false)
	case !in.Now.Before(in.offBy()):
		message := "still not off, or its power is unreadable"
		if in.Power.Problem != "" {
			message += ": " + in.Power.Problem
		} else if !in.Power.ForcesOff {
			message += ": this power control can't force it off; press the machine's power button, then run: nearmetal node power off " + r.Name
		}
		if in.wasTold() {
			return in.fail(message)
		}
		return append([]MachineOperation{NoteUnheard{}}, in.fail(message)...)
	}
	return in.waitForOff()
}

// offBy is when a machine that stops must be off. A leader that has not looked at its power yet can't tell: it has as long as the order had.
func (in MachineInput) offBy() time.Time {
	by := in.Record.Stop.Deadline
	if own := in.LeaderSince.Add(in.Deadlines.Stop); !in.Power.Known && own.After(by) {
		return own
	}
	return by
}

// foundAgain stops a machine that could not be stopped because it was cut off, now that it is heard of: its cable was out, and nothing but its own agent can
// power it off. nil: it is not heard of.
func (in MachineInput) foundAgain() []MachineOperation {
	r := in.Record
	if r.Phase != api.MachineFailed || r.Stop == nil || !r.Stop.Unheard || in.Intent.RemoveRequestedAt != nil {
		return nil
	}
	if !in.Agent.Connected && !in.Agent.LastSeen.After(r.ChangedAt) && !in.Boot.LastHeard.After(r.ChangedAt) {
		return nil
	}
	return append([]MachineOperation{machineEvent(in, EventMachineFound, "machine %s is heard of again", r.Name)}, in.stop(api.MachineStopping, false, r.Stop.ThenBoot)...)
}

// waitForOff says what a machine on its way off waits for, and when to look at it again.
func (in MachineInput) waitForOff() []MachineOperation {
	r := in.Record
	var ops []MachineOperation
	message := in.Agent.PowerOffProblem
	if message == "" && r.Phase == api.MachineRemoving && in.beyondControl() {
		message = fmt.Sprintf("its power can't be read or cut: the machine is removed when its agent has powered it off and fallen silent, at the latest at %s; "+
			"if you know that the machine is off, run: nearmetal node remove %s --force", r.Stop.Deadline.UTC().Format("15:04:05 UTC"), r.Name)
	}
	if message != "" && message != r.Message {
		ops = append(ops, SetMachinePhase{To: r.Phase, Message: message})
	}
	ops = append(ops, WakeAt{Time: in.offBy()})
	// Readings that tell nothing new wake nobody: where there are some, it is looked at again and again from the cut on.
	if in.Now.Before(r.Stop.CutAt) || !in.Power.Known || in.Power.Observes {
		ops = append(ops, WakeAt{Time: r.Stop.CutAt})
	}
	if in.Power.Known && !in.Power.Observes {
		for _, at := range []time.Time{in.silentAt(), r.ChangedAt.Add(in.Deadlines.Soft)} {
			if in.Now.Before(at) {
				ops = append(ops, WakeAt{Time: at})
			}
		}
	}
	return ops
}

// beyondControl reports whether nothing can read or cut its power: a button that a person presses, a packet that only wakes.
func (in MachineInput) beyondControl() bool {
	return in.Power.Known && !in.Power.Observes && !in.Power.ForcesOff
}

// vouchedFor reports whether a machine that is beyond control is forgotten on the word of who removes it with force. One whose agent is connected
// is on, whatever they say: it gets the time to go off by itself.
func (in MachineInput) vouchedFor() bool {
	r := in.Record
	return r.Phase == api.MachineRemoving && in.Intent.RemoveForce && in.beyondControl() &&
		(!in.Agent.Connected || !in.Now.Before(r.ChangedAt.Add(in.Deadlines.Soft)))
}

// forget ends the machine's record; off: its power is known to be off, or was never on for us.
func (in MachineInput) forget(off bool) []MachineOperation {
	text := "machine %s is removed"
	if !off {
		text += "; its power was not cut and can't be read: it may still be running"
	}
	return []MachineOperation{ForgetMachine{}, machineEvent(in, EventMachineRemoved, text, in.Record.Name)}
}

// wentOff is a machine that has just gone off on purpose.
func (in MachineInput) wentOff(how string) []MachineOperation {
	r := in.Record
	switch {
	case r.Quarantine != nil:
		how = quarantineText(r.Quarantine)
	case in.reserved():
		how = in.reservedText()
	}
	ops := []MachineOperation{SetMachinePhase{To: api.MachineOff, Message: how}, machineEvent(in, EventMachineOff, "machine %s is off", r.Name)}
	if r.Stop.ThenBoot != "" && r.Quarantine == nil {
		ops = append(ops, in.begin(api.BootEnvironment, r.Stop.ThenBoot, TakeUp{Request: r.DoneRequest, Inspect: r.DoneInspect})...)
	}
	return ops
}

// isOff reports whether the machine is off for certain: read from its BMC since the decision to stop it, or, where there is nothing to
// read, told by itself before it fell silent.
func (in MachineInput) isOff() (off bool, how string) {
	if in.Power.Observes {
		return in.readOff(), ""
	}
	if !in.Power.Known || in.Agent.Connected || !in.wasTold() || in.Now.Before(in.silentAt()) {
		return false, ""
	}
	return true, "ordered off and silent since; its power is unreadable"
}

// readOff reports whether the power was read as off since the phase began, and nothing was heard of the machine's agent since: a BMC that
// is wrong must not make a machine off that answers.
func (in MachineInput) readOff() bool {
	at := in.Power.ObservedAt
	// Who reads it must know of the stop: a machine that was woken a moment ago reads as off until its power follows.
	knows := in.Power.Generation >= in.Record.Stop.Generation
	return knows && in.Power.Observes && in.Power.State == api.PowerOff && at.After(in.Record.ChangedAt) && !in.Agent.Connected && !at.Before(in.Agent.LastSeen)
}

// wasTold reports whether the order to go off reached the machine: its agent was there when it was decided, or its boot agent has asked since.
// The silence of one that was silent before means nothing: it may be cut off from here, and run.
func (in MachineInput) wasTold() bool {
	decided := in.Record.ChangedAt
	return in.Agent.LastSeen.After(decided.Add(-toldWithin)) || in.Boot.ToldOff.After(decided)
}

// offByHand reports whether somebody asks for the power to be off who was told, when stopping failed, to press the button and ask again: nothing
// else can say that such a machine is off.
func (in MachineInput) offByHand() bool {
	return in.Record.Phase == api.MachineFailed && in.Record.Stop != nil && in.Power.Known && !in.Power.Observes && !in.Agent.Connected
}

// silentAt is when the silence of a machine whose power can't be read has lasted long enough.
func (in MachineInput) silentAt() time.Time {
	last := in.Record.ChangedAt
	for _, t := range []time.Time{in.Boot.LastHeard, in.Boot.ToldOff, in.Agent.LastSeen} {
		if t.After(last) {
			last = t
		}
	}
	return last.Add(in.Deadlines.Silence)
}
