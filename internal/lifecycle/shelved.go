package lifecycle

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// shelvesPerLook is how many members are cut down, or taken over from, in one commit: up to two spans of use end with each.
const shelvesPerLook = 300

// Shelving reports whether the members of a cluster in this phase are on disk, or on the way there or back.
func Shelving(phase api.ClusterPhase) bool {
	return phase == api.ClusterSaving || phase == api.ClusterSaved || phase == api.ClusterRestoring
}

// WantsSaved reports whether a cluster's members are to be on disk: its user asked for it, or a restore was given up.
func WantsSaved(intent *api.ClusterIntent, record *api.ClusterRecord) bool {
	return intent.Saved != gaveUp(intent, record)
}

// gaveUp reports whether the save or the restore that was asked for last was given up.
func gaveUp(intent *api.ClusterIntent, record *api.ClusterRecord) bool {
	return record != nil && record.GaveUp != nil && intent.SaveAskedAt != nil && record.GaveUp.AskedAt.Equal(*intent.SaveAskedAt)
}

// Saves reports whether a member is to be on its node's disk.
func Saves(phase api.ClusterPhase, a *api.Assignment) bool {
	return a.Saved || (phase == api.ClusterSaving || phase == api.ClusterSaved) && a.IsMember()
}

// unsaved is why a running cluster is not saved though its user asked for it.
func (in ClusterInput) unsaved() string {
	if in.Intent.Saved && gaveUp(in.Intent, in.Record) {
		return "it could not be saved: " + in.Record.GaveUp.Reason
	}
	return ""
}

// successors are where members are to go on, by the ID of the member; nil when there are none.
func (in ClusterInput) successors() map[string]ClusterAssignment {
	var all map[string]ClusterAssignment
	for _, a := range in.Assignments {
		if a.Releasing || !a.IsSuccessor() {
			continue
		}
		if all == nil {
			all = map[string]ClusterAssignment{}
		}
		all[a.From] = a
	}
	return all
}

// Heir returns the ID of the member that took over from a member, however often, or the ID of that member itself.
func (in *ClusterInput) Heir(id string) string {
	for i := 0; i < len(in.Assignments) && id != ""; i++ {
		next := slices.IndexFunc(in.Assignments, func(a ClusterAssignment) bool { return a.From == id && a.IsMember() && !a.Releasing })
		if next < 0 {
			break
		}
		id = in.Assignments[next].ID
	}
	return id
}

// anySaved reports whether a member is on disk.
func (l *look) anySaved() bool {
	return slices.ContainsFunc(l.members, func(m member) bool { return m.loss == "" && m.phase == api.MemberSaved })
}

// planShelving brings members to disk or back, until all are as their user wants them. Who is lost meanwhile is noted and replaced afterwards.
func (l *look) planShelving() []ClusterOperation {
	wanted := WantsSaved(l.Intent, l.Record)
	switch phase := l.Record.Phase; {
	case phase == api.ClusterRestoring:
		return l.planRestoring(wanted)
	case !wanted:
		return l.change(api.ClusterRestoring, EventRestoring, "restoring "+plural(l.held(), "member"))
	case phase == api.ClusterSaved:
		return l.again(l.planLosses())
	default:
		return l.planSaving()
	}
}

// planSaving waits until every member is on disk, and then lets go of the cores and the memory of all. What fails is given up: members that are
// on disk already go on.
func (l *look) planSaving() []ClusterOperation {
	ops := l.planLosses()
	var done, shelve, open []string
	for _, m := range l.members {
		switch {
		case m.loss != "":
		case m.Saved || m.phase == api.MemberSaved:
			done = append(done, m.ID)
			if !m.Saved {
				shelve = append(shelve, m.ID)
			}
		case m.seen.Failure != "":
			reason := fmt.Sprintf("%s on %s: %s", m.Member, m.Node, m.seen.Failure)
			if !gaveUp(l.Intent, l.Record) {
				return append(ops, l.giveUp(api.ClusterRestoring, EventSaveFailed, "it could not be saved", reason)...)
			}
			open = append(open, reason)
		default:
			open = append(open, m.describe())
		}
	}
	switch deadline := l.since().Add(l.Deadlines.Save); {
	case len(open) == 0 && len(shelve) > shelvesPerLook:
		return append(ops, Shelve{IDs: shelve[:shelvesPerLook]})
	case len(open) == 0:
		return append(ops, l.shelved(len(done), shelve)...)
	case l.Now.Before(deadline):
		l.wake(deadline)
		return l.again(ops)
	case !gaveUp(l.Intent, l.Record):
		return append(ops, l.giveUp(api.ClusterRestoring, EventSaveFailed, "it could not be saved", fmt.Sprintf("not saved within %s: %s", l.Deadlines.Save, list(open)))...)
	default:
		return append(ops, l.say(fmt.Sprintf("not saved within %s: %s", l.Deadlines.Save, list(open)))...)
	}
}

