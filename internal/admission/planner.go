package admission

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// planner is a plan in the making.
type planner struct {
	in       Input
	rooms    rooms
	accounts map[string]*account
	// owned is what clusters hold, made when the first is asked for.
	owned map[string]resource.Amounts
	// ends are made when the first request has no room; admitted are those of requests admitted before.
	ends, admitted []*ending
	// reserved is what is reserved for those that wait, closed are those for whom nodes are kept free altogether.
	reserved []reservation
	closed   []*ask
	// healHeld: room is held for a replacement.
	healHeld bool
	// head is the first create or scale-up that waits for room.
	head *ask
	// taken are spares that replacements have taken over.
	taken map[string]bool
	// site is what all nodes have.
	site *resource.Vector
}

func newPlanner(in Input) *planner {
	return &planner{
		in: in, rooms: rooms{free: newRoom(in.Free.Sketch())}, accounts: map[string]*account{}, taken: map[string]bool{},
	}
}

// run decides on all requests, which are in their order.
func (p *planner) run(asks []*ask) {
	heals := 0
	for heals < len(asks) && asks[heals].request.Kind == KindHeal {
		p.heal(asks[heals])
		heals++
	}
	for _, a := range asks[:heals] {
		if a.verdict == Wait {
			p.holdForHeal(a)
		}
	}
	for _, a := range asks[heals:] {
		if a.request.Kind == KindRestore || a.request.Kind == KindMove {
			p.goOn(a)
			continue
		}
		if a.request.Kind == KindResize {
			p.resize(a)
			continue
		}
		p.decide(a)
	}
}

// goOn decides on members that go on with what they have in memory: saved ones, each on its own node or where its state can be carried to, or one
// that moves. All of them or none.
func (p *planner) goOn(a *ask) {
	if p.refuseInvalid(a) {
		return
	}
	a.verdict, a.cause = Wait, noRoom
	if a.exceedsQuota() {
		return
	}
	trial := p.beside(a).Trial()
	fits, devices := make([]placement.Fit, len(a.request.Homes)), make([][][]placement.DevicesOn, len(a.request.Homes))
	mates := slices.Clone(a.request.Mates)
	for i := range a.request.Homes {
		home := &a.request.Homes[i]
		group := a.request.Groups[home.Group]
		group.Size = 1
		fit, ok := fitHome(trial, home, group)
		if ok && placement.WantsDevices(a.request.Groups) {
			var missing string
			devices[i], missing = trial.FitDevices([]api.Group{group}, fit, mates...)
			ok = missing == ""
		}
		if !ok {
			a.home = home
			a.homeless, a.homeUndecided = whyHomeless(trial, home, group)
			bare := group
			bare.Devices = nil
			_, a.lacksDevices = fitHome(trial, home, bare)
			return
		}
		if len(devices[i]) > 0 { // the next ones choose theirs by what this one has
			trial.LayOut([]api.Group{group}, fit)
			mates = append(mates, trial.Mates(group.Name, fit, devices[i])...)
		}
		trial.Take(fit.Shares)
		trial.TakeDevices(devices[i])
		fits[i] = fit
	}
	// The order of a group's members is all that distinguishes them, so each gets an entry of its own.
	var placed []placement.Placed
	shares := make([]placement.Share, 0, len(fits))
	for i, home := range a.request.Homes {
		one := *a
		request := *a.request
		group := request.Groups[home.Group]
		group.Size = 1
		request.Groups = []api.Group{group}
		one.request, one.devices = &request, devices[i]
		p.rooms.take(&one, fits[i])
		placed, shares = append(placed, one.placed...), append(shares, fits[i].Shares...)
	}
	a.placed = placed
	p.note(a, shares)
}

// beside is what those may use who go before the queue: what is free, less what is held for replacements.
func (p *planner) beside(a *ask) *placement.Sketch {
	if !p.healHeld {
		return p.rooms.free.sketch
	}
	p.rooms.base()
	return p.rooms.levels[p.rooms.levelFor(a)].sketch
}

// resize decides on a member that is to have another size: what it grows by must be free on its own node.
func (p *planner) resize(a *ask) {
	if p.refuseInvalid(a) {
		return
	}
	a.verdict, a.cause = Wait, noRoom
	if a.exceedsQuota() {
		return
	}
	member, group := a.request.Resizes, &a.request.Groups[0]
	share, reason, undecided := p.beside(a).FitResize(member, group)
	if reason == "" {
		var resized Resized
		var err error
		if resized.Hold, resized.To, err = p.rooms.free.sketch.LayOutResize(member, group); err == nil {
			a.resized = &resized
			p.rooms.takeShares(a, []placement.Share{share})
			p.note(a, []placement.Share{share})
			return
		}
		reason = err.Error()
	}
	a.home = &Home{Node: member.Node}
	a.homeless, a.homeUndecided = reason, undecided
}

