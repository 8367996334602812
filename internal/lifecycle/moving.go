package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// arrivalGrace is how long a member that has just moved is given to be reached on its new node before its cluster counts as degraded.
const arrivalGrace = 30 * time.Second

// movesAtOnce is how many members of a cluster move at a time: each takes the bandwidth of its node, and holds room twice.
const movesAtOnce = 1

// MembersPerMove is how many members one request may move.
const MembersPerMove = 100

// wish is a member's move that somebody asked for, and that has not ended.
type wish struct {
	askedAt time.Time
	to      string // empty: anywhere else
	offline bool
	// patient: it waits for room, as whatever is to leave a drained node. Others are given up.
	patient bool
}

// wish returns the move that is asked for of a member, and false when there is none.
func (l *look) wish(m member) (wish, bool) {
	asked := l.Intent.Move
	if asked != nil && slices.Contains(asked.Members, m.ID) && !l.ended(m.ID, asked.AskedAt) {
		return wish{askedAt: asked.AskedAt, to: asked.To, offline: asked.Offline}, true
	}
	node := l.Nodes[m.Node]
	if node.Drained && !node.DrainedAt.IsZero() && Movable(l.Intent.Spec, m.Assignment, false) == "" && !l.ended(m.ID, node.DrainedAt) {
		return wish{askedAt: node.DrainedAt, patient: true}, true
	}
	return wish{}, false
}

// ended reports whether a move of a member ended, by the ID that it had when it was asked for.
func (l *look) ended(id string, askedAt time.Time) bool {
	return slices.ContainsFunc(l.Record.Moves, func(r api.MoveRecord) bool { return r.Assignment == id && r.AskedAt.Equal(askedAt) })
}

// Movable returns why a member can't move to another node, or "": while it runs or, offline, by way of its node's disk. What its image is, only the site
// knows.
func Movable(spec api.ClusterSpec, a *api.Assignment, offline bool) string {
	i := slices.IndexFunc(spec.Groups, func(g api.Group) bool { return g.Name == a.Group })
	switch {
	case i < 0:
		return "its group is no longer wanted"
	case spec.Groups[i].Stack != api.StackVM:
		return fmt.Sprintf("it runs on stack %q; only members of stack %q can move", spec.Groups[i].Stack, api.StackVM)
	case len(spec.Groups[i].Devices) > 0 || !a.OnlyPorts():
		return "it has devices, which can't move"
	case offline:
		return ""
	default:
		return staysRunning(a)
	}
}

// staysRunning returns why a member can't move while it runs, by what its ports are on and what volumes it has, or "". The driver of virtual machines has the same rules.
func staysRunning(a *api.Assignment) string {
	const instead = "; move it offline (--offline)"
	for _, v := range a.Volumes {
		if v.Block {
			return fmt.Sprintf("it has the block volume %q, which one machine at a time has", v.Name) + instead
		}
	}
	for i := range a.Ports {
		switch p := &a.Ports[i]; {
		case !p.OnFunction(a.Whole):
		case p.Kind == api.PortPF:
			return "it has a whole port of an adapter, which does not move while it runs" + instead
		case p.Kind == api.PortVF && p.GUID != "":
			return "it has a virtual function on InfiniBand, whose queue pairs do not move while it runs" + instead
		}
	}
	return ""
}

// moving returns where a member is on its way to. A successor of a saved member that is being restored is none, nor is one on the same node.
func (l *look) moving(m member) (ClusterAssignment, bool) {
	next, ok := l.successors[m.ID]
	return next, ok && !m.Saved
}

// anyMoving reports whether a member is on its way to another node: until it is there, nothing else is begun with its cluster.
func (l *look) anyMoving() bool {
	return slices.ContainsFunc(l.members, func(m member) bool {
		_, ok := l.moving(m)
		return ok
	})
}

