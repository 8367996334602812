// Package admission decides which of the requests that wait for room get it next, and explains why the others wait.
//
// It is pure, and stateless: the queue is a function of what is stored and of what is free, so any server can explain it and a new
// leader needs nothing but the state. Order: replacements of lost members first (what was theirs is held for them), then spares, then
// creates and scale-ups by priority, fair share over decayed usage, and age. The first that has no room is the head: its start is
// reserved at the earliest time at which running clusters' time limits make room for it, and those behind it are started only where
// that can't delay it. It must never decide where members go (placement does), nor end anything to make room. Start with Plan here, then
// order.go (who goes first), room.go (what each may use), shadow.go (when the head starts), quota.go and reason.go.
package admission

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// Kind is why a request asks for room.
type Kind string

// The kinds, those of lifecycle's needs.
const (
	KindHeal   Kind = "heal"
	KindSpare  Kind = "spare"
	KindCreate Kind = "create"
	KindScale  Kind = "scale"
	// KindRestore is for members that are saved on nodes' disks, and go on there, or where their state is carried to.
	KindRestore Kind = "restore"
	// KindMove is for a member that moves to another node.
	KindMove Kind = "move"
	// KindResize is for a member that is to have another size on its node.
	KindResize Kind = "resize"
)

// Request asks for room for members, all of them or none.
type Request struct {
	// Cluster is its full name, Kind why it asks.
	Cluster, UID, Project, User string
	Kind                        Kind
	// Groups are normalized; Size is how many members of the group need a place now. Replacements and spares ask for one. Spares count
	// for the quota of a create, and are asked for by requests of their own.
	Groups   []api.Group
	Priority int
	// Since is when it was asked for: older goes first among equals.
	Since time.Time
	// Queue lets it wait; without it, what does not fit now is refused. Replacements and spares always wait.
	Queue bool
	// Holds is how long it will hold the room at most; 0: there is no limit.
	Holds time.Duration
	// Avoid are nodes that are used only when nothing else would do (a member was just lost there, a spare should be elsewhere).
	Avoid []string
	// Regains: a replacement takes cores and memory that the lost member, which was saved, did not hold.
	Regains bool
	// Held is what the lost member held of its node, when that may be less than its replacement takes; nil: as much.
	Held *api.Shape
	// Homes say for each member of a restore or of a move where it can go on.
	Homes []Home
	// Mates are the members of these groups that have devices: those that are placed now prefer the same planes of fabrics.
	Mates []placement.Mate
	// Resizes is the assignment that is to have the shape of its group; nil for other kinds.
	Resizes *api.Assignment
	// Spares are the cluster's spare assignments of this group, whose room a replacement may take when nothing else fits.
	Spares []api.Assignment
}

// Home is where a member of a group can go on, by the index of the group.
type Home struct {
	Group int
	// Node comes first; empty: any. Elsewhere: if that can't have it, another one will do. Not is none of them: what moves is there.
	Node, Not string
	Elsewhere bool
	// Unfit are the nodes that can't take the member's memory, with the reason for each.
	Unfit map[string]string
}

// Running is a cluster that holds room. One that is being cleaned in part is listed twice.
type Running struct {
	Cluster, Project string
	// Assignments are the IDs of all it holds in the free view. Those that are quarantined never end, whatever Ends says.
	Assignments []string
	// Ends is when it gives its room back at the latest; zero: not known. One that is overdue counts as Releasing.
	Ends time.Time
	// Releasing: they are being cleaned, and count as free in ReleaseTime.
	Releasing bool
}

// ReleaseTime is how long a member that is being released is taken to hold its room yet.
const ReleaseTime = 10 * time.Second

// Account is what a project may hold and holds; Shares is its weight.
type Account struct {
	Quota api.Quota
	// EnergyJoules is what its members used in api.EnergyWindow.
	EnergyJoules int64
	// Used counts members, spares, and lost members that wait for a replacement; not what is being cleaned.
	Used   resource.Amounts
	Shares int
	// DecayedCoreSeconds is its use, the older the less it counts; ByUser the same of each of its users.
	DecayedCoreSeconds float64
	ByUser             map[string]float64
}

// Input is everything a plan depends on.
type Input struct {
	Now time.Time
	// Free is only read.
	Free *placement.View
	// Parts tell what devices of requests take.
	Parts    resource.Parts
	Running  []Running
	Accounts map[string]Account // by project; one that is missing has no quota and one share
	Requests []Request
}

// Verdict is what becomes of a request.
type Verdict string

// The verdicts.
const (
	Admit  Verdict = "admit"
	Wait   Verdict = "wait"
	Refuse Verdict = "refuse"
)

// Decision is the answer to one request.
type Decision struct {
	// Request is its index in the input.
	Request int
	Verdict Verdict
	// Placed are its members' places when it is admitted. Names and ranks are not its business: the n-th of a group is the n-th that the
	// asker wants.
	Placed []placement.Placed
	// Spares are the IDs of spare assignments whose room Placed takes over.
	Spares []string
	// Resized is what the member of an admitted resize gets; nil for other kinds.
	Resized *Resized
	// Position is its place in the queue, from 1; 0 for replacements and spares, and what is not waiting.
	Position int
	// Constraint is what binds: a placement.Constraint, "quota", or "queue" (it fits, but would delay the head).
	Constraint string
	// Reason says it for people, whole sentences.
	Reason string
	// Undecided: nodes that are not heard of would make it fit. Ask again before refusing, also when the verdict is Refuse.
	Undecided bool
	// Earliest is when it can start at the latest if only time limits end and nobody goes before it; zero: not known. Only the head and
	// replacements have one: who is behind them may be passed by others as long as he is.
	Earliest time.Time
	// ShareUsed is what it was ordered by.
	ShareUsed float64
}

// Resized is what a member holds while its resize is pending, and the new size in it.
type Resized struct{ Hold, To api.Size }

// Plan decides on every request, in the order in which they are to be committed: what is admitted counts as held for those after it. A
// request waits in one of these ways:
//   - a restore, a move or a resize that has no room where its members can go on: it goes before those in the queue, and nothing is held for it;
//   - a replacement that has no room: what it needs is held for it against all but other replacements (a loss is finite, and every
//     replacement makes a running cluster whole);
//   - the head, the first create or scale-up that has no room: its start is reserved, and nobody behind it may delay it;
//   - one behind the head, which is admitted when it ends before the head's start or leaves it the room;
//   - one that is over the quota, or that would not fit even if every cluster on the nodes at hand ended: it holds up nobody, since no
//     room that is left free for it would help.
func Plan(in Input) []Decision {
	p := newPlanner(in)
	asks := p.order()
	p.run(asks)
	return p.explain(asks)
}
