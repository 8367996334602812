package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// A snapshot is a set of assignments, one for each member and on that member's node, which keep the members' states. They are made while all
// members stand still (ClusterSnapshotting), and the snapshot is true from the commit that notes it (NoteSnapshot).

// Snapshottable returns why a cluster can't have snapshots, or "". What its image is, only the site knows.
func Snapshottable(spec api.ClusterSpec) string {
	for _, g := range spec.Groups {
		switch {
		case g.Stack != api.StackVM:
			return fmt.Sprintf("group %q has stack %q; only members of stack %q have snapshots", g.Name, g.Stack, api.StackVM)
		case plugged(&g) != "":
			return fmt.Sprintf("group %q has functions of adapters (%s), which members that stand still do not let go; save the cluster instead", g.Name, plugged(&g))
		case len(g.Devices) > 0:
			return fmt.Sprintf("group %q has devices (%s), whose state can't be saved", g.Name, g.Devices[0].Class)
		}
	}
	return ""
}

// plugged names a network on which members of a group have functions of adapters as their own devices, "" for none. MACVTAP ports are the host's.
func plugged(g *api.Group) string {
	for _, n := range g.Functions() {
		if n.Interface != api.InterfaceMACVTAP {
			return n.Title()
		}
	}
	return ""
}

// snapshotNoted returns how a request for a snapshot ended; nil while it has not.
func snapshotNoted(record *api.ClusterRecord, s api.SnapshotIntent) *api.SnapshotRecord {
	if record == nil {
		return nil
	}
	i := slices.IndexFunc(record.Snapshots, func(r api.SnapshotRecord) bool { return r.Name == s.Name && r.AskedAt.Equal(s.AskedAt) })
	if i < 0 {
		return nil
	}
	return &record.Snapshots[i]
}

// OfSnapshot reports whether an assignment keeps the state of a member in a snapshot.
func OfSnapshot(a *api.Assignment, s api.SnapshotIntent) bool {
	return a.Snapshot != nil && a.Snapshot.Name == s.Name && a.Snapshot.AskedAt.Equal(s.AskedAt)
}

// statesOf are the held assignments of a snapshot.
func (in ClusterInput) statesOf(s api.SnapshotIntent) []ClusterAssignment {
	var states []ClusterAssignment
	for _, a := range in.Assignments {
		if !a.Releasing && OfSnapshot(a.Assignment, s) {
			states = append(states, a)
		}
	}
	return states
}

// wantedSnapshot returns the first snapshot that was asked for and was neither made nor given up.
func (in ClusterInput) wantedSnapshot() (api.SnapshotIntent, bool) {
	for _, s := range in.Intent.Snapshots {
		if snapshotNoted(in.Record, s) == nil {
			return s, true
		}
	}
	return api.SnapshotIntent{}, false
}

func (in ClusterInput) wantsSnapshot() bool {
	_, ok := in.wantedSnapshot()
	return ok
}

// dropSnapshots releases the states of snapshots that nobody wants any more, and of those that failed. A state that a member still has to begin
// with stays until then.
func (l *look) dropSnapshots() []ClusterOperation {
	begins := map[string]bool{}
	for _, m := range l.members {
		begins[m.Resumes] = m.Saved && m.phase != api.MemberSaved && m.loss == ""
	}
	var ids, forgotten []string
	for _, a := range l.Assignments {
		if a.Releasing || !a.IsSnapshot() || begins[a.ID] || len(ids) == membersPerLook {
			continue
		}
		i := slices.IndexFunc(l.Intent.Snapshots, func(s api.SnapshotIntent) bool { return OfSnapshot(a.Assignment, s) })
		if i >= 0 {
			if r := snapshotNoted(l.Record, l.Intent.Snapshots[i]); r == nil || r.Failed == "" {
				continue
			}
		}
		ids = append(ids, a.ID)
	}
	for _, r := range l.Record.Snapshots {
		if !slices.ContainsFunc(l.Intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == r.Name }) {
			forgotten = append(forgotten, r.Name)
		}
	}
	var ops []ClusterOperation
	if len(ids) > 0 {
		ops = append(ops, Release{IDs: ids, Reason: "the snapshot is deleted"})
	}
	if len(forgotten) > 0 {
		ops = append(ops, ForgetSnapshots{Names: forgotten})
	}
	return ops
}

