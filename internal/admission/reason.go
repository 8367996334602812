package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/placement"
)

// The constraints that are admission's own; the others are placement's.
const (
	ConstraintQuota = "quota"
	ConstraintQueue = "queue"
	// ConstraintNode: no node can have a member that goes on: the one on which it is saved, or which it is to move to, nor any other that would do.
	ConstraintNode = "node"
)

// explainer puts decisions into words, when all are made: what it says of free room is what the plan leaves.
type explainer struct {
	*planner
	// known is worked out once for each shape and size, refusals for each signature.
	known    map[need]known
	refusals map[string]*placement.Refusal
	waiting  int
}

type need struct {
	shape *shape
	size  int
}

// known is what there is to say of all that need the same.
type known struct {
	text       string
	constraint placement.Constraint
	undecided  bool
}

// explain lists the decisions in the order of the plan.
func (p *planner) explain(asks []*ask) []Decision {
	e := explainer{planner: p, known: map[need]known{}, refusals: map[string]*placement.Refusal{}}
	decisions := make([]Decision, len(asks))
	for i, a := range asks {
		d := &decisions[i]
		d.Request, d.Verdict, d.Placed, d.Spares, d.ShareUsed = a.index, a.verdict, a.placed, a.spares, a.account.shareUsed
		d.Resized = a.resized
		switch a.verdict {
		case Wait:
			e.wait(a, d)
		case Refuse:
			e.refuse(a, d)
		case Admit:
		}
	}
	return decisions
}

func (e *explainer) wait(a *ask, d *Decision) {
	parts := make([]string, 0, 3)
	if a.queued() {
		e.waiting++
		d.Position = e.waiting
		switch others := e.waiting - 1; others {
		case 0:
		case 1:
			parts = append(parts, "behind 1 other")
		default:
			parts = append(parts, "behind "+strconv.Itoa(others)+" others")
		}
	}
	if a.shadow != nil {
		d.Earliest = a.shadow.at
	}
	if a.cause == overQuota {
		d.Constraint = ConstraintQuota
		d.Reason = strings.Join(append(parts, a.over, "it does not delay others"), "; ")
		return
	}
	if a.cause == noDevices {
		d.Constraint = string(placement.ConstraintDevices)
		d.Reason = strings.Join(append(parts, a.missing, "it does not delay others"), "; ")
		return
	}
	if a.cause == noVolume {
		d.Constraint = string(placement.ConstraintVolume)
		d.Reason = strings.Join(append(parts, a.missing, "it does not delay others"), "; ")
		return
	}
	if a.home != nil {
		d.Constraint, d.Reason, d.Undecided = ConstraintNode, a.homeless, a.homeUndecided
		if a.lacksDevices {
			d.Constraint = string(placement.ConstraintDevices)
		}
		if a.request.Kind == KindRestore {
			d.Undecided = false // it waits anyway
			d.Reason = fmt.Sprintf("a member that is saved on node %s can't go on: %s", a.home.Node, a.homeless)
		}
		return
	}
	k := e.need(a)
	d.Constraint, d.Undecided = string(k.constraint), k.undecided
	if a.cause == delays {
		d.Constraint, d.Undecided = ConstraintQueue, false
	}
	d.Reason = strings.Join(append(parts, k.text, e.prospect(a, d)), "; ")
}

// need tells what is asked for, how much of it there is room for, and what binds.
func (e *explainer) need(a *ask) known {
	if len(a.shapes) == 1 {
		key := need{a.shapes[0], a.request.Groups[0].Size}
		k, ok := e.known[key]
		if !ok {
			k.text = "needs " + e.groupText(a, 0)
			k.constraint, k.undecided = e.binding(a)
			e.known[key] = k
		}
		return k
	}
	texts := make([]string, len(a.shapes))
	for i, g := range a.request.Groups {
		texts[i] = fmt.Sprintf("%s (group %q)", e.groupText(a, i), g.Name)
	}
	k := known{text: "needs " + strings.Join(texts, " and ")}
	k.constraint, k.undecided = e.binding(a)
	return k
}

