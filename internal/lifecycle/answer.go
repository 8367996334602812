package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Placed is a need that has got its place.
type Placed struct {
	Need        Need
	Assignments []api.Assignment
	// Networks, Joined and UserIDs are set with the first assignments of a cluster: its own networks, and those of its project.
	Networks []api.Network
	Joined   []api.NetworkRef
	UserIDs  api.IDRange
	// Spares are the IDs of spare assignments whose room is taken over.
	Spares []string
}

// PlanPlaced returns what to commit for members that have got a place.
func PlanPlaced(p Placed) []ClusterOperation {
	ops := []ClusterOperation{Hold{Assignments: p.Assignments, Networks: p.Networks, Joined: p.Joined, UserIDs: p.UserIDs, Spares: p.Spares}}
	nodes := map[string]bool{}
	names := make([]string, 0, len(p.Assignments))
	var placed []api.Assignment // parts left out
	for _, a := range p.Assignments {
		if a.IsPart() {
			continue
		}
		nodes[a.Node] = true
		names, placed = append(names, a.Member), append(placed, a)
	}
	where := fmt.Sprintf("%s on %s", plural(len(placed), "member"), plural(len(nodes), "node"))
	switch p.Need.Kind {
	case NeedRestore:
		ops = append(ops, SetPhase{To: api.ClusterRestoring, Message: "restoring " + plural(len(p.Assignments), "member")})
		for i, a := range p.Assignments {
			if home := p.Need.Members[i].On; a.Node != home {
				ops = append(ops, Emit{Reason: EventMoving, Message: fmt.Sprintf("%s resumes on %s; its state is carried there from %s", a.Member, a.Node, home), Member: a.Member, Node: a.Node})
			}
		}
	case NeedMove:
		for i, a := range p.Assignments {
			text := fmt.Sprintf("%s moves from %s to %s", a.Member, p.Need.Members[i].Leaves, a.Node)
			ops = append(ops, Emit{Reason: EventMoving, Message: text, Member: a.Member, Node: a.Node})
		}
	case NeedCreate:
		ops = append(ops, SetPhase{To: api.ClusterStarting, Message: "waiting for " + where}, Emit{Reason: EventPlaced, Message: "placed " + where})
	case NeedScale:
		ops = append(ops, Emit{Reason: EventScaling, Message: "added " + where + ": " + list(names)})
	case NeedHeal:
		for i, a := range placed {
			text := fmt.Sprintf("%s moves from %s to %s", a.Member, p.Need.Members[i].Avoid, a.Node)
			if a.Node == p.Need.Members[i].Avoid {
				text = fmt.Sprintf("%s restarts on %s", a.Member, a.Node)
			}
			if a.Attempt > 1 {
				text += fmt.Sprintf(", attempt %d in a row", a.Attempt)
			}
			if len(p.Spares) > 0 {
				text += ", in the place of a spare"
			}
			ops = append(ops, Emit{Reason: EventMemberReplaced, Message: text, Member: a.Member, Node: a.Node})
		}
	case NeedSpare:
		for _, a := range placed {
			ops = append(ops, Emit{Reason: EventPlaced, Message: "reserved room for a spare on " + a.Node, Member: a.Member, Node: a.Node})
		}
	}
	return ops
}

// Answer is why a need has got no place.
type Answer struct {
	Kind NeedKind
	// Members are those of the need.
	Members []WantedMember
	// Refuse: it does not wait, because it never can be, or because its user did not ask it to.
	Refuse bool
	// Undecided: nodes that are not heard of would make it fit.
	Undecided bool
	// Far: so many are before it in the queue that what binds it now is not worth a write; 'explain' tells.
	Far bool
	// Constraint is what binds, a fixed word; Reason says it for people.
	Constraint, Reason string
	// Numbers: nodes have room, and what the site hands out once binds, or a fabric that can't be asked. Admission does not see that, so 'explain'
	// has nothing to add, and Reason is stored.
	Numbers bool
}

// beyondRoom begins the message of a cluster that waits for something else than room.
const beyondRoom = "nodes have room, but "

// undecidedPause is the pause before it is asked again what was not decided.
const undecidedPause = time.Second

// PlanRefused returns what to do about an answer. While nodes are not heard of that would make a new cluster fit, it stays pending: they
// are ready or down within the death timer, and it is asked again. Replacements, scale-ups and spares wait without a word in the record:
// their cluster's phase tells of them already.
func PlanRefused(record *api.ClusterRecord, a Answer, now time.Time) []ClusterOperation {
	if a.Kind == NeedRestore && record != nil && !a.Far && !a.Undecided {
		message := fmt.Sprintf("waits for room where its members are saved (%s)", a.Constraint)
		if a.Numbers {
			message = beyondRoom + a.Reason
		}
		if message != record.Message {
			return []ClusterOperation{SetPhase{To: record.Phase, Message: message}}
		}
		return nil
	}
	if a.Kind == NeedMove {
		return refuseMove(a, now)
	}
	if a.Kind != NeedCreate {
		return nil
	}
	phase, said := api.ClusterPending, ""
	if record != nil {
		phase, said = record.Phase, record.Message
	}
	// Figures, times and the names of others change with every look: what is stored must stay true, the event is of its moment.
	message := fmt.Sprintf("waits for room (%s); 'explain' shows what it waits for", a.Constraint)
	if a.Numbers {
		message = beyondRoom + a.Reason
	}
	switch {
	case a.Undecided:
		return []ClusterOperation{WakeAt{Time: now.Add(undecidedPause)}}
	case a.Refuse:
		return []ClusterOperation{SetPhase{To: api.ClusterRefused, Message: a.Reason}, Emit{Reason: EventRefused, Message: a.Reason}}
	case phase != api.ClusterQueued:
		return []ClusterOperation{SetPhase{To: api.ClusterQueued, Message: message}, Emit{Reason: EventQueued, Message: a.Constraint + ": " + a.Reason}}
	case !a.Far && said != message:
		return []ClusterOperation{SetPhase{To: api.ClusterQueued, Message: message}}
	default:
		return nil
	}
}

// refuseMove gives up the moves of members that have no room on another node, but for those that wait.
func refuseMove(a Answer, now time.Time) []ClusterOperation {
	if a.Undecided {
		return []ClusterOperation{WakeAt{Time: now.Add(undecidedPause)}}
	}
	var ops []ClusterOperation
	for _, m := range a.Members {
		if !m.Patient {
			ops = append(ops, MoveEnd{Assignment: m.From, AskedAt: m.AskedAt, To: m.On, Failed: a.Reason},
				Emit{Reason: EventMoveFailed, Message: fmt.Sprintf("%s stays on %s: %s", m.Member, m.Leaves, a.Reason), Member: m.Member, Node: m.Leaves})
		}
	}
	return ops
}
