package admission

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// ending is room that is given back at one time.
type ending struct {
	// at is zero when it is not known; those come last.
	at               time.Time
	cluster, project string
	releasing        bool
	shares           []placement.Share
}

// shadow is the start of a request that waits.
type shadow struct {
	// at is when it fits at the latest; zero: not known, or skipped, not worked out.
	at      time.Time
	skipped bool
	// by are those whose end makes room for it then.
	by []*ending
	// then is what is free at that time, less all that is reserved, also for later; fit is where the request goes in that.
	then *placement.Sketch
	fit  placement.Fit
}

// reservation is room that is kept for one who waits, from a time on.
type reservation struct {
	at     time.Time
	shares []placement.Share
}

// maxReserved is how many waiting replacements have a start worked out each. For the rest, which is a site in distress, every node that
// could hold them is kept free.
const maxReserved = 16

// maxSteps bounds the search for the first time at which several groups fit together: each alone may fit long before.
const maxSteps = 256

// endings lists what running clusters, and what this plan has admitted, will give back.
func (p *planner) endings() []*ending {
	if p.ends != nil {
		return p.ends
	}
	p.ends = make([]*ending, 0, len(p.in.Running)+len(p.admitted))
	soon := p.in.Now.Add(ReleaseTime)
	for _, r := range p.in.Running {
		e := &ending{at: r.Ends, cluster: r.Cluster, project: r.Project, releasing: r.Releasing}
		if r.Releasing || !e.at.IsZero() && !e.at.After(p.in.Now) {
			e.at = soon
		}
		for _, id := range r.Assignments {
			if s, ok := p.in.Free.ShareOf(id); ok {
				e.shares = append(e.shares, s)
			}
		}
		p.ends = append(p.ends, e)
	}
	p.ends = append(p.ends, p.admitted...)
	slices.SortStableFunc(p.ends, func(a, b *ending) int {
		switch {
		case a.at.IsZero() && b.at.IsZero():
			return 0
		case a.at.IsZero():
			return 1
		case b.at.IsZero():
			return -1
		}
		return cmp.Or(a.at.Compare(b.at), strings.Compare(a.cluster, b.cluster))
	})
	return p.ends
}

// future gives back on s what others than the request's own cluster give back. What that is having cleaned counts, too.
func future(s *placement.Sketch, ends []*ending, a *ask) {
	for _, e := range ends {
		if e.releasing || e.cluster != a.request.Cluster {
			s.Give(e.shares)
		}
	}
}

// findShadow works out when a request that has no room can start. It is nil when it would not fit even if all others ended now.
func (p *planner) findShadow(a *ask) *shadow {
	ends := p.endings()
	groups := a.request.Groups
	s := p.rooms.free.sketch.Clone()
	future(s, ends, a)
	if _, _, ok := s.Fit(groups); !ok {
		return nil
	}
	// steps[i] is how many have ended by the i-th time, the first of which is now.
	steps := []int{0}
	for i, e := range ends {
		if e.at.IsZero() {
			break
		}
		if i > 0 && e.at.Equal(ends[i-1].at) {
			steps[len(steps)-1] = i + 1
		} else {
			steps = append(steps, i+1)
		}
	}
	now := p.rooms.free.sketch.Clone()
	for _, r := range p.reserved {
		now.Take(r.shares)
	}
	for _, closed := range p.closed {
		now.Close(closed.request.Groups)
	}
	then := func(step int) *placement.Sketch {
		s.CopyFrom(now)
		future(s, ends[:steps[step]], a)
		return s
	}
	first := sort.Search(len(steps), func(step int) bool { return eachFits(then(step), groups) })
	for step := first; step < len(steps); step++ {
		if step-first == maxSteps {
			step = len(steps) - 1
		}
		if fit, _, ok := then(step).Fit(groups); ok {
			found := &shadow{at: p.in.Now, then: s, fit: fit}
			if step > 0 {
				found.at, found.by = ends[steps[step]-1].at, ends[steps[step-1]:steps[step]]
			}
			return found
		}
	}
	return &shadow{}
}

// eachFits tells whether every group would fit if it were alone. Unlike a whole request it never fits less where there is more room.
func eachFits(s *placement.Sketch, groups []api.Group) bool {
	for i := range groups {
		if _, _, ok := s.Fit(groups[i : i+1]); !ok {
			return false
		}
	}
	return true
}

// hold keeps for a request that waits what it needs to start at its shadow's time, or all that it could ever use when that is not known.
func (p *planner) hold(a *ask) {
	if a.shadow.at.IsZero() {
		if !p.isClosedFor(a) {
			p.closed = append(p.closed, a)
			p.rooms.close(a)
		}
		return
	}
	if len(a.request.Groups) > 1 {
		p.rooms.proofs = append(p.rooms.proofs, proof{at: a.shadow.at, then: a.shadow.then.Clone(), head: a})
	}
	left, own := a.shadow.then, reservation{a.shadow.at, a.shadow.fit.Shares}
	left.Take(own.shares)
	for _, r := range p.reserved {
		if r.at.After(own.at) {
			left.Give(r.shares)
		}
	}
	p.reserved = append(p.reserved, own)
	p.rooms.reserve(own.at, left, own.shares)
}

// isClosedFor tells whether nodes are kept free for one that needs the same shapes.
func (p *planner) isClosedFor(a *ask) bool {
	return slices.ContainsFunc(p.closed, func(c *ask) bool { return slices.Equal(c.shapes, a.shapes) })
}