// binding is the constraint that binds: that of the first group which does not fit alone, or of all together.
func (e *explainer) binding(a *ask) (c placement.Constraint, undecided bool) {
	var binds *placement.Refusal
	for i, s := range a.shapes {
		c := e.capacityNow(s)
		if size := a.request.Groups[i].Size; size > c.Now {
			if r := c.Refuse(size); binds == nil || binds.Undecided {
				binds = &r
			}
		}
	}
	switch {
	case binds == nil && len(a.shapes) == 1:
		return "", false // it fits; what keeps it waiting is not room
	case binds == nil || binds.Never || binds.Undecided && len(a.shapes) > 1:
		// No group binds for itself, or it takes a closer look to tell.
		binds = e.refusal(a)
	}
	return binds.Constraint, binds.Undecided
}

func (e *explainer) groupText(a *ask, group int) string {
	g := a.request.Groups[group]
	text := placement.MembersWith(g.Size, g.Shape) + placement.OnVolumes(g.VolumePlace)
	switch now := e.capacityNow(a.shapes[group]).Now; {
	case now == 0:
		return text + ", none fits now"
	case now >= g.Size && len(a.shapes) > 1:
		return text + ", which alone would fit now"
	case now >= g.Size:
		return text + ", which would fit now"
	case now == 1:
		return text + ", but only 1 fits now"
	default:
		return text + ", but only " + strconv.Itoa(now) + " fit now"
	}
}

// prospect tells when a request that waits may start.
func (e *explainer) prospect(a *ask, d *Decision) string {
	switch {
	case a.cause == neverPossible:
		return "no node of this site could hold it, even if all were up and empty"
	case a.cause == noNodes && d.Constraint == string(placement.ConstraintQuarantine):
		return "the suitable resources are quarantined until they are confirmed clean; it does not delay others until then"
	case a.cause == noNodes && a.soon:
		return "it starts when the machines are free that are being cleaned, inspected or switched off; it does not delay others until then"
	case a.cause == noNodes:
		return "suitable nodes are down, drained, quarantined or not reporting; it does not delay others until they are back"
	case a.cause == notTogether:
		return "no placement was found for all of it, even if all other clusters ended; it does not delay others"
	case a.cause == ownRoom:
		return "it would not fit beside the cluster's own members, even if all other clusters ended; it does not delay others"
	case a.shadow != nil && a.shadow.skipped:
		return "its start time is not computed because too many others wait for a replacement"
	case a.shadow != nil && a.shadow.at.IsZero():
		return "its start time is unknown because some clusters in its way have no time limit"
	case a.shadow != nil:
		return "can start at " + e.clock(a.shadow.at) + " at the latest" + e.because(a)
	case a.request.Kind == KindSpare:
		return "it is tried again whenever room becomes free"
	case a.cause == delays:
		return "would delay " + e.nameOf(a.head, a) + e.startOf(a)
	case a.head != nil:
		return "it starts before " + e.nameOf(a.head, a) + ", but only if that delays no other request"
	default:
		return "it starts when there is room"
	}
}

// startOf tells of the head that a request would delay when that starts, and how not to delay it.
func (e *explainer) startOf(a *ask) string {
	if a.head == nil || a.head.shadow.at.IsZero() || e.healHeld {
		return ""
	}
	text := ", which can start at " + e.clock(a.head.shadow.at) + " at the latest"
	if lasts(a.ends, a.head.shadow.at) {
		text += "; with a time limit that ends before then, it could start first"
	}
	return text
}

// nameOf names another who waits, to those who may know of it: nobody is told the names of another project's clusters.
func (e *explainer) nameOf(other, to *ask) string {
	switch {
	case other == nil:
		return "the replacement of a lost member"
	case e.healHeld: // it is not told who of those it is that another would delay
		return "requests ahead of it that need room"
	case other.request.Project != to.request.Project:
		return "the first in the queue that needs room"
	default:
		return other.request.Cluster + ", the first in the queue that needs room"
	}
}