// beginSnapshot freezes the cluster for the snapshot that is wanted.
func (l *look) beginSnapshot() []ClusterOperation {
	s, _ := l.wantedSnapshot()
	message := fmt.Sprintf("freezing %s for snapshot %s", plural(l.held(), "member"), s.Name)
	return []ClusterOperation{SetPhase{To: api.ClusterSnapshotting, Message: message}, Emit{Reason: EventSnapshotBegun, Message: message}}
}

// planSnapshotting waits until all members stand still, then has their states written, and lets the members go on once all are.
func (l *look) planSnapshotting() []ClusterOperation {
	losses := l.planLosses()
	s, wanted := l.wantedSnapshot()
	if !wanted {
		return append(losses, l.afterSnapshot("the snapshot was deleted before it was complete"))
	}
	if gone := l.lost(); len(gone) > 0 {
		return append(losses, l.failSnapshot(s, list(gone))...)
	}
	states := l.statesOf(s)
	if len(states) == 0 {
		return l.planStill(s)
	}
	bytes := make(map[string]int64, len(states))
	var open []string
	for _, a := range states {
		phase, message := MemberPhase(a, l.Observed, l.Nodes)
		switch {
		case phase == api.MemberFailed:
			return l.failSnapshot(s, fmt.Sprintf("%s on %s%s", a.Member, a.Node, because(message)))
		case phase == api.MemberSaved:
			bytes[a.ID] = min(max(l.Observed[a.ID].StateBytes, 0), a.DiskBytes)
		default:
			open = append(open, fmt.Sprintf("%s on %s is not written yet%s", a.Member, a.Node, because(message)))
		}
	}
	if len(open) == 0 {
		message := fmt.Sprintf("snapshot %s has the state of %s", s.Name, plural(len(states), "member"))
		return []ClusterOperation{NoteSnapshot{Snapshot: s, Bytes: bytes}, l.afterSnapshot(message), Emit{Reason: EventSnapshotMade, Message: message}}
	}
	return l.orFail(s, l.Deadlines.Save, open)
}

// planStill waits until all members stand still.
func (l *look) planStill(s api.SnapshotIntent) []ClusterOperation {
	var awake []string
	for _, m := range l.members {
		if m.phase != api.MemberPaused {
			awake = append(awake, m.describe())
		}
	}
	if len(awake) == 0 {
		return []ClusterOperation{HoldSnapshot{Snapshot: s}, SetPhase{
			To: api.ClusterSnapshotting, Message: fmt.Sprintf("writing %s into snapshot %s", plural(l.held(), "member"), s.Name),
		}}
	}
	return l.orFail(s, l.Deadlines.Pause, awake)
}

// orFail waits for what is open, and gives the snapshot up after a time since the cluster began with it.
func (l *look) orFail(s api.SnapshotIntent, within time.Duration, open []string) []ClusterOperation {
	deadline := l.since().Add(within)
	if !l.Now.Before(deadline) {
		return l.failSnapshot(s, fmt.Sprintf("not done within %s: %s", within, list(open)))
	}
	l.wake(deadline)
	return l.again(nil)
}

// failSnapshot gives a snapshot up. Its states are released by the next look (dropSnapshots).
func (l *look) failSnapshot(s api.SnapshotIntent, reason string) []ClusterOperation {
	text := fmt.Sprintf("snapshot %s was not made: %s", s.Name, reason)
	return []ClusterOperation{NoteSnapshot{Snapshot: s, Failed: reason}, l.afterSnapshot(text), Emit{Reason: EventSnapshotFailed, Message: text}}
}

// afterSnapshot lets the members go on, or leaves them frozen where their user wants that.
func (l *look) afterSnapshot(message string) SetPhase {
	if l.Intent.Paused {
		return SetPhase{To: api.ClusterPaused, Message: message}
	}
	return SetPhase{To: api.ClusterResuming, Message: message}
}

// SnapshotRestoreOf returns the request to restore a snapshot that has not ended; nil for none.
func SnapshotRestoreOf(intent *api.ClusterIntent, record *api.ClusterRecord) *api.SnapshotIntent {
	if intent == nil || intent.SnapshotRestore == nil || record == nil {
		return nil
	}
	if ended := record.SnapshotRestore; ended != nil && ended.AskedAt.Equal(intent.SnapshotRestore.AskedAt) {
		return nil
	}
	return intent.SnapshotRestore
}

