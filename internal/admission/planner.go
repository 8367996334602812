package admission

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// planner is a plan in the making.
type planner struct {
	in       Input
	rooms    rooms
	accounts map[string]*account
	// owned is what clusters hold, made when the first is asked for.
	owned map[string]api.Quota
	// ends are made when the first request has no room; admitted are those of requests admitted before.
	ends, admitted []ending
	// reserved is what is reserved for those that wait, closed are those for whom nodes are kept free altogether.
	reserved [][]placement.Share
	closed   []*ask
	// head is the first create or scale-up that waits for room.
	head *ask
	// taken are spares that replacements have taken over.
	taken map[string]bool
	// possible says of requests of several groups, by signature, what can't change while a plan is made.
	possible map[string]cause
}

func newPlanner(in Input) *planner {
	return &planner{
		in: in, rooms: rooms{free: newRoom(in.Free.Sketch())}, accounts: map[string]*account{}, taken: map[string]bool{},
		possible: map[string]cause{},
	}
}

// heal decides on a replacement: room elsewhere than where the member was lost, else the room of a spare, else room there.
func (p *planner) heal(a *ask) {
	if p.refuseInvalid(a) {
		return
	}
	if fit, ok := p.rooms.free.fitElsewhere(a); ok {
		p.admit(a, fit)
		return
	}
	avoids := func(s *api.Assignment) bool { return slices.Contains(a.request.Avoid, s.Node) }
	if len(a.request.Avoid) > 0 && p.takeSpare(a, func(s *api.Assignment) bool { return !avoids(s) }) {
		return
	}
	if fit, ok := p.rooms.free.fit(a); ok {
		p.admit(a, fit)
		return
	}
	if p.takeSpare(a, func(*api.Assignment) bool { return true }) {
		return
	}
	a.verdict, a.cause = Wait, noRoom
}

// takeSpare gives a replacement the room of one of its cluster's spares.
func (p *planner) takeSpare(a *ask, ok func(*api.Assignment) bool) bool {
	g := a.request.Groups[0]
	var found *api.Assignment
	for i := range a.request.Spares {
		s := &a.request.Spares[i]
		fits := s.Group == g.Name && len(s.Slots) == g.Cores && s.MemoryBytes == int64(g.Memory)
		if !fits || p.taken[s.ID] || !ok(s) || !p.in.Free.Holds(s.ID) || !p.rooms.free.sketch.Suits(s.Node, g) {
			continue
		}
		if found == nil || s.ID < found.ID {
			found = s
		}
	}
	if found == nil {
		return false
	}
	p.taken[found.ID] = true
	a.verdict, a.spares = Admit, []string{found.ID}
	a.placed = []placement.Placed{{
		Group: g.Name, Member: found.Member, Rank: found.Rank, Node: found.Node, Slots: found.Slots, CPUs: found.CPUs,
		NUMANodes: found.NUMANodes, MemoryBytes: found.MemoryBytes, Oversubscribed: found.Oversubscribed, Stack: g.Stack,
		Environment: g.Environment,
	}}
	return true
}

// holdForHeal holds room for a replacement that waits.
func (p *planner) holdForHeal(a *ask) {
	switch a.cause = p.possibly(a); {
	case a.cause != noCause:
		return
	case len(p.reserved) >= maxReserved:
		a.shadow = &shadow{}
	default:
		a.shadow = p.findShadow(a)
	}
	a.cause = noRoom
	if a.shadow == nil {
		a.cause = ownRoom
		return
	}
	p.hold(a)
}

// decide decides on a spare, a create or a scale-up.
func (p *planner) decide(a *ask) {
	if p.refuseInvalid(a) {
		return
	}
	if c := p.possibly(a); c == neverPossible && a.request.Kind != KindSpare {
		a.verdict, a.cause = Refuse, c
		return
	}
	if c := p.checkQuota(a); c != noCause {
		p.putOff(a, c)
		return
	}
	fit, ok := p.rooms.free.fit(a)
	if !ok {
		p.block(a, noRoom)
		return
	}
	if len(p.rooms.levels) > 0 {
		ok = p.leavesQuota(a)
		if ok {
			fit, ok = p.rooms.fit(a)
		}
		if !ok {
			p.block(a, delays)
			return
		}
	}
	p.admit(a, fit)
}

