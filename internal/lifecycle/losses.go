package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// loss says why a member must be replaced, or when it must be if nothing changes until then.
func (in ClusterInput) loss(m member) (string, time.Time) {
	phase := in.Record.Phase
	began := latest(in.LeaderSince, m.TakenAt, m.seen.Since)
	within := func(began time.Time, patience time.Duration, reason string) (string, time.Time) {
		if at := began.Add(patience); in.Now.Before(at) {
			return "", at
		}
		return reason, time.Time{}
	}
	switch {
	case m.Saved && in.Nodes[m.Node].Removed:
		return fmt.Sprintf("node %s was removed from the inventory", m.Node), time.Time{}
	case m.Saved && m.phase != api.MemberFailed: // what is on a disk is there when its node is back
		return "", time.Time{}
	case in.Nodes[m.Node].Phase == api.NodeDown:
		return fmt.Sprintf("node %s is down", m.Node), time.Time{}
	case m.phase == api.MemberFailed:
		return cmp.Or(m.message, "the member exited"), time.Time{}
	case Frozen(phase): // a frozen member can't speak for itself
		return "", time.Time{}
	case phase == api.ClusterSaving || phase == api.ClusterSaved: // nor can one that is being saved
		return "", time.Time{}
	case m.phase == api.MemberUnhealthy:
		return within(began, in.Deadlines.Unhealthy, fmt.Sprintf("unhealthy for %s%s", in.Deadlines.Unhealthy, because(m.message)))
	case phase == api.ClusterStarting: // its own deadline bounds it
		return "", time.Time{}
	case m.phase == api.MemberPaused:
		return within(latest(began, in.Record.ChangedAt), in.Deadlines.Pause,
			fmt.Sprintf("still frozen after %s%s", in.Deadlines.Pause, because(m.message)))
	case m.phase == api.MemberAssigned: // since when its node does not have it is not known
		return within(latest(began, in.Record.ChangedAt), in.startOf(m.Assignment), fmt.Sprintf("not started within %s", in.startOf(m.Assignment)))
	case m.phase == api.MemberPreparing || m.phase == api.MemberStarting:
		return within(began, in.startOf(m.Assignment), fmt.Sprintf("still %s after %s%s", m.phase, in.startOf(m.Assignment), because(m.message)))
	default:
		return "", time.Time{}
	}
}

// startOf is how long a member may take to start.
func (in ClusterInput) startOf(a *api.Assignment) time.Duration {
	if a.ByProvisioner() {
		return max(in.Deadlines.Machine, in.Deadlines.Start)
	}
	return in.Deadlines.Start
}

// planLosses lets go of every lost member and notes its name for replacement. What a record notes is bounded: beyond that, members are
// let go of when others have been replaced.
func (l *look) planLosses() []ClusterOperation {
	var ops []ClusterOperation
	room := membersPerLook - len(l.Record.Lost)
	for _, m := range l.members {
		if m.loss != "" && room > 0 {
			room--
			ops = append(ops, Release{IDs: []string{m.ID}, Lost: true, Reason: m.loss},
				Emit{Reason: EventMemberLost, Message: m.lost(), Member: m.Member, Node: m.Node})
		}
	}
	return ops
}

// backoff is how long a name waits before its replacement is asked for, by attempt: what dies again and again is not to keep a site
// busy.
func backoff(attempt int) time.Duration {
	pauses := []time.Duration{0, 0, 2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute}
	return pauses[min(attempt, len(pauses)-1)]
}

// needs asks for a place for everyone who has none: one for each lost member, one for all new members together, one for each spare.
func (l *look) needs() []ClusterOperation {
	var ops []ClusterOperation
	for _, m := range l.waiting {
		if at := m.Since.Add(backoff(m.Attempt)); l.Now.Before(at) {
			l.wake(at)
			continue
		}
		ops = append(ops, Need{Kind: NeedHeal, Members: []WantedMember{{
			Group: m.Group, Member: m.Member, Rank: m.Rank, Replaces: m.Assignment, Avoid: m.Node, Attempt: m.Attempt, Regains: m.Saved, Held: m.Shape,
		}}})
	}
	if len(l.missing) > 0 {
		ops = append(ops, Need{Kind: NeedScale, Members: l.missing})
	}
	return append(ops, missingSpares(DesiredSpares(l.Intent.Spec), l.spares)...)
}

func because(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}