// exceedsQuota reports whether a request has to wait for its project's quota, and notes that.
func (a *ask) exceedsQuota() bool {
	over := a.account.quota.Exceeded(a.account.used, a.wants)
	if len(over) == 0 {
		if a.lacksEnergy() {
			a.verdict, a.cause = Wait, overQuota
			return true
		}
		return false
	}
	a.verdict, a.cause = Wait, overQuota
	a.over = overText(fmt.Sprintf("project %q", a.account.project), a.account.used, a.wants, a.account.quota, over)
	return true
}

// fitHome finds room for a member that goes on.
func fitHome(s *placement.Sketch, home *Home, group api.Group) (fit placement.Fit, ok bool) {
	if home.Node != "" {
		if home.Unfit[home.Node] == "" {
			fit, ok = s.FitOn(home.Node, group)
		}
		if ok || !home.Elsewhere {
			return fit, ok
		}
	}
	restore, _ := s.Without(append(slices.Collect(maps.Keys(home.Unfit)), home.Not))
	fit, _, ok = s.Fit([]api.Group{group})
	restore()
	return fit, ok
}

// whyHomeless tells why a member that goes on has no room.
func whyHomeless(s *placement.Sketch, home *Home, group api.Group) (reason string, undecided bool) {
	if home.Node == "" {
		return s.WhyNowhere(group, home.Not, home.Unfit)
	}
	if reason = home.Unfit[home.Node]; reason == "" {
		reason, undecided = s.WhyNot(home.Node, group)
	}
	if home.Elsewhere {
		other, maybe := s.WhyNowhere(group, home.Node, home.Unfit)
		reason, undecided = reason+"; "+other, undecided || maybe
	}
	return reason, undecided
}

// heal decides on a replacement: room elsewhere than where the member was lost, else the room of a spare, else room there.
func (p *planner) heal(a *ask) {
	if p.refuseInvalid(a) || a.exceedsQuota() {
		return
	}
	if fit, ok := p.rooms.free.fitElsewhere(a); ok && p.findDevices(a, fit) {
		p.admit(a, fit)
		return
	}
	avoids := func(s *api.Assignment) bool { return slices.Contains(a.request.Avoid, s.Node) }
	if len(a.request.Avoid) > 0 && p.takeSpare(a, func(s *api.Assignment) bool { return !avoids(s) }) {
		return
	}
	// Other nodes may have room without the devices that it needs.
	fit, ok := p.rooms.free.fitAnywhere(a)
	if ok && p.findDevices(a, fit) {
		p.admit(a, fit)
		return
	}
	if ok {
		a.verdict, a.cause = Wait, noDevices
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
	if len(g.Devices) > 0 {
		return false // spares hold no devices
	}
	var found *api.Assignment
	for i := range a.request.Spares {
		s := &a.request.Spares[i]
		fits := s.Group == g.Name && (s.Whole || len(s.Slots) == g.Cores && s.MemoryBytes() == int64(g.Memory) && resource.HeldOnNode(s) == besides(&g))
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
		NUMANodes: found.NUMANodes, Memory: found.Memory, ReserveBytes: found.ReserveBytes, DiskBytes: found.DiskBytes, RAMBoot: found.RAMBoot, Oversubscribed: found.Oversubscribed,
		SharesMemory: g.SharesMemory(), Display: g.Display, CPUModel: g.CPUModel, Stack: g.Stack,
		Environment: g.Environment, Whole: found.Whole, Ports: p.in.Free.Ports(found), Data: found.Data,
	}}
	return true
}

// besides is what a member of a group holds of its node besides cores and ordinary memory.
func besides(g *api.Group) resource.Vector {
	v := resource.OnNode(g)
	v[resource.Cores], v[resource.Memory] = 0, 0
	return v
}

// holdForHeal holds room for a replacement that waits.
func (p *planner) holdForHeal(a *ask) {
	if a.cause == noDevices || a.cause == overQuota {
		return // its room alone would not help it
	}
	switch a.cause = p.possibly(a); {
	case a.cause != noCause:
		return
	case p.isClosedFor(a):
		a.shadow = &shadow{}
	case len(p.reserved) >= maxReserved:
		a.shadow = &shadow{skipped: true}
	default:
		a.shadow = p.findShadow(a)
	}
	a.cause = noRoom
	if a.shadow == nil {
		a.cause = ownRoom
		return
	}
	p.healHeld = true
	p.hold(a)
}