// shelved is the end of a save.
func (l *look) shelved(members int, shelve []string) []ClusterOperation {
	var ops []ClusterOperation
	if len(shelve) > 0 {
		ops = append(ops, Shelve{IDs: shelve})
	}
	var spares []string
	for _, a := range l.Assignments { // surplus spares too, such as one on a drained node
		if a.Spare && !a.Releasing {
			spares = append(spares, a.ID)
		}
	}
	if len(spares) > 0 {
		ops = append(ops, Release{IDs: spares, Reason: "the cluster is saved"})
	}
	message := plural(members, "member") + " saved"
	said := message
	if gaveUp(l.Intent, l.Record) {
		said = "it could not be restored: " + l.Record.GaveUp.Reason
	}
	return append(ops, SetPhase{To: api.ClusterSaved, Message: said}, Emit{Reason: EventSaved, Message: message})
}

// giveUp turns back.
func (l *look) giveUp(to api.ClusterPhase, event, what, reason string) []ClusterOperation {
	return []ClusterOperation{GiveUp{Reason: reason}, SetPhase{To: to, Message: what + ": " + reason}, Emit{Reason: event, Message: reason}}
}

// planRestoring lets every saved member go on. A member that can't is the end of the restore, and all are saved again; if that is itself the end
// of a save that failed, the member is lost.
func (l *look) planRestoring(saveAgain bool) []ClusterOperation {
	ops := l.planLosses()
	var over, withdraw, shelve []string
	var ends []ClusterOperation // of moves
	var missing []WantedMember
	var failed string
	coming, blocked, pending := false, false, false
	for _, m := range l.members {
		next, placed := l.successors[m.ID]
		// A failure is that of the save that was given up, until the node has heard so: another save would be given up for it at once.
		if m.loss == "" && (m.phase != api.MemberReady || m.seen.Failure != "") {
			coming = true
		}
		if placed {
			runs, why := l.successor(m, next)
			asked, moves := l.wish(m)
			switch {
			case runs:
				over = append(over, next.ID)
				if moves {
					ends = append(ends, MoveEnd{Assignment: m.ID, AskedAt: asked.askedAt, To: next.Node}, l.moved(m, next))
				}
			case m.loss != "": // its release takes the successor along
			case why != "" && moves: // back to where its state is
				withdraw = append(withdraw, next.ID)
				ends = append(ends, l.notMoved(m, next, asked, why)...)
				pending = true
			case why != "":
				withdraw = append(withdraw, next.ID)
				failed = fmt.Sprintf("%s on %s: %s", m.Member, next.Node, why)
			default:
				pending = true
			}
			continue
		}
		switch {
		case m.loss != "":
		case m.phase == api.MemberSaved && !m.Saved && len(shelve) < shelvesPerLook:
			shelve = append(shelve, m.ID)
		case m.Saved:
			blocked = blocked || l.unclean(m) || m.layingDown()
			missing = append(missing, WantedMember{Group: m.Group, Member: m.Member, Rank: NoRank, From: m.ID, On: m.Node, Elsewhere: !m.unknown()})
		}
	}
	if len(over) > 0 {
		ops = append(withoutReleases(ops, l, over), ends...)
		ops = append(ops, TakeOver{IDs: over[:min(len(over), shelvesPerLook)]})
		return l.again(ops) // the commit is followed by another look
	}
	ops = append(ops, ends...)
	if len(withdraw) > 0 {
		ops = append(ops, Withdraw{IDs: withdraw[:min(len(withdraw), shelvesPerLook)]})
	}
	if len(shelve) > 0 {
		ops = append(ops, Shelve{IDs: shelve})
	}
	switch {
	case saveAgain && pending: // were it let go of now, it might have begun to run, and its state be used up
		return l.again(ops)
	case saveAgain:
		return append(ops, SetPhase{To: api.ClusterSaving, Message: "saving " + plural(l.held(), "member")})
	case failed != "" && l.Intent.SaveAskedAt != nil && !gaveUp(l.Intent, l.Record):
		to := api.ClusterSaving
		if pending {
			to = api.ClusterRestoring // until these run or fail: a successor must not begin to run in a saved cluster
		}
		return append(ops, l.giveUp(to, EventRestoreFailed, "it could not be restored", failed)...)
	case failed != "":
		return append(ops, l.loseUnrestored(withdraw)...)
	case l.stateAway() != "":
		return l.again(append(ops, l.say(l.stateAway())...))
	case len(missing) > 0 && !blocked:
		return l.again(append(ops, Need{Kind: NeedRestore, Members: missing}))
	case coming:
		return l.again(ops)
	default:
		return l.planRunning()
	}
}

