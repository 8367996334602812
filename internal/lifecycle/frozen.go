package lifecycle

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// beginPause pauses a cluster. Members of whole machines must have been saved just as they are: what is not saved of them is lost when they go off.
func (l *look) beginPause() []ClusterOperation {
	if l.unpausable() != "" {
		return l.planRunning()
	}
	machines := l.machines()
	if machines == 0 {
		return l.change(api.ClusterPausing, EventPausing, "freezing "+plural(l.held(), "member"))
	}
	message := "powering off " + plural(machines, "machine")
	if others := l.held() - machines; others > 0 {
		message = "freezing " + plural(others, "member") + " and " + message
	}
	return append([]ClusterOperation{KeepFiles{Files: l.Intent.PausedFiles}}, l.change(api.ClusterPausing, EventPausing, message)...)
}

// machines is how many members that are not lost have whole machines.
func (l *look) machines() (n int) {
	for _, m := range l.members {
		if m.loss == "" && m.ByProvisioner() {
			n++
		}
	}
	return n
}

// unpausable is why a cluster whose user asked for a pause goes on: a member came after the others' files were saved.
func (l *look) unpausable() string {
	if !l.Intent.Paused {
		return ""
	}
	for _, m := range l.members {
		saved := slices.ContainsFunc(l.Intent.PausedFiles, func(f api.MemberFiles) bool { return f.Assignment == m.ID && f.Member == m.Member })
		if m.loss == "" && m.ByProvisioner() && !saved {
			return fmt.Sprintf("it could not be paused: member %s was replaced before its files were saved; resume the cluster, and pause it again", m.Member)
		}
	}
	return ""
}

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
	frozen, off := 0, 0
	var awake []string
	for _, m := range l.members {
		switch {
		case m.loss != "":
		case m.phase == api.MemberPaused && m.ByProvisioner():
			off++
		case m.phase == api.MemberPaused || m.phase == api.MemberSaved: // a save that was taken back may have ended nevertheless
			frozen++
		default:
			awake = append(awake, m.describe())
		}
	}
	if len(awake) == 0 {
		message := plural(frozen, "member") + " frozen"
		switch {
		case off > 0 && frozen > 0:
			message += ", " + plural(off, "machine") + " off"
		case off > 0:
			message = plural(off, "machine") + " off"
		}
		return append(ops, SetPhase{To: api.ClusterPaused, Message: message}, Emit{Reason: EventPaused, Message: message})
	}
	deadline := l.since().Add(l.Deadlines.Pause)
	if l.Now.Before(deadline) {
		l.wake(deadline)
		return l.again(ops)
	}
	return append(ops, l.say(fmt.Sprintf("not frozen within %s: %s", l.Deadlines.Pause, list(awake)))...)
}

// planResuming waits until nobody is frozen any more, and no machine boots; from there on the cluster is a running one. Who is lost is replaced meanwhile,
// once nobody is frozen.
func (l *look) planResuming() []ClusterOperation {
	coming := false
	for _, m := range l.members {
		switch {
		case m.loss != "":
		case m.phase == api.MemberPaused || m.unknown():
			return l.again(l.planLosses())
		case m.ByProvisioner() && m.phase != api.MemberReady && m.phase != api.MemberUnhealthy:
			coming = true
		}
	}
	if coming && len(l.Record.Files) > 0 {
		return l.again(append(l.planLosses(), l.needs()...))
	}
	return l.planRunning()
}
