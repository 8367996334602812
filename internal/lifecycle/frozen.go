package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// planFrozen freezes, and keeps frozen until the user wants otherwise. Who is lost meanwhile is noted and replaced afterwards.
func (l *look) planFrozen() []ClusterOperation {
	if !l.Intent.Paused {
		return l.change(api.ClusterResuming, EventResuming, "waking "+plural(l.held(), "member"))
	}
	ops := l.planLosses()
	if l.Record.Phase == api.ClusterPaused && l.wantsSnapshot() {
		return append(ops, l.beginSnapshot()...)
	}
	if l.Record.Phase == api.ClusterPaused {
		return l.again(ops)
	}
	frozen := 0
	var awake []string
	for _, m := range l.members {
		switch {
		case m.loss != "":
		case m.phase == api.MemberPaused || m.phase == api.MemberSaved: // a save that was taken back may have ended nevertheless
			frozen++
		default:
			awake = append(awake, m.describe())
		}
	}
	if len(awake) == 0 {
		message := plural(frozen, "member") + " frozen"
		return append(ops, SetPhase{To: api.ClusterPaused, Message: message}, Emit{Reason: EventPaused, Message: message})
	}
	deadline := l.since().Add(l.Deadlines.Pause)
	if l.Now.Before(deadline) {
		l.wake(deadline)
		return l.again(ops)
	}
	return append(ops, l.say(fmt.Sprintf("not frozen within %s: %s", l.Deadlines.Pause, list(awake)))...)
}

// planResuming waits until nobody is frozen any more; from there on the cluster is a running one.
func (l *look) planResuming() []ClusterOperation {
	for _, m := range l.members {
		if m.loss == "" && (m.phase == api.MemberPaused || m.unknown()) {
			return l.again(l.planLosses())
		}
	}
	return l.planRunning()
}