// stateAway says which saved members can't go on because the nodes with their states are down, and what to do; "" when there are none.
func (l *look) stateAway() string {
	var away []string
	for _, m := range l.members {
		if _, placed := l.successors[m.ID]; m.Saved && m.loss == "" && !placed && l.Nodes[m.Node].Phase == api.NodeDown {
			away = append(away, fmt.Sprintf("%s on %s", m.Member, m.Node))
		}
	}
	if len(away) == 0 {
		return ""
	}
	return fmt.Sprintf("the saved memory of %s is on a node that is down; bring the node back, or delete the cluster", list(away))
}

// successor reports whether a member goes on there, or why it never will.
func (l *look) successor(m member, a ClusterAssignment) (runs bool, failure string) {
	phase, message := MemberPhase(a, l.Observed, l.Nodes)
	switch phase {
	case api.MemberStarting, api.MemberReady:
		return true, ""
	case api.MemberUnhealthy: // it runs, unless its node removes it
		return l.Observed[a.ID].Phase == api.MemberUnhealthy, ""
	case api.MemberFailed:
		if a.Live {
			return false, cmp.Or(message, "it could not be received")
		}
		return false, "it can't go on from disk" + because(message)
	case api.MemberUnknown: // it may run
		if l.Nodes[a.Node].Phase == api.NodeDown && a.Node != m.Node {
			return false, fmt.Sprintf("node %s is down", a.Node)
		}
		return false, "" // what it goes on from is on no other node
	}
	what, within := "restored", l.Deadlines.Start
	switch {
	case !a.Live && !m.Saved:
		what, within = "saved", l.Deadlines.Save
	case a.Node != m.Node && phase == api.MemberPreparing:
		what, within = "moved", l.Deadlines.Move
	}
	began := latest(l.LeaderSince, a.TakenAt)
	if m.Saved {
		began = latest(began, m.TakenAt)
	}
	if deadline := began.Add(within); l.Now.Before(deadline) {
		l.wake(deadline)
		return false, ""
	}
	return false, fmt.Sprintf("not %s within %s%s", what, within, because(message))
}

// unclean reports whether another assignment has the member's ports and is not clean yet: an earlier attempt to restore it, or one that it
// succeeded.
func (l *look) unclean(m member) bool {
	return slices.ContainsFunc(l.Assignments, func(a ClusterAssignment) bool {
		return a.Releasing && !a.Clean && a.Member == m.Member && len(a.Ports) > 0 && len(m.Ports) > 0 && a.Ports[0].SameAs(&m.Ports[0])
	})
}

// withoutReleases drops the loss of members whose successors run: they are no more than what those left behind.
func withoutReleases(ops []ClusterOperation, l *look, over []string) []ClusterOperation {
	from := map[string]string{}
	for _, next := range l.successors {
		if slices.Contains(over, next.ID) {
			from[next.From] = next.Member
		}
	}
	return slices.DeleteFunc(ops, func(op ClusterOperation) bool {
		switch op := op.(type) {
		case Release:
			return len(op.IDs) == 1 && from[op.IDs[0]] != ""
		case Emit:
			for _, name := range from {
				if op.Reason == EventMemberLost && op.Member == name {
					return true
				}
			}
		}
		return false
	})
}

// loseUnrestored lets go of members that can neither be saved nor restored.
func (l *look) loseUnrestored(withdrawn []string) []ClusterOperation {
	var ops []ClusterOperation
	for _, m := range l.members {
		if next, ok := l.successors[m.ID]; ok && slices.Contains(withdrawn, next.ID) && len(l.Record.Lost) < membersPerLook {
			_, why := l.successor(m, next)
			ops = append(ops, Release{IDs: []string{m.ID}, Lost: true, Reason: why},
				Emit{Reason: EventMemberLost, Message: lostText(m.Member, m.Node, why), Member: m.Member, Node: m.Node})
		}
	}
	return ops
}