// planMoves takes the moves under way a step on, and begins others. committed: what it returns is to be committed before anything else is
// decided.
func (l *look) planMoves() (ops []ClusterOperation, committed bool) {
	under := 0
	for _, m := range l.members {
		next, ok := l.moving(m)
		if !ok {
			continue
		}
		under++
		asked, wished := l.wish(m)
		runs, why := l.successor(m, next)
		switch {
		case runs && next.Live:
			if wished {
				ops = append(ops, MoveEnd{Assignment: m.ID, AskedAt: asked.askedAt, To: next.Node})
			}
			return append(ops, TakeOver{IDs: []string{next.ID}}, l.moved(m, next)), true
		case runs: // its node was not even asked to: its word is not believed
		case why == "" && !next.Live && m.phase == api.MemberSaved: // from now on it holds no cores here, and goes on from disk
			return []ClusterOperation{
				Shelve{IDs: []string{m.ID}},
				SetPhase{To: api.ClusterRestoring, Message: fmt.Sprintf("%s resumes on %s", m.Member, next.Node)},
			}, true
		case why == "" && !next.Live && m.seen.Failure != "":
			why = "it can't be saved" + because(m.seen.Failure)
			fallthrough
		case why != "":
			if wished {
				ops = l.notMoved(m, next, asked, why)
			}
			return append(ops, Withdraw{IDs: []string{next.ID}}), true
		}
	}
	for _, m := range l.members {
		if m.seen.Moved != nil && slices.ContainsFunc(l.Record.Moves, func(r api.MoveRecord) bool { return r.Assignment == m.From && r.Failed == "" && r.Report == nil }) {
			ops = append(ops, MoveReported{Assignment: m.From, Report: *m.seen.Moved})
		}
	}
	for _, m := range l.members {
		if under >= movesAtOnce || !l.mayMove(m) {
			continue
		}
		if asked, ok := l.wish(m); ok && (asked.to == "" || asked.to != m.Node) {
			under++
			ops = append(ops, Need{Kind: NeedMove, Members: []WantedMember{{
				Group: m.Group, Member: m.Member, Rank: NoRank, From: m.ID, Leaves: m.Node, On: asked.to, Live: !asked.offline,
				AskedAt: asked.askedAt, Patient: asked.patient,
			}}})
		}
	}
	return ops, false
}

// moved says that a member goes on elsewhere.
func (l *look) moved(m member, next ClusterAssignment) ClusterOperation {
	return Emit{Reason: EventMemberMoved, Message: fmt.Sprintf("%s moved from %s to %s", m.Member, m.Node, next.Node), Member: m.Member, Node: next.Node}
}

// notMoved ends a move that failed.
func (l *look) notMoved(m member, next ClusterAssignment, asked wish, why string) []ClusterOperation {
	return []ClusterOperation{
		MoveEnd{Assignment: m.ID, AskedAt: asked.askedAt, To: next.Node, Failed: why},
		Emit{Reason: EventMoveFailed, Message: fmt.Sprintf("%s stays on %s: %s: %s", m.Member, m.Node, next.Node, why), Member: m.Member, Node: m.Node},
	}
}

// mayMove reports whether a move of a member can begin now.
func (l *look) mayMove(m member) bool {
	switch l.Record.Phase {
	case api.ClusterReady, api.ClusterDegraded, api.ClusterScaling:
	default:
		return false
	}
	return m.loss == "" && m.phase == api.MemberReady && !ResizePending(l.Intent.Spec, m.Assignment) && !l.Intent.Paused && !WantsSaved(l.Intent, l.Record) && !l.unclean(m)
}

// undecided reports whether a member's fate depends on where it is moving to: that it ended here, or that its node fell silent, may be because it
// runs there by now.
func (l *look) undecided(m member) bool {
	next, ok := l.moving(m)
	if !ok || !next.Live {
		return false
	}
	runs, why := l.successor(m, next)
	return !runs && why == ""
}

// arriving reports whether a member has just moved, and has still time to be reached.
func (l *look) arriving(m member) bool {
	if m.From == "" || !m.Live || m.phase != api.MemberStarting {
		return false
	}
	until := m.TakenAt.Add(arrivalGrace)
	if !l.Now.Before(until) {
		return false
	}
	l.wake(until)
	return true
}
