package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// quarantinesPerLook is how many assignments pass into quarantine at once, each of which costs its commit a write; the next look goes on.
const quarantinesPerLook = 40

// membersPerLook is how many members are released, confirmed clean or noted as lost at once: the use that ends with it is written in the
// same commit, and the largest cluster may have a node for each of its members. The next look goes on.
const membersPerLook = 1000

// planDelete releases all that is held. Why is the beginning of what is said of it.
func (in ClusterInput) planDelete(why string) []ClusterOperation {
	// One that was placed goes through deleting even when it holds nothing any more, its members lost and cleaned.
	if phase := in.phase(); phase == api.ClusterPending || phase == api.ClusterQueued || phase == api.ClusterRefused {
		return []ClusterOperation{Forget{}, Emit{Reason: EventDeleted, Message: "deleted; the cluster held no resources"}}
	}
	var ops []ClusterOperation
	members := 0
	for _, a := range in.Assignments {
		if a.IsMember() {
			members++
		}
	}
	if ids := in.holding(); len(ids) > 0 {
		ops = append(ops, Release{IDs: ids[:min(len(ids), membersPerLook)], Reason: "the cluster is being deleted"})
	}
	message := why + "stopping and cleaning " + plural(members, "member")
	return append(ops, SetPhase{To: api.ClusterDeleting, Message: message}, Emit{Reason: EventDeleting, Message: message})
}

// holding are the IDs of what is held, spares included. Parts go with their members.
func (in ClusterInput) holding() []string {
	var ids []string
	for _, a := range in.Assignments {
		if !a.Releasing && !a.IsPart() {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

func (in ClusterInput) planDeleting() []ClusterOperation {
	ops := in.planCleaning()
	if ids := in.holding(); len(ids) > 0 {
		ops = append(ops, Release{IDs: ids[:min(len(ids), membersPerLook)], Reason: "the cluster is being deleted"})
	}
	for _, a := range in.Assignments {
		if !a.Clean {
			return ops // the commit of the last confirmation is followed by another look
		}
	}
	return []ClusterOperation{Forget{}, Emit{Reason: EventDeleted, Message: in.whatIsLeft()}}
}

// mostNamed is how many quarantined members an event names.
const mostNamed = 5

// whatIsLeft is what is said of a deleted cluster: that nothing is left only when the node of every assignment has confirmed it.
func (in ClusterInput) whatIsLeft() string {
	if len(in.Quarantined) == 0 {
		return "deleted; all nodes confirmed the cluster clean"
	}
	var names []string
	for _, q := range in.Quarantined {
		if len(names) == mostNamed {
			names = append(names, fmt.Sprintf("%d more", len(in.Quarantined)-mostNamed))
			break
		}
		names = append(names, fmt.Sprintf("%s on %s", q.Assignment.Member, q.Assignment.Node))
	}
	return "deleted, but not confirmed clean: " + strings.Join(names, ", ") + "; quarantined until their nodes confirm it"
}

// planCleaning confirms what all that must prove it say is clean, notes the proofs of what others still owe theirs for, and passes into
// quarantine what is not clean in time. Deadlines are those of each assignment: members are replaced and released in all phases.
func (in ClusterInput) planCleaning() []ClusterOperation {
	var clean []string
	var proofs []api.Proof
	var late []ClusterOperation
	var next time.Time
	for _, a := range in.Assignments {
		if !a.Releasing || a.Clean {
			continue
		}
		proved := in.proved(a)
		if len(a.CleanBy) > 1 && len(proofs) < membersPerLook {
			proofs = append(proofs, in.fresh(a)...)
		}
		switch deadline := in.cleanBy(a); {
		case a.ProvenBy(proved):
			if len(clean) < membersPerLook {
				clean = append(clean, a.ID)
			}
		case in.Now.Before(deadline):
			if next.IsZero() || deadline.Before(next) {
				next = deadline
			}
		case len(late) < 2*quarantinesPerLook:
			reason := fmt.Sprintf("not clean within %s: %s", in.Deadlines.Clean, in.whyUnclean(a))
			late = append(late, Quarantine{ID: a.ID, Reason: reason},
				Emit{Reason: EventQuarantined, Message: reason, Member: a.Member, Node: a.Node})
		}
	}
	var ops []ClusterOperation
	if len(proofs) > 0 {
		ops = append(ops, NoteProofs{Proofs: proofs})
	}
	if len(clean) > 0 {
		ops = append(ops, ConfirmClean{IDs: clean})
	}
	ops = append(ops, late...)
	if !next.IsZero() {
		ops = append(ops, WakeAt{Time: next})
	}
	return ops
}

// proved returns whose proof there is for an assignment: heard now, or in the record.
func (in ClusterInput) proved(a ClusterAssignment) func(api.Prover) bool {
	heard := in.Observed[a.ID].Proved
	return func(p api.Prover) bool { return slices.Contains(heard, p) || slices.Contains(a.Proved, p) }
}

// fresh returns the proofs heard now that are not in the record. What is proved stays so: those who must prove an assignment clean need not all
// be there at one moment.
func (in ClusterInput) fresh(a ClusterAssignment) []api.Proof {
	if a.ProvenBy(in.proved(a)) {
		return nil // it is confirmed in the same commit
	}
	var proofs []api.Proof
	for _, p := range in.Observed[a.ID].Proved {
		if slices.Contains(a.CleanBy, p) && !slices.Contains(a.Proved, p) {
			proofs = append(proofs, api.Proof{Assignment: a.ID, Prover: p})
		}
	}
	return proofs
}

// cleanBy is the clean deadline of a releasing assignment.
func (in ClusterInput) cleanBy(a ClusterAssignment) time.Time {
	return latest(in.LeaderSince, a.ReleasedAt).Add(in.Deadlines.Clean)
}

func (in ClusterInput) whyUnclean(a ClusterAssignment) string {
	proved := in.proved(a)
	for _, p := range a.CleanBy {
		if proved(p) {
			continue
		}
		node := in.Nodes[p.At]
		switch {
		case p.By != api.ExecutorAgent:
			return fmt.Sprintf("the %s has not proved the assignment clean%s", p, because(in.Observed[a.ID].Unproved))
		case node.Phase == api.NodeDown:
			return fmt.Sprintf("node %s is down", p.At)
		case node.Phase != api.NodeReady:
			return fmt.Sprintf("node %s is not reporting", p.At)
		default:
			return cmp.Or(in.Observed[a.ID].Message, fmt.Sprintf("the agent of node %s gave no reason", p.At))
		}
	}
	return "the assignment names no prover"
}

// PlanQuarantine frees a quarantined assignment once all have proved it clean after all. A node that was taken out of the inventory owes no
// proof: who did so says that the machine is gone. Should it come back all the same, its agent cleans whatever it finds before anything is
// placed there. That is said of one node: other nodes and fabrics owe theirs still.
func PlanQuarantine(q api.Quarantine, heard, gone func(api.Prover) bool) []QuarantineOperation {
	a, message := q.Assignment, "confirmed clean; its resources are free again"
	proved := func(p api.Prover) bool {
		switch {
		case heard(p) || slices.Contains(q.Proved, api.Proof{Assignment: a.ID, Prover: p}):
			return true
		case p.By == api.ExecutorAgent && gone(p):
			message = "released because its node was removed from the inventory"
			return true
		default:
			return false
		}
	}
	if !a.ProvenBy(proved) {
		return nil
	}
	return []QuarantineOperation{EndQuarantine{ID: a.ID}, Emit{Reason: EventQuarantineOver, Message: message, Member: a.Member, Node: a.Node}}
}
