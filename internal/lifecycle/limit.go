package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// longestWarning is how long before the end of a time limit its user is warned; a tenth of the limit when that is shorter.
const longestWarning = 5 * time.Minute

// Expires is when a cluster's time limit ends; zero when it has none, or is not placed yet.
func Expires(spec api.ClusterSpec, record *api.ClusterRecord) time.Time {
	if record == nil || record.PlacedAt == nil || spec.TimeLimit <= 0 {
		return time.Time{}
	}
	return record.PlacedAt.Add(spec.TimeLimit.Std())
}

// planLimit warns of the end of the time limit, and ends the cluster after it; then nothing else is to be planned (over).
func (in ClusterInput) planLimit() (ops []ClusterOperation, over bool) {
	if in.Record.ExpiredAt != nil {
		return in.planGrace(), true
	}
	expires := Expires(in.Intent.Spec, in.Record)
	if expires.IsZero() {
		return nil, false
	}
	limit := in.Intent.Spec.TimeLimit
	if !in.Now.Before(expires) {
		return in.planExpiry(limit), true
	}
	warning := expires.Add(-min(longestWarning, limit.Std()/10))
	switch warned := in.Record.WarnedFor; {
	case warned != nil && warned.Equal(expires):
		return []ClusterOperation{WakeAt{Time: expires}}, false
	case in.Now.Before(warning):
		return []ClusterOperation{WakeAt{Time: warning}}, false
	default:
		text := fmt.Sprintf("the time limit of %s ends at %s; the cluster and all files in its shared home are then deleted: "+
			"copy the files, or extend the limit", limit, expires.UTC().Format(time.RFC3339))
		return []ClusterOperation{Warn{For: expires}, Emit{Reason: EventExpiring, Message: text}, WakeAt{Time: expires}}, false
	}
}

// planExpiry begins the grace. What is frozen is woken: jobs that don't run can't end.
func (in ClusterInput) planExpiry(limit api.Duration) []ClusterOperation {
	text := fmt.Sprintf("the time limit of %s has passed; running jobs have %s to finish", limit, in.Deadlines.Grace)
	ops := []ClusterOperation{Expire{}, Emit{Reason: EventExpired, Message: text}}
	if Frozen(in.Record.Phase) {
		return append(ops, SetPhase{To: api.ClusterResuming, Message: text})
	}
	return append(ops, in.say(text)...)
}

// planGrace waits until the grace is over, or nobody is left to use it.
func (in ClusterInput) planGrace() []ClusterOperation {
	end := in.Record.ExpiredAt.Add(in.Deadlines.Grace)
	if in.Now.Before(end) && in.anyoneLeft() {
		return []ClusterOperation{WakeAt{Time: end}}
	}
	return in.planDelete("the time limit has passed; ")
}

// anyoneLeft reports whether a member may still run.
func (in ClusterInput) anyoneLeft() bool {
	for _, a := range in.Assignments {
		if a.Releasing || !a.IsMember() || in.Nodes[a.Node].Phase == api.NodeDown {
			continue
		}
		if phase, _ := MemberPhase(a, in.Observed, in.Nodes); phase != api.MemberFailed && phase != api.MemberSaved && !a.Saved {
			return true
		}
	}
	return false
}