// because tells whose end makes the room.
func (e *explainer) because(a *ask) string {
	by := slices.DeleteFunc(slices.Clone(a.shadow.by), func(b *ending) bool { return len(b.shares) == 0 })
	switch {
	case len(by) == 0:
		return ""
	case !slices.ContainsFunc(by, func(b *ending) bool { return !b.releasing }):
		return ", when the resources being released are clean"
	}
	by = slices.DeleteFunc(by, func(b *ending) bool { return b.releasing })
	name := by[0].cluster
	if by[0].project != a.request.Project {
		name = "a cluster of another project"
	}
	switch others := len(by) - 1; others {
	case 0:
		return ", when " + name + " reaches its time limit"
	case 1:
		return ", when " + name + " and 1 other cluster reach their time limits"
	default:
		return fmt.Sprintf(", when %s and %d other clusters reach their time limits", name, others)
	}
}

// clock writes a time of day, rounded up to what it shows, with the date when that is not today's.
func (e *explainer) clock(t time.Time) string {
	t = t.In(e.in.Now.Location())
	if whole := t.Truncate(time.Minute); !whole.Equal(t) {
		t = whole.Add(time.Minute)
	}
	y, m, d := t.Date()
	if ny, nm, nd := e.in.Now.Date(); y == ny && m == nm && d == nd {
		return t.Format("15:04 MST")
	}
	return t.Format("2006-01-02 15:04 MST")
}

func (e *explainer) refuse(a *ask, d *Decision) {
	switch a.cause {
	case overQuota, neverInQuota:
		d.Constraint = ConstraintQuota
		d.Reason = fmt.Sprintf("%s can't be placed: it %s", e.subject(a), a.over)
		if a.cause == overQuota {
			d.Reason += "; use --queue to wait for room"
		}
	case noDevices:
		d.Constraint = string(placement.ConstraintDevices)
		d.Reason = fmt.Sprintf("%s can't be placed now: %s; use --queue to wait for them", e.subject(a), a.missing)
	case delays:
		d.Constraint = ConstraintQueue
		d.Reason = fmt.Sprintf("%s can't be placed now: it would fit, but would delay %s%s; use --queue to wait for room",
			e.subject(a), e.nameOf(a.head, a), e.startOf(a))
	default:
		r := e.refusal(a)
		d.Constraint, d.Undecided, d.Reason = string(r.Constraint), r.Undecided, e.inItsWords(a, r.Message)
	}
}

func (e *explainer) subject(a *ask) string {
	switch a.request.Kind {
	case KindScale:
		return fmt.Sprintf("the scale-up of cluster %q", a.request.Cluster)
	case KindCreate:
		return fmt.Sprintf("cluster %q", a.request.Cluster)
	default:
		return fmt.Sprintf("a member of cluster %q", a.request.Cluster)
	}
}

// standIn is the name of a cluster or group in a refusal that is worked out once for all requests that are alike but for names.
func standIn(i int) string { return "<" + strconv.Itoa(i) + ">" }

// refusal is what placement says, with stand-ins for names: 0 for the cluster, i+1 for the i-th group.
func (e *explainer) refusal(a *ask) *placement.Refusal {
	key := a.signature()
	if r, ok := e.refusals[key]; ok {
		return r
	}
	request := placement.Request{Cluster: standIn(0), Groups: slices.Clone(a.request.Groups)}
	for i := range request.Groups {
		request.Groups[i].Name = standIn(i + 1)
	}
	r := e.rooms.free.sketch.Explain(request)
	if r == nil {
		// Several groups: where there is less room, another order of them may fit.
		r = &placement.Refusal{Constraint: placement.ConstraintTogether, Message: fmt.Sprintf("cluster %q can't be placed: its groups did not fit "+
			"together; try again", standIn(0))}
	}
	e.refusals[key] = r
	return r
}

// inItsWords puts the names in.
func (e *explainer) inItsWords(a *ask, message string) string {
	pairs := []string{"cluster " + strconv.Quote(standIn(0)), e.subject(a)}
	for i, g := range a.request.Groups {
		pairs = append(pairs, strconv.Quote(standIn(i+1)), strconv.Quote(g.Name))
	}
	return strings.NewReplacer(pairs...).Replace(message)
}