// VerificationOf names the verification that is requested of the state of a member in a snapshot; empty: none.
func VerificationOf(intent *api.ClusterIntent, record *api.ClusterRecord, a *api.Assignment) string {
	asked := SnapshotRestoreOf(intent, record)
	if asked == nil || a.Snapshot == nil || a.Snapshot.Name != asked.Name || !a.Saved {
		return ""
	}
	return asked.AskedAt.UTC().Format(time.RFC3339Nano)
}

// Unrestorable returns why a snapshot doesn't fit a cluster's present members, with what to do about it, or "". Assignments are those that are
// not clean.
func Unrestorable(intent *api.ClusterIntent, record *api.ClusterRecord, name string, assignments []ClusterAssignment) string {
	i := slices.IndexFunc(intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == name })
	if i < 0 {
		return "there is no such snapshot"
	}
	made := snapshotNoted(record, intent.Snapshots[i])
	switch {
	case made == nil:
		return "the snapshot is not complete yet; wait until it is ready"
	case made.Failed != "":
		return "the snapshot failed: " + made.Failed
	case len(record.Lost) > 0:
		return fmt.Sprintf("member %s is lost and is being replaced; wait until the cluster is ready", record.Lost[0].Member)
	}
	states, members := map[string]*api.SnapshotClaim{}, 0
	for _, a := range assignments {
		if !a.Releasing && OfSnapshot(a.Assignment, intent.Snapshots[i]) {
			states[a.Member] = a.Snapshot
		}
	}
	for _, a := range assignments {
		if a.Releasing || !a.IsMember() {
			continue
		}
		members++
		if why := unfitFor(intent.Spec, a.Assignment, states[a.Member], assignments); why != "" {
			return why
		}
	}
	if members < len(states) {
		return fmt.Sprintf("the snapshot has %s, and the cluster %d; scale it to the size it had", plural(len(states), "member"), members)
	}
	return ""
}

// unfitFor returns why a member can't go back to its state in a snapshot, or "".
func unfitFor(spec api.ClusterSpec, m *api.Assignment, state *api.SnapshotClaim, assignments []ClusterAssignment) string {
	if state == nil {
		return fmt.Sprintf("member %s is not in the snapshot; remove it with nearmetal cluster scale --remove %s", m.Member, m.Member)
	}
	for _, g := range spec.Groups {
		if g.Name == m.Group && (g.Cores != state.Cores || int64(g.Memory) != state.MemoryBytes) {
			return fmt.Sprintf("member %s had %d cores and %s in the snapshot, and has %d cores and %s now; resize it back",
				m.Member, state.Cores, api.Bytes(state.MemoryBytes), g.Cores, g.Memory)
		}
	}
	for _, a := range assignments {
		if address := shared(a.Assignment, state.Ports); !a.Clean && a.ID != m.ID && !leaving(a, m) && address != "" {
			return fmt.Sprintf("member %s had address %s in the snapshot, which member %s has now", m.Member, address, a.Member)
		}
	}
	return ""
}

// leaving reports whether an assignment was a member's own, and what it leaves is being removed.
func leaving(a ClusterAssignment, m *api.Assignment) bool { return a.Releasing && a.Member == m.Member }

// shared is an address that an assignment has and that is among those of ports, "" for none.
func shared(a *api.Assignment, ports []api.PortClaim) string {
	if a.IsPart() {
		return ""
	}
	for _, p := range a.Ports {
		for _, q := range ports {
			if p.Network == q.Network && p.Address == q.Address {
				return q.Address.String()
			}
		}
	}
	return ""
}

// heldBack are the members whose addresses in a snapshot are not free yet: an earlier restore took the same, and what it left is being removed.
func (l *look) heldBack(s api.SnapshotIntent) (names []string) {
	for _, state := range l.statesOf(s) {
		for _, m := range l.members {
			if m.Member == state.Member && slices.ContainsFunc(l.Assignments, func(a ClusterAssignment) bool {
				return !a.Clean && a.ID != m.ID && leaving(a, m.Assignment) && shared(a.Assignment, state.Snapshot.Ports) != ""
			}) {
				names = append(names, "what an earlier restore left of "+m.Member)
			}
		}
	}
	return names
}

