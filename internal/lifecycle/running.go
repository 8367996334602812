package lifecycle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// startAttempts is how often a member is placed, in all, while its cluster has never been ready.
const startAttempts = 3

// planStarting waits for a cluster to be ready for the first time. A member that fails is replaced, twice.
func (l *look) planStarting() []ClusterOperation {
	var given []string
	for _, m := range l.members {
		if m.loss != "" && m.Attempt+1 >= startAttempts {
			given = append(given, m.lost()+fmt.Sprintf(", the last of %d attempts", startAttempts))
		}
	}
	if len(given) > 0 {
		return l.change(api.ClusterFailed, EventFailed, list(given))
	}
	if l.settled() {
		return l.ready()
	}
	if l.well() && len(l.members) > 0 && len(l.missing) > 0 {
		// It has all that it was placed with; what its user has asked for since must not make it fail.
		return l.change(api.ClusterScaling, EventScaling, "resizing to "+plural(l.size, "member"))
	}
	patience := l.Deadlines.Start
	for _, m := range l.members {
		patience = max(patience, l.startOf(m.Assignment))
	}
	deadline := l.since().Add(patience)
	if !l.Now.Before(deadline) {
		return l.change(api.ClusterFailed, EventFailed, fmt.Sprintf("not ready within %s: %s", patience, list(l.unready())))
	}
	l.wake(deadline)
	ops := append(l.planSize(), l.planLosses()...)
	if lost := l.lost(); len(lost) > 0 {
		ops = append(ops, l.say(list(lost))...)
	}
	return l.again(append(ops, l.needs()...))
}

// planRunning keeps a cluster that was ready at what its user wants.
func (l *look) planRunning() []ClusterOperation {
	moves, committed := l.planMoves()
	if committed {
		return moves
	}
	ops := append(l.planResized(), l.planSize()...)
	ops = append(append(ops, l.planLosses()...), l.turn()...)
	return l.again(slices.Concat(ops, l.needs(), moves, l.planResizes()))
}

// turn is the phase that a running cluster should have now.
func (l *look) turn() []ClusterOperation {
	was := l.Record.Phase
	trouble := slices.Concat(l.lost(), l.troubled())
	coming := l.known()
	switch {
	case len(trouble) > 0:
		return l.change(api.ClusterDegraded, EventDegraded, list(trouble))
	case len(coming) > 0 && (was == api.ClusterReady || was == api.ClusterDegraded):
		return l.change(api.ClusterDegraded, EventDegraded, list(coming))
	case l.settled():
		return l.ready()
	case was == api.ClusterDegraded && l.unheard():
		return nil // nothing better is known of whom it was degraded for
	case len(l.missing) > 0 || len(coming) > 0 || slices.ContainsFunc(l.surplus, isMember):
		return l.change(api.ClusterScaling, EventScaling, "resizing to "+plural(l.size, "member"))
	default:
		return nil // someone is not heard of, or has not got its new files yet
	}
}

// ready is the end of every change, or nothing when the cluster is ready already.
func (l *look) ready() []ClusterOperation {
	message := cmp.Or(l.unsaved(), l.unpausable())
	if l.Record.Phase == api.ClusterReady {
		return l.say(message)
	}
	return []ClusterOperation{SetPhase{To: api.ClusterReady, Message: message}, Emit{Reason: EventReady, Message: plural(l.held(), "member") + " ready"}}
}

// settled reports whether exactly the desired members are there, and each is ready and has the files that name all others.
func (l *look) settled() bool {
	return l.well() && len(l.missing) == 0 && !slices.ContainsFunc(l.surplus, isMember)
}

// well reports whether nobody is lost, and each member that is there is ready and has its files.
func (l *look) well() bool {
	if len(l.waiting) > 0 || len(l.dropped) > 0 {
		return false
	}
	return !slices.ContainsFunc(l.members, func(m member) bool { return m.loss != "" || m.phase != api.MemberReady || !m.seen.Current })
}

// lost says who has no place any more, or is about to lose it.
func (l *look) lost() []string {
	var texts []string
	for _, m := range l.waiting {
		texts = append(texts, lostText(m.Member, m.Node, m.Reason))
	}
	for _, m := range l.members {
		if m.loss != "" {
			texts = append(texts, m.lost())
		}
	}
	return texts
}

// troubled says which members that count towards a usable cluster can't be used now. A member that a scale-up has just added does not
// make it less usable while it comes up.
func (l *look) troubled() []string {
	var texts []string
	for _, m := range l.members {
		if m.loss == "" && !m.unknown() && m.phase != api.MemberReady && !l.joining(m) && !l.arriving(m) {
			texts = append(texts, m.describe())
		}
	}
	return texts
}

// joining reports whether a member was added by a scale-up and still has time to come up.
func (l *look) joining(m member) bool {
	if m.phase == api.MemberUnhealthy || m.Replaces != "" || m.From != "" || l.Record.ReadyAt == nil || !m.TakenAt.After(*l.Record.ReadyAt) {
		return false
	}
	until := m.TakenAt.Add(l.startOf(m.Assignment))
	if !l.Now.Before(until) {
		return false
	}
	l.wake(until)
	return true
}

// known says which members are known not to be ready.
func (l *look) known() []string {
	var texts []string
	for _, m := range l.members {
		if !m.unknown() && m.phase != api.MemberReady && !l.arriving(m) {
			texts = append(texts, m.describe())
		}
	}
	return texts
}

// unheard reports whether the node of a member is not heard of: no evidence of anything.
func (l *look) unheard() bool { return slices.ContainsFunc(l.members, member.unknown) }

// unready says what a cluster that is not settled waits for.
func (l *look) unready() []string {
	texts := l.lost()
	for _, m := range l.members {
		switch {
		case m.loss != "":
		case m.phase != api.MemberReady:
			texts = append(texts, m.describe())
		case !m.seen.Current:
			texts = append(texts, fmt.Sprintf("%s on %s has not received its new files", m.Member, m.Node))
		}
	}
	for _, m := range l.missing {
		texts = append(texts, m.Member+" is not placed yet")
	}
	return texts
}

// planSize lets go of what nobody wants any more: surplus members, the highest ranks first, surplus spares, and names of lost members.
func (l *look) planSize() []ClusterOperation {
	var ops []ClusterOperation
	if len(l.dropped) > 0 {
		ops = append(ops, Drop{Members: l.dropped})
	}
	if len(l.surplus) == 0 {
		return ops
	}
	slices.SortFunc(l.surplus, func(a, b ClusterAssignment) int { return b.Rank - a.Rank })
	var ids, names []string
	for _, a := range l.surplus[:min(len(l.surplus), membersPerLook)] {
		ids = append(ids, a.ID)
		if isMember(a) {
			names = append(names, a.Member)
		}
	}
	ops = append(ops, Release{IDs: ids, Reason: "no longer needed"})
	if len(names) > 0 {
		ops = append(ops, Emit{Reason: EventReleased, Message: "released " + plural(len(names), "member") + ": " + list(names)})
	}
	return ops
}

func isMember(a ClusterAssignment) bool { return a.IsMember() }
