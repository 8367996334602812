package lifecycle

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// toldWithin is how long before the decision to stop a machine its agent may have been heard last and still have been told of it: agents are
// asked for a sign of life every second or so.
const toldWithin = 5 * time.Second

// isOff tells whether the machine is off for certain: read from its BMC since the decision to stop it, or, where there is nothing to
// read, told by itself before it fell silent.
func (in MachineInput) isOff() (off bool, how string) {
	if in.Power.Observes {
		return in.readOff(), ""
	}
	if !in.Power.Known || in.Agent.Connected || !in.wasTold() || in.Now.Before(in.silentAt()) {
		return false, ""
	}
	return true, "told to go off and silent since; nothing can read its power"
}

// readOff tells whether the power was read as off since the phase began, and nothing was heard of the machine's agent since: a BMC that
// is wrong must not make a machine off that answers.
func (in MachineInput) readOff() bool {
	at := in.Power.ObservedAt
	return in.Power.Observes && in.Power.State == api.PowerOff && at.After(in.Record.ChangedAt) && !in.Agent.Connected && !at.Before(in.Agent.LastSeen)
}

// wasTold tells whether the order to go off reached the machine: its agent was there when it was decided, or its boot agent has asked since.
// The silence of one that was silent before means nothing: it may be cut off from here, and run.
func (in MachineInput) wasTold() bool {
	decided := in.Record.ChangedAt
	return in.Agent.LastSeen.After(decided.Add(-toldWithin)) ||
		in.Record.Boot != nil && in.Boot.Generation == in.Record.Boot.Generation && in.Boot.LastHeard.After(decided)
}

// offByHand tells whether somebody asks for the power to be off who was told, when stopping failed, to press the button and ask again: nothing
// else can say that such a machine is off.
func (in MachineInput) offByHand() bool {
	return in.Record.Phase == api.MachineFailed && in.Record.Stop != nil && in.Power.Known && !in.Power.Observes && !in.Agent.Connected
}

// silentAt is when the silence of a machine whose power can't be read has lasted long enough.
func (in MachineInput) silentAt() time.Time {
	last := in.Record.ChangedAt
	for _, t := range []time.Time{in.Boot.LastHeard, in.Agent.LastSeen} {
		if t.After(last) {
			last = t
		}
	}
	return last.Add(in.Deadlines.Silence)
}
