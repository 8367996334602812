package admission

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/placement"
)

// room is what some requests may use. What failed in it once fails again, because room only shrinks while a plan is made.
type room struct {
	sketch *placement.Sketch
	// most is how many members of a shape fit at most; none: not known.
	most map[*shape]int
	// failed are the signatures of requests of several groups that did not fit.
	failed map[string]bool
}

func newRoom(s *placement.Sketch) *room {
	return &room{sketch: s, most: map[*shape]int{}, failed: map[string]bool{}}
}

// less returns a room that is no larger than r.
func (r *room) less() *room {
	return &room{sketch: r.sketch.Clone(), most: maps.Clone(r.most), failed: maps.Clone(r.failed)}
}

// fit finds room for the request, on other nodes than those to avoid where that can be.
func (r *room) fit(a *ask) (placement.Fit, bool) {
	if r.isFull(a) {
		return placement.Fit{}, false
	}
	if fit, ok := r.fitElsewhere(a); ok {
		return fit, true
	}
	return r.fitAnywhere(a)
}

// isFull reports whether the request is known not to fit.
func (r *room) isFull(a *ask) bool {
	groups := a.request.Groups
	for i, s := range a.shapes {
		if most, known := r.most[s]; known && most < groups[i].Size {
			return true
		}
	}
	return len(groups) > 1 && r.failed[a.signature()]
}

// fitAnywhere finds room for the request, on nodes to avoid, too.
func (r *room) fitAnywhere(a *ask) (placement.Fit, bool) {
	if r.isFull(a) {
		return placement.Fit{}, false
	}
	groups := a.request.Groups
	fit, fits, ok := r.sketch.Fit(groups)
	switch {
	case ok:
	case len(groups) == 1:
		r.most[a.shapes[0]] = fits
	default:
		r.failed[a.signature()] = true
	}
	return fit, ok
}

// fitElsewhere finds room on other nodes than those to avoid; not when there are none to avoid. A spare is best under another leaf switch: it is
// to be there when that fails. A replacement is to be near the others.
func (r *room) fitElsewhere(a *ask) (fit placement.Fit, ok bool) {
	if len(a.request.Avoid) == 0 {
		return fit, false
	}
	if a.request.Kind == KindSpare {
		restore, any := r.sketch.WithoutSwitches(a.request.Avoid)
		if any {
			fit, _, ok = r.sketch.Fit(a.request.Groups)
		}
		restore()
		if ok {
			return fit, true
		}
	}
	restore, any := r.sketch.Without(a.request.Avoid)
	if any {
		fit, _, ok = r.sketch.Fit(a.request.Groups)
	}
	restore()
	return fit, ok
}

// signature is equal for requests that fit or don't fit alike.
func (a *ask) signature() string {
	var key strings.Builder
	for i, s := range a.shapes {
		key.WriteString(strconv.Itoa(s.id) + "x" + strconv.Itoa(a.request.Groups[i].Size) + " ")
	}
	return key.String()
}

// rooms is the room that is left, by how long one may use it. Without reservations there is only what is free.
type rooms struct {
	free *room
	// levels are ordered by time, the first has none. Level i is for requests that go on after levels[i].after: what is free now, and then
	// is neither held nor reserved. So each level has no more than the one before.
	levels []*level
	// proofs are reservations for several groups. Which nodes those get follows from more than numbers, so it is tried.
	proofs []proof
}

// level has the least of what the level before has and of left, what is free after the time, less what is reserved by then.
type level struct {
	*room
	after time.Time
	left  *placement.Sketch
}

// proof is a reservation that is checked by placing it: groups fit at the time in what is free then.
type proof struct {
	at   time.Time
	then *placement.Sketch
	head *ask
}

// lasts tells whether somebody who ends then is still there at the time.
func lasts(ends, at time.Time) bool { return ends.IsZero() || ends.After(at) }

// levelFor is the level that a request may use; -1 without reservations.
func (r *rooms) levelFor(a *ask) int {
	i := len(r.levels) - 1
	for i > 0 && !lasts(a.ends, r.levels[i].after) {
		i--
	}
	return i
}

// fit finds room that delays nobody who has a reservation.
func (r *rooms) fit(a *ask) (placement.Fit, bool) {
	i := r.levelFor(a)
	if i < 0 {
		return r.free.fit(a)
	}
	fit, ok := r.levels[i].fit(a)
	return fit, ok && r.proves(a, fit)
}

// proves tells whether the reservations of several groups can still be placed beside the fit.
func (r *rooms) proves(a *ask, fit placement.Fit) bool {
	for _, p := range r.proofs {
		if !lasts(a.ends, p.at) {
			continue
		}
		then := p.then.Clone()
		then.Take(fit.Shares)
		if _, _, ok := then.Fit(p.head.request.Groups); !ok {
			return false
		}
	}
	return true
}

// take gives the request its room everywhere.
func (r *rooms) take(a *ask, fit placement.Fit) {
	a.placed = r.free.sketch.LayOut(a.request.Groups, fit)
	r.free.sketch.TakeDevices(a.devices)
	for i := range a.devices {
		a.placed[i].Devices = a.devices[i]
	}
	r.takeShares(a, fit.Shares)
}

// takeShares takes shares of nodes for the request everywhere.
func (r *rooms) takeShares(a *ask, shares []placement.Share) {
	r.free.sketch.Take(shares)
	own := r.levelFor(a)
	for i, l := range r.levels {
		if i > own {
			l.sketch.LimitAt(shares, r.levels[own].sketch)
			continue
		}
		l.sketch.Take(shares)
		if l.left != nil {
			l.left.Take(shares)
		}
	}
	for _, p := range r.proofs {
		if lasts(a.ends, p.at) {
			p.then.Take(shares)
		}
	}
}

// base makes the first level.
func (r *rooms) base() {
	if len(r.levels) == 0 {
		r.levels = append(r.levels, &level{room: r.free.less()})
	}
}

// reserve keeps shares for somebody from a time on, at which left is free without them.
func (r *rooms) reserve(at time.Time, left *placement.Sketch, shares []placement.Share) {
	r.base()
	i := len(r.levels)
	for i > 1 && r.levels[i-1].after.After(at) {
		i--
		r.levels[i].left.Take(shares)
	}
	r.levels = slices.Insert(r.levels, i, &level{room: r.levels[i-1].less(), after: at, left: left})
	for ; i < len(r.levels); i++ {
		r.levels[i].sketch.CopyFrom(r.levels[i-1].sketch)
		r.levels[i].sketch.Limit(r.levels[i].left)
	}
}

// close keeps everybody from all nodes that could ever hold a member of the request.
func (r *rooms) close(a *ask) {
	r.base()
	for _, l := range r.levels {
		l.sketch.Close(a.request.Groups)
	}
}