// decide decides on a spare, a create or a scale-up.
func (p *planner) decide(a *ask) {
	if p.refuseInvalid(a) {
		return
	}
	if a.missing = placement.WithoutVolume(a.request.Groups); a.missing != "" {
		p.putOff(a, noVolume)
		return
	}
	if a.request.Kind != KindSpare && p.never(a) {
		a.verdict, a.cause = Refuse, neverPossible
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
	if !p.findDevices(a, fit) {
		p.putOff(a, noDevices)
		return
	}
	p.admit(a, fit)
}

// findDevices chooses the devices of the members of a fit. It reports whether there are enough; a.missing says what is not there. Spares
// hold none.
func (p *planner) findDevices(a *ask, fit placement.Fit) bool {
	if a.request.Kind == KindSpare || !placement.WantsDevices(a.request.Groups) {
		return true
	}
	a.devices, a.missing = p.rooms.free.sketch.FitDevices(a.request.Groups, fit, a.request.Mates...)
	return a.missing == ""
}

// refuseInvalid refuses what makes no sense on any site.
func (p *planner) refuseInvalid(a *ask) bool {
	if placement.Check(placement.Request{Cluster: a.request.Cluster, Groups: a.request.Groups}) == nil {
		return false
	}
	a.verdict, a.cause = Refuse, invalid
	return true
}

// never tells whether the site could not hold the request even with every node up and empty.
func (p *planner) never(a *ask) bool {
	groups := a.request.Groups
	for i, s := range a.shapes {
		if groups[i].Size > p.capacity(s).Everything {
			return true
		}
	}
	if len(groups) == 1 {
		return false
	}
	if p.site == nil {
		total := p.rooms.free.sketch.Total()
		p.site = &total
	}
	return !resource.OfGroups(groups).Fits(*p.site)
}

// possibly tells whether the request would fit if every cluster ended: noCause, or what it is that stands against it then.
func (p *planner) possibly(a *ask) cause {
	if p.never(a) {
		return neverPossible
	}
	for i, s := range a.shapes {
		if a.request.Groups[i].Size > p.capacity(s).Emptied {
			return noNodes
		}
	}
	if len(a.shapes) > 1 && !p.rooms.free.sketch.FitsEmptied(a.request.Groups) {
		return notTogether
	}
	return noCause
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

// leavesQuota tells whether the request leaves the head, when that is of the same project, its quota. It must, also when it ends in time:
// a head that was over its quota meanwhile would be none.
func (p *planner) leavesQuota(a *ask) bool {
	return a.account.withHead == nil || len(a.account.quota.Exceeded(*a.account.withHead, a.wants)) == 0
}

func (p *planner) admit(a *ask, fit placement.Fit) {
	p.rooms.take(a, fit)
	p.note(a, fit.Shares)
}

// note notes that a request was given its room.
func (p *planner) note(a *ask, shares []placement.Share) {
	a.verdict = Admit
	a.account.used = a.account.used.Plus(a.wants)
	if a.account.withHead != nil {
		*a.account.withHead = a.account.withHead.Plus(a.wants)
	}
	p.ends = nil
	p.admitted = append(p.admitted, &ending{
		at: a.ends, cluster: a.request.Cluster, project: a.request.Project, shares: shares,
	})
}

// block deals with a request that has no room. The first that may wait becomes the head, unless no end of others would help it.
func (p *planner) block(a *ask, c cause) {
	a.head, a.soon = p.head, c == noRoom && p.comesFree(a)
	if !p.putOff(a, c) {
		return
	}
	if len(a.shapes) == 1 || p.head == nil {
		if possible := p.possibly(a); possible != noCause {
			a.cause = possible
			return
		}
	}
	if p.head != nil || a.request.Kind == KindSpare {
		return
	}
	if a.shadow = p.findShadow(a); a.shadow == nil {
		a.cause = ownRoom
		return
	}
	p.head = a
	p.hold(a)
	withHead := a.account.used.Plus(a.wants)
	a.account.withHead = &withHead
}

// comesFree reports whether a request fits once whole machines are free that nobody has any more: those of a cluster that was deleted go off and are cleaned.
func (p *planner) comesFree(a *ask) bool {
	whole := false
	for i, s := range a.shapes {
		whole = whole || placement.Whole(a.request.Groups[i].Stack)
		if a.request.Groups[i].Size > p.capacityNow(s).Soon {
			return false
		}
	}
	return whole && (len(a.shapes) == 1 || p.rooms.free.sketch.FitsSoon(a.request.Groups))
}

// putOff lets a request wait that may, and refuses another.
func (p *planner) putOff(a *ask, c cause) (waits bool) {
	a.cause, a.verdict = c, Refuse
	if c == neverInQuota {
		return false
	}
	if a.request.Queue || a.request.Kind == KindSpare || a.soon {
		a.verdict = Wait
	}
	return a.verdict == Wait
}
