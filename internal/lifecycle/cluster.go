package lifecycle

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Deadlines bound what others than the user move on.
type Deadlines struct {
	// Start bounds the starting of a cluster, and of each member that joins it later. Clean bounds the cleaning of an assignment.
	Start, Clean time.Duration
	// Machine is Start for members that have whole machines: their firmware may need minutes, and a boot that fails is tried once more.
	Machine time.Duration
	// Unhealthy is how long a member may be unhealthy before it is lost.
	Unhealthy time.Duration
	// Grace is how long the jobs of a cluster whose time limit has passed are given to end.
	Grace time.Duration
	// Pause bounds freezing and waking.
	Pause time.Duration
	// Save bounds writing all members' memory to disk. Each restore has the start deadline.
	Save time.Duration
	// Move bounds the move of a running member, from when its other node has begun with it.
	Move time.Duration
}

// DefaultDeadlines are long enough for a machine that boots, and short enough for a person who waits.
func DefaultDeadlines() Deadlines {
	return Deadlines{
		Start: 5 * time.Minute, Machine: 40 * time.Minute, Clean: 10 * time.Minute, Unhealthy: 10 * time.Second, Grace: 30 * time.Second, Pause: time.Minute,
		Save: 15 * time.Minute, Move: time.Hour,
	}
}

// Observation is what the agent of its node last said of an assignment, to this leader.
type Observation struct {
	Phase   api.MemberPhase
	Message string
	// Failure is why what is asked of it beyond its life, to be saved, failed; its node tries again.
	Failure string
	// StateBytes is the size of a state that is on disk. Verified names the verification of a snapshot's state that Failure is of.
	StateBytes int64
	Verified   string
	// Moved is what it took to bring it there from another node; nil while that is not known.
	Moved *api.MoveReport
	// Proved are those who say now that nothing of it is left, verified by looking. Unproved is why a fabric does not.
	Proved   []api.Prover
	Unproved string
	// Current: the generated files it has are those it should have, by the record this is an input with.
	Current bool
	// Size is the number of the size that it has (api.Size.Number).
	Size int64
	// Volumes is the number of the volumes that it has (api.Assignment.VolumesNumber).
	Volumes int64
	// Layers is the number of the layers that it has (api.ClusterIntent.LayersNumber).
	Layers int64
	// Since is when it was first heard to be in Phase, by the server's clock.
	Since time.Time
}

// NodeState is the leader's view of a node.
type NodeState struct {
	Phase api.NodePhase
	// Removed: an operator removed the node from the inventory, with all that is on its disk.
	Removed bool
	// Reported: since it connected, the node has told all it has. Only then does it mean something that it did not tell of a member.
	Reported bool
	// Drained: an operator wants it to become empty. DrainedAt is since when members are to move off it, zero: they are not.
	Drained   bool
	DrainedAt time.Time
}

// ClusterAssignment is an assignment the record's chunks hold.
type ClusterAssignment struct {
	*api.Assignment
	// Releasing and ReleasedAt are those of its chunk.
	Releasing  bool
	ReleasedAt time.Time
	// Clean: it is in the record's clean list, confirmed clean or passed to quarantine.
	Clean bool
	// Proved are those of CleanBy whose proof is in the record.
	Proved []api.Prover
}

// ClusterInput is everything a decision about one cluster depends on.
type ClusterInput struct {
	// Intent is nil when it is gone, which counts as a delete.
	Intent *api.ClusterIntent
	// Record is nil before the first decision.
	Record      *api.ClusterRecord
	Assignments []ClusterAssignment
	// Quarantined are those of its assignments that passed to quarantine; only a cluster that is being deleted needs them.
	Quarantined []*api.Quarantine
	// Observed by assignment ID; Nodes by name. What is missing is not heard of.
	Observed map[string]Observation
	Nodes    map[string]NodeState
	// Volumes are the claims on volumes that its members should have. One whose volume has no node yet is missing.
	Volumes []api.VolumeClaim
	Now     time.Time
	// LeaderSince is when this leader took over. Deadlines count from then at the earliest: the time in which nobody led is
	// nobody's fault. The time limit does not: it is the user's own.
	LeaderSince time.Time
	Deadlines   Deadlines
}

// PlanCluster returns what is to be done about a cluster now. All record changes of one list belong in one commit; needs are acted on
// once there is nothing to commit before.
func PlanCluster(in ClusterInput) []ClusterOperation {
	phase := in.phase()
	switch {
	case phase == api.ClusterDeleting:
		return in.planDeleting()
	case in.deleted():
		return in.planDelete("")
	case phase == api.ClusterRefused:
		return in.planDetached()
	case phase == api.ClusterPending || phase == api.ClusterQueued:
		if detached := in.planDetached(); len(detached) > 0 {
			return detached
		}
		return []ClusterOperation{Need{Kind: NeedCreate, Members: DesiredMembers(in.Intent.Spec, in.Intent.Removed)}}
	}
	ops := append(in.planCleaning(), in.planDetached()...)
	limit, over := in.planLimit()
	ops = append(ops, limit...)
	if over || phase == api.ClusterFailed { // what is left of a failed cluster stays, for its user to look at
		return ops
	}
	l := in.look()
	ops = slices.Concat(ops, l.dropSnapshots(), l.planServers(), l.planLayers())
	if phase == api.ClusterReady && len(in.Record.Files) > 0 { // all who were paused have theirs
		ops = append(ops, KeepFiles{})
	}
	if volumes := l.planVolumes(); len(volumes) > 0 {
		return append(ops, volumes...)
	}
	if restore, decided := l.planSnapshotRestore(); decided {
		return append(ops, restore...)
	}
	switch {
	case phase == api.ClusterSnapshotting:
		return append(ops, l.planSnapshotting()...)
	case Frozen(phase):
		return append(ops, l.planFrozen()...)
	case Shelving(phase):
		return append(ops, l.planShelving()...)
	case l.anyMoving():
		return append(ops, l.planRunning()...)
	case WantsSaved(in.Intent, in.Record) && phase != api.ClusterStarting && phase != api.ClusterResuming:
		return append(ops, in.change(api.ClusterSaving, EventSaving, "saving "+plural(l.held(), "member"))...)
	case phase == api.ClusterReady && l.wantsSnapshot():
		return append(ops, l.beginSnapshot()...)
	case in.Intent.Paused && phase != api.ClusterStarting:
		return append(ops, l.beginPause()...)
	case phase == api.ClusterStarting:
		return append(ops, l.planStarting()...)
	case l.anySaved(): // its save was taken back, and ended nevertheless
		return append(ops, in.change(api.ClusterRestoring, EventRestoring, "restoring "+plural(l.held(), "member"))...)
	case phase == api.ClusterResuming:
		return append(ops, l.planResuming()...)
	default:
		return append(ops, l.planRunning()...)
	}
}

