package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Deadlines bound the phases that others than the user move on.
type Deadlines struct {
	// Start bounds starting, Clean bounds deleting.
	Start, Clean time.Duration
}

// DefaultDeadlines are long enough for a machine that boots, and short enough for a person who waits.
func DefaultDeadlines() Deadlines { return Deadlines{Start: 5 * time.Minute, Clean: 10 * time.Minute} }

// Observation is what the agent of its node last said of an assignment, to this leader.
type Observation struct {
	Phase   api.MemberPhase
	Message string
	// Clean: nothing of it is left on its node, verified by looking.
	Clean bool
}

// NodeState is what the leader holds a node to be.
type NodeState struct {
	Phase api.NodePhase
	// Reported: since it connected, the node has told all it has. Only then does it mean something that it did not tell of a member.
	Reported bool
}

// ClusterAssignment is an assignment the record's chunks hold.
type ClusterAssignment struct {
	*api.Assignment
	// Releasing is that of its chunk.
	Releasing bool
	// Clean: it is in the record's clean list, confirmed clean or passed to quarantine.
	Clean bool
}

// ClusterInput is everything a decision about one cluster depends on.
type ClusterInput struct {
	// Intent is nil when it is gone, which counts as a delete.
	Intent *api.ClusterIntent
	// Record is nil before the first decision.
	Record      *api.ClusterRecord
	Assignments []ClusterAssignment
	// Observed by assignment ID; Nodes by name. What is missing is not heard of.
	Observed map[string]Observation
	Nodes    map[string]NodeState
	Now      time.Time
	// LeaderSince is when this leader took over. Deadlines count from then at the earliest: the time in which nobody led is
	// nobody's fault.
	LeaderSince time.Time
	Deadlines   Deadlines
}

// PlanCluster returns what is to be done about a cluster now. All record changes of one list belong in one commit.
func PlanCluster(in ClusterInput) []Operation {
	phase := in.phase()
	switch {
	case phase == api.ClusterDeleting:
		return in.planDeleting()
	case in.deleted():
		return in.planDelete()
	case phase == api.ClusterPending:
		return []Operation{Place{}}
	}
	ops := in.confirmClean()
	switch phase {
	case api.ClusterStarting:
		return append(ops, in.planStarting()...)
	case api.ClusterReady, api.ClusterDegraded:
		return append(ops, in.planRunning()...)
	default: // refused and failed rest until the user deletes them
		return ops
	}
}

// PlanPlaced returns what to commit with the first generation, once placement has found a place for all members.
func PlanPlaced(members, nodes int) []Operation {
	text := fmt.Sprintf("%s on %s", plural(members, "member"), plural(nodes, "node"))
	return []Operation{
		SetPhase{To: api.ClusterStarting, Message: "waiting for " + text},
		Emit{Reason: EventPlaced, Message: "placed " + text},
	}
}

// PlanRefused returns what to do about a refusal. While nodes are not heard of that would make the cluster fit (undecided), it
// stays pending: they are ready or down within the death timer, and it is asked again.
func PlanRefused(message string, undecided bool, now time.Time) []Operation {
	if undecided {
		return []Operation{WakeAt{Time: now.Add(time.Second)}}
	}
	return []Operation{SetPhase{To: api.ClusterRefused, Message: message}, Emit{Reason: EventRefused, Message: message}}
}

// PlanQuarantine frees a quarantined assignment once its node's agent confirms it clean after all.
func PlanQuarantine(q api.Quarantine, clean bool) []Operation {
	if !clean {
		return nil
	}
	a := q.Assignment
	return []Operation{
		EndQuarantine{ID: a.ID},
		Emit{Reason: EventQuarantineOver, Message: "cleaned at last; its resources are free", Member: a.Member, Node: a.Node},
	}
}