// refuseInvalid refuses what makes no sense on any site.
func (p *planner) refuseInvalid(a *ask) bool {
	if placement.Check(placement.Request{Cluster: a.request.Cluster, Groups: a.request.Groups}) == nil {
		return false
	}
	a.verdict, a.cause = Refuse, invalid
	return true
}

// possibly tells whether the request would fit if every cluster ended: noCause, or what it is that stands against it then.
func (p *planner) possibly(a *ask) cause {
	groups := a.request.Groups
	if len(groups) == 1 {
		switch c := p.capacity(a.shapes[0]); {
		case groups[0].Size <= c.Emptied:
			return noCause
		case groups[0].Size <= c.Everything:
			return noNodes
		default:
			return neverPossible
		}
	}
	key := a.signature()
	if c, ok := p.possible[key]; ok {
		return c
	}
	c := noCause
	if _, _, ok := p.rooms.free.sketch.Fit(groups); !ok {
		switch r := p.rooms.free.sketch.Classify(placement.Request{Groups: groups}); {
		case r.Never:
			c = neverPossible
		case !p.rooms.free.sketch.FitsEmptied(groups):
			c = noNodes
		}
	}
	p.possible[key] = c
	return c
}

// capacity counts once for each shape. What it says of what is free now may be out of date.
func (p *planner) capacity(s *shape) *placement.Capacity {
	if s.capacity == nil {
		c := p.rooms.free.sketch.Capacity(s.group)
		s.capacity, s.countedAt = &c, len(p.admitted)
	}
	return s.capacity
}

// capacityNow is right also in what is free now.
func (p *planner) capacityNow(s *shape) *placement.Capacity {
	if s.capacity != nil && s.countedAt != len(p.admitted) {
		s.capacity = nil
	}
	return p.capacity(s)
}

// leavesQuota tells whether the request leaves the head, when that is of the same project, its quota.
func (p *planner) leavesQuota(a *ask) bool {
	if a.account.later == nil || !p.outlastsHead(a) {
		return true
	}
	return !exceeds(*a.account.later, a.wants, a.account.quota)
}

func (p *planner) outlastsHead(a *ask) bool {
	return p.head.shadow == nil || p.head.shadow.at.IsZero() || lasts(a.ends, p.head.shadow.at)
}

func (p *planner) admit(a *ask, fit placement.Fit) {
	a.verdict = Admit
	p.rooms.take(a, fit)
	a.account.used = add(a.account.used, a.wants)
	if a.account.later != nil && p.outlastsHead(a) {
		later := add(*a.account.later, a.wants)
		a.account.later = &later
	}
	p.ends = nil
	p.admitted = append(p.admitted, ending{
		at: a.ends, cluster: a.request.Cluster, project: a.request.Project, shares: fit.Shares,
	})
}

// block deals with a request that has no room. The first that may wait becomes the head, unless no end of others would help it.
func (p *planner) block(a *ask, c cause) {
	a.head = p.head
	switch possible := p.possibly(a); {
	case !p.putOff(a, c) || a.request.Kind == KindSpare || p.head != nil && c == delays:
		return
	case possible != noCause:
		a.cause = possible
		return
	case p.head != nil:
		return
	}
	if a.shadow = p.findShadow(a); a.shadow == nil {
		a.cause = ownRoom
		return
	}
	p.head = a
	p.hold(a)
	later := add(a.account.used, a.wants)
	a.account.later = &later
}

// putOff lets a request wait that may, and refuses another.
func (p *planner) putOff(a *ask, c cause) (waits bool) {
	a.cause, a.verdict = c, Refuse
	if c == neverInQuota {
		return false
	}
	if a.request.Queue || a.request.Kind == KindSpare {
		a.verdict = Wait
	}
	return a.verdict == Wait
}