func (in ClusterInput) phase() api.ClusterPhase {
	if in.Record == nil {
		return api.ClusterPending
	}
	return in.Record.Phase
}

func (in ClusterInput) deleted() bool { return in.Intent == nil || in.Intent.DeleteRequestedAt != nil }

// since is when the phase began, as far as deadlines are concerned.
func (in ClusterInput) since() time.Time { return latest(in.LeaderSince, in.Record.ChangedAt) }

// change is a change of phase with its event, or only of its message, or nothing when both are so already.
func (in ClusterInput) change(to api.ClusterPhase, reason, message string) []ClusterOperation {
	if to == in.Record.Phase {
		return in.say(message)
	}
	return []ClusterOperation{SetPhase{To: to, Message: message}, Emit{Reason: reason, Message: message}}
}

// say changes the message alone.
func (in ClusterInput) say(message string) []ClusterOperation {
	if message == in.Record.Message {
		return nil
	}
	return []ClusterOperation{SetPhase{To: in.Record.Phase, Message: message}}
}

// look is what a plan finds when it looks at a cluster that has its place: who should be there, who is, and who must be replaced.
type look struct {
	ClusterInput
	size int // how many members are desired
	// members are those held and desired; spares the places held for replacements; surplus are held of either kind and not desired.
	members []member
	spares  []ClusterAssignment
	surplus []ClusterAssignment
	// missing are desired and have no place, nor wait for a replacement.
	missing []WantedMember
	// waiting are the members of the record's lost ones that are still desired; dropped are the names of the others.
	waiting []api.LostMember
	dropped []string
	// servers are those of GPUs that are lost.
	servers []lostServer
	// successors are where saved members are to go on, by the ID of the member.
	successors map[string]ClusterAssignment
	// next is when the clock alone changes something; zero: never.
	next time.Time
}

// member is a held member as it is now.
type member struct {
	ClusterAssignment
	phase   api.MemberPhase
	message string
	seen    Observation
	// loss is why it must be replaced; empty: it need not be.
	loss string
}

// look sorts out who is there. While a cluster is frozen or saved its size stays as it is.
func (in ClusterInput) look() look {
	l := look{ClusterInput: in, members: make([]member, 0, len(in.Assignments)), successors: in.successors()}
	desired := desiredNames(in.Intent.Spec, in.Intent.Removed)
	l.size = desired.size
	frozen := Frozen(in.Record.Phase) || Shelving(in.Record.Phase)
	spares := map[string]bool{}
	for _, s := range DesiredSpares(in.Intent.Spec) {
		spares[s.Member] = true
	}
	there, parts := 0, in.partsByMember()
	for _, a := range in.Assignments {
		switch {
		case a.Releasing || a.IsPart() || a.IsSnapshot():
		case a.Spare && spares[a.Member] && in.sizedAsWanted(a.Assignment) && in.Nodes[a.Node].Phase != api.NodeDown && !in.Nodes[a.Node].Drained:
			l.spares = append(l.spares, a)
		case a.IsMember() && (frozen || desired.has(a.Group, a.Member)):
			there++
			m := member{ClusterAssignment: a, seen: in.Observed[a.ID]}
			m.phase, m.message = MemberPhase(a, in.Observed, in.Nodes)
			if m.loss = in.withParts(&m, parts[a.ID]); m.loss == "" {
				var at time.Time
				if m.loss, at = in.loss(m); m.loss == "" {
					l.wake(at)
				}
			}
			if m.loss != "" && l.undecided(m) {
				m.loss = ""
			}
			l.withServers(&m, parts[a.ID])
			l.members = append(l.members, m)
		default:
			l.surplus = append(l.surplus, a)
		}
	}
	for _, m := range in.Record.Lost {
		if desired.has(m.Group, m.Member) {
			there++
			l.waiting = append(l.waiting, m)
		} else {
			l.dropped = append(l.dropped, m.Member)
		}
	}
	if there < l.size {
		l.missing = MissingMembers(DesiredMembers(in.Intent.Spec, in.Intent.Removed), in.Assignments, in.Record.Lost)
	}
	return l
}

// wake moves the next look to at, if it is not earlier already.
func (l *look) wake(at time.Time) {
	if !at.IsZero() && (l.next.IsZero() || at.Before(l.next)) {
		l.next = at
	}
}

// again asks for the next look that the clock calls for.
func (l *look) again(ops []ClusterOperation) []ClusterOperation {
	if l.next.IsZero() {
		return ops
	}
	return append(ops, WakeAt{Time: l.next})
}

func (l *look) held() int { return len(l.members) }

func latest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.After(first) {
			first = t
		}
	}
	return first
}