// planSnapshotRestore takes a request to restore a snapshot a step on. The cluster goes on as it is until the nodes have verified all states;
// decided tells that what it returns is to be committed before anything else.
func (l *look) planSnapshotRestore() (ops []ClusterOperation, decided bool) {
	asked := SnapshotRestoreOf(l.Intent, l.Record)
	phase := l.Record.Phase
	if asked == nil || phase != api.ClusterReady && phase != api.ClusterPaused || l.anyMoving() {
		return nil, false
	}
	refuse := func(reason string) ([]ClusterOperation, bool) {
		text := fmt.Sprintf("snapshot %s was not restored: %s", asked.Name, reason)
		return []ClusterOperation{RefuseSnapshotRestore{Snapshot: *asked, Reason: reason}, Emit{Reason: EventRestoreFailed, Message: text}}, true
	}
	if why := Unrestorable(l.Intent, l.Record, asked.Name, l.Assignments); why != "" {
		return refuse(why)
	}
	i := slices.IndexFunc(l.Intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == asked.Name })
	s := l.Intent.Snapshots[i]
	open := l.heldBack(s)
	for _, a := range l.statesOf(s) {
		seen := l.Observed[a.ID]
		phase, message := MemberPhase(a, l.Observed, l.Nodes)
		switch verified := seen.Verified == VerificationOf(l.Intent, l.Record, a.Assignment); {
		case l.Nodes[a.Node].Phase == api.NodeDown:
			return refuse(fmt.Sprintf("the state of %s is on node %s, which is down; bring the node back", a.Member, a.Node))
		case phase == api.MemberFailed:
			return refuse(fmt.Sprintf("%s on %s%s", a.Member, a.Node, because(message)))
		case phase == api.MemberSaved && verified && seen.Failure != "":
			return refuse(fmt.Sprintf("%s on %s: %s", a.Member, a.Node, seen.Failure))
		case phase != api.MemberSaved || !verified:
			open = append(open, fmt.Sprintf("the state of %s on %s", a.Member, a.Node))
		}
	}
	if deadline := latest(l.LeaderSince, asked.AskedAt).Add(l.Deadlines.Save); len(open) > 0 {
		if !l.Now.Before(deadline) {
			return refuse(fmt.Sprintf("not verified within %s: %s", l.Deadlines.Save, list(open)))
		}
		l.wake(deadline)
		return nil, false
	}
	message := fmt.Sprintf("restoring %s from snapshot %s", plural(l.held(), "member"), s.Name)
	return []ClusterOperation{
		RestoreSnapshot{Snapshot: s}, SetPhase{To: api.ClusterRestoring, Message: message}, Emit{Reason: EventRestoring, Message: message},
	}, true
}

// layingDown reports whether a saved member's state is still to be laid down on its node: its state is that of a snapshot.
func (m member) layingDown() bool {
	return m.Resumes != "" && m.phase != api.MemberSaved && !m.unknown()
}

// planSnapshot writes the state of a member into a snapshot, and verifies it on request. A state that could not be written is not tried again:
// the members stand still meanwhile. A state that is gone is not written again: the member has run since.
func (in MemberInput) planSnapshot() []MemberOperation {
	switch {
	case in.Host == HostSaved && in.Desired.Verify:
		return []MemberOperation{Report{Phase: api.MemberSaved}, VerifySnapshot{}}
	case in.Host == HostSaved:
		return []MemberOperation{Report{Phase: api.MemberSaved, Failure: in.Unverified}}
	case in.Desired.Save:
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: "its saved memory is no longer on its node"}}
	case in.Attempts.Count > 0:
		return []MemberOperation{Report{Phase: api.MemberFailed, Message: in.Attempts.LastError}}
	case in.Host == HostAbsent:
		return []MemberOperation{Report{Phase: api.MemberPreparing}, TakeSnapshot{}}
	default:
		return []MemberOperation{Report{Phase: api.MemberPreparing}, Clean{}}
	}
}

// planLayingDown makes a saved member of its state in a snapshot.
func (in MemberInput) planLayingDown() []MemberOperation {
	switch {
	case in.waiting():
		return []MemberOperation{in.preparing(), WakeAt{Time: in.Attempts.NextTry}}
	case in.Host == HostAbsent:
		return []MemberOperation{in.preparing(), LayDown{}}
	default:
		return []MemberOperation{in.preparing(), Clean{}}
	}
}