// MemberPhase is the phase of a member as the leader knows it, with the reason.
func MemberPhase(a ClusterAssignment, observed map[string]Observation, nodes map[string]NodeState) (api.MemberPhase, string) {
	seen, heard := observed[a.ID]
	node := nodes[a.Node]
	switch {
	case a.Releasing:
		return api.MemberReleasing, seen.Message
	case node.Phase == api.NodeDown:
		return api.MemberUnknown, fmt.Sprintf("node %s is down", a.Node)
	case node.Phase != api.NodeReady || !node.Reported:
		return api.MemberUnknown, fmt.Sprintf("node %s is not heard of", a.Node)
	case !heard:
		return api.MemberAssigned, ""
	default:
		return seen.Phase, seen.Message
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
func (in ClusterInput) since() time.Time {
	if in.LeaderSince.After(in.Record.ChangedAt) {
		return in.LeaderSince
	}
	return in.Record.ChangedAt
}

func (in ClusterInput) planDelete() []Operation {
	var ids []string
	for _, a := range in.Assignments {
		if !a.Releasing {
			ids = append(ids, a.ID)
		}
	}
	if in.Record == nil || len(in.Record.Chunks) == 0 {
		return []Operation{Forget{}, Emit{Reason: EventDeleted, Message: "deleted; it held nothing"}}
	}
	message := "stopping and cleaning " + plural(len(in.Assignments), "member")
	return []Operation{
		Release{IDs: ids},
		SetPhase{To: api.ClusterDeleting, Message: message},
		Emit{Reason: EventDeleting, Message: message},
	}
}

func (in ClusterInput) planDeleting() []Operation {
	ops := in.confirmClean()
	left := in.unclean()
	if len(left) == 0 && len(ops) == 0 {
		return []Operation{Forget{}, Emit{Reason: EventDeleted, Message: "deleted; nothing is left of it"}}
	}
	if len(left) == 0 {
		return ops // the commit of these confirmations is followed by another look
	}
	deadline := in.since().Add(in.Deadlines.Clean)
	if in.Now.Before(deadline) {
		return append(ops, WakeAt{Time: deadline})
	}
	for _, a := range left {
		reason := fmt.Sprintf("not clean within %s: %s", in.Deadlines.Clean, in.whyUnclean(a))
		ops = append(ops, Quarantine{ID: a.ID, Reason: reason},
			Emit{Reason: EventQuarantined, Message: reason, Member: a.Member, Node: a.Node})
	}
	return ops
}

// confirmClean confirms what its node's agent says is clean.
func (in ClusterInput) confirmClean() []Operation {
	var ids []string
	for _, a := range in.Assignments {
		if a.Releasing && !a.Clean && in.Observed[a.ID].Clean {
			ids = append(ids, a.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return []Operation{ConfirmClean{IDs: ids}}
}

// unclean are the assignments that still hold resources and that nobody says are clean.
func (in ClusterInput) unclean() []ClusterAssignment {
	var left []ClusterAssignment
	for _, a := range in.Assignments {
		if !a.Clean && !(a.Releasing && in.Observed[a.ID].Clean) {
			left = append(left, a)
		}
	}
	return left
}

func (in ClusterInput) whyUnclean(a ClusterAssignment) string {
	switch node := in.Nodes[a.Node]; {
	case node.Phase == api.NodeDown:
		return fmt.Sprintf("node %s is down", a.Node)
	case node.Phase != api.NodeReady:
		return fmt.Sprintf("node %s is not heard of", a.Node)
	default:
		return cmp.Or(in.Observed[a.ID].Message, fmt.Sprintf("the agent of node %s does not say why", a.Node))
	}
}

func (in ClusterInput) planStarting() []Operation {
	failed, waiting := in.sort(api.MemberFailed), in.sort("")
	if len(failed) > 0 {
		return in.change(api.ClusterFailed, EventFailed, list(failed))
	}
	if len(waiting) == 0 {
		return in.change(api.ClusterReady, EventReady, "")
	}
	deadline := in.since().Add(in.Deadlines.Start)
	if in.Now.Before(deadline) {
		return []Operation{WakeAt{Time: deadline}}
	}
	return in.change(api.ClusterFailed, EventFailed, fmt.Sprintf("not ready within %s: %s", in.Deadlines.Start, list(waiting)))
}

func (in ClusterInput) planRunning() []Operation {
	lost, waiting := in.lost(), in.sort("")
	switch {
	case in.Record.Phase == api.ClusterReady && len(lost) > 0:
		return in.change(api.ClusterDegraded, EventDegraded, list(lost))
	case in.Record.Phase == api.ClusterDegraded && len(waiting) == 0:
		return in.change(api.ClusterReady, EventReady, "")
	case in.Record.Phase == api.ClusterDegraded && len(lost) > 0 && list(lost) != in.Record.Message:
		return []Operation{SetPhase{To: api.ClusterDegraded, Message: list(lost)}}
	default:
		return nil
	}
}

// change is a change of phase with its event, or nothing where the table has no such transition.
func (in ClusterInput) change(to api.ClusterPhase, reason, message string) []Operation {
	if Clusters().Check(in.Record.Phase, to) != nil {
		return nil
	}
	text := message
	if to == api.ClusterReady {
		text = fmt.Sprintf("%s ready", plural(in.held(), "member"))
	}
	return []Operation{SetPhase{To: to, Message: message}, Emit{Reason: reason, Message: text}}
}

func (in ClusterInput) held() int {
	n := 0
	for _, a := range in.Assignments {
		if !a.Releasing {
			n++
		}
	}
	return n
}

// sort returns what is to say of each held member in this phase; "" stands for every phase but ready.
func (in ClusterInput) sort(phase api.MemberPhase) []string {
	var found []string
	for _, a := range in.Assignments {
		if a.Releasing {
			continue
		}
		p, message := MemberPhase(a, in.Observed, in.Nodes)
		if p == phase || phase == "" && p != api.MemberReady {
			found = append(found, describe(a, p, message))
		}
	}
	return found
}

// lost are the held members that are known not to be ready: their agent says so, or their node is down.
func (in ClusterInput) lost() []string {
	var found []string
	for _, a := range in.Assignments {
		if a.Releasing {
			continue
		}
		p, message := MemberPhase(a, in.Observed, in.Nodes)
		if p == api.MemberReady || p == api.MemberUnknown && in.Nodes[a.Node].Phase != api.NodeDown {
			continue
		}
		found = append(found, describe(a, p, message))
	}
	return found
}

func describe(a ClusterAssignment, phase api.MemberPhase, message string) string {
	text := fmt.Sprintf("%s on %s is %s", a.Member, a.Node, phase)
	if message != "" {
		text += " (" + message + ")"
	}
	return text
}

// listed is how many members a message names.
const listed = 4

func list(items []string) string {
	if more := len(items) - listed; more > 0 {
		return strings.Join(items[:listed], "; ") + fmt.Sprintf("; and %d more", more)
	}
	return strings.Join(slices.Clone(items), "; ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
