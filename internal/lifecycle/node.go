package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// DefaultDeathTimer is how long a node may be silent before it is down.
const DefaultDeathTimer = 5 * time.Second

// NodeInput is everything a decision about one node depends on.
type NodeInput struct {
	Name string
	// Phase is what the leader holds it to be; "" before it is recorded.
	Phase api.NodePhase
	// Connected: its agent has a stream to the leader.
	Connected bool
	// LastSeen is when it last said anything, zero when never to this leader.
	LastSeen time.Time
	// LeaderSince is when this leader took over: death timers start anew then.
	LeaderSince time.Time
	Now         time.Time
	DeathTimer  time.Duration
}

// PlanNode returns what is to be done about a node now.
func PlanNode(in NodeInput) []Operation {
	to, message, next := in.phase()
	var ops []Operation
	for from := in.Phase; from != to; {
		step := to
		if from == "" {
			step = api.NodeUnknown // the table's only way in
		}
		ops = append(ops, SetNodePhase{To: step, Message: message})
		from = step
	}
	if reason := nodeEvents[to]; in.Phase != to && in.Phase != "" || in.Phase == "" && to != api.NodeUnknown {
		ops = append(ops, Emit{Reason: reason, Message: fmt.Sprintf("node %s is %s%s", in.Name, to, because(message)), Node: in.Name})
	}
	if !next.IsZero() {
		ops = append(ops, WakeAt{Time: next})
	}
	return ops
}

var nodeEvents = map[api.NodePhase]string{
	api.NodeReady: EventNodeReady, api.NodeUnknown: EventNodeUnknown, api.NodeDown: EventNodeDown,
}

// phase is what the node is now, why, and when that changes by the clock alone.
func (in NodeInput) phase() (api.NodePhase, string, time.Time) {
	last := in.LastSeen
	if in.LeaderSince.After(last) {
		last = in.LeaderSince
	}
	death := last.Add(in.DeathTimer)
	doubt := last.Add(in.DeathTimer / 2)
	switch {
	case !in.Now.Before(death):
		return api.NodeDown, fmt.Sprintf("silent for %s", in.DeathTimer), time.Time{}
	case in.Phase == api.NodeDown && (!in.Connected || !in.Now.Before(doubt)):
		return api.NodeDown, "", time.Time{} // a word that came and went: it is down until its agent is there again
	case !in.Connected:
		return api.NodeUnknown, "its agent is not connected", death
	case !in.Now.Before(doubt):
		return api.NodeUnknown, "its agent is connected but silent", death
	default:
		return api.NodeReady, "", doubt
	}
}

func because(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}
