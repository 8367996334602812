package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/pool"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// shareHalfLife is the time after which use counts half in the fair share: here short, so that it makes a difference.
const shareHalfLife = 10 * time.Minute

// admit asks admission who of those that ask gets room, and makes it true.
func (p *pass) admit() {
	if len(p.asked) == 0 || p.over || p.w.err != nil {
		return
	}
	free, taken := p.free()
	if free == nil {
		return
	}
	in := admission.Input{Now: p.at, Free: free, Running: p.running(), Accounts: p.accounts()}
	for _, a := range p.asked {
		in.Requests = append(in.Requests, p.request(a))
	}
	decisions := admission.Plan(in)
	if p.leads() {
		p.checkQueue(in, decisions)
	}
	var order []string
	given := map[string][]place{} // by cluster: all that one gets now is one commit
	for _, d := range decisions {
		if p.over || p.w.err != nil {
			return
		}
		a := p.asked[d.Request]
		if p.w.cfg.Without == GuardHead {
			alone := in
			alone.Requests = in.Requests[d.Request : d.Request+1]
			d = admission.Plan(alone)[0]
		}
		switch {
		case d.Verdict != admission.Admit && !p.committed[a.name]:
			p.refuse(a, d)
		case d.Verdict != admission.Admit:
		case p.w.cfg.Without == GuardHead:
			p.give(a.name, []place{{a.need, d}}, free, taken)
		default:
			if given[a.name] == nil {
				order = append(order, a.name)
			}
			given[a.name] = append(given[a.name], place{a.need, d})
		}
	}
	for _, name := range order {
		p.give(name, given[name], free, taken)
	}
}

// place is what a need gets.
type place struct {
	need     lifecycle.Need
	decision admission.Decision
}

// free is what is free as of now, and which networks are taken.
func (p *pass) free() (*placement.View, *pool.Pool[int]) {
	s := p.w.store
	var nodes []placement.NodeState
	for _, n := range p.w.nodes {
		nodes = append(nodes, placement.NodeState{Record: n.record, Availability: p.availability(n.record.Name)})
	}
	var holds []placement.Held
	var records []api.ClusterRecord
	for _, name := range s.names() {
		e := s.clusters[name]
		if e.record == nil {
			continue
		}
		records = append(records, *e.record)
		for _, a := range s.assignments(e.record) {
			if !a.clean {
				holds = append(holds, placement.Held{Assignment: *a.Assignment, Releasing: a.releasedAt != nil})
			}
		}
	}
	quarantined := s.quarantined()
	networks := quarantined
	if p.w.cfg.Without == GuardQuarantine {
		networks = nil
	}
	taken := placement.DefaultPool.Indexes(records, networks)
	view, err := placement.Build(nodes, holds, quarantined)
	if err != nil {
		p.w.must(err)
		return nil, nil
	}
	return view, taken
}

// running are the clusters that hold room, and when they give it back.
func (p *pass) running() []admission.Running {
	var all []admission.Running
	for _, name := range p.w.store.names() {
		e := p.w.store.clusters[name]
		r := admission.Running{Cluster: name, Project: e.intent.Project, Ends: p.ends(e)}
		releasing := admission.Running{Cluster: name, Project: e.intent.Project, Releasing: true}
		for _, a := range p.w.store.assignments(e.record) {
			switch {
			case a.clean:
			case a.releasedAt != nil:
				releasing.Assignments = append(releasing.Assignments, a.ID)
			default:
				r.Assignments = append(r.Assignments, a.ID)
			}
		}
		if len(r.Assignments) > 0 {
			all = append(all, r)
		}
		if len(releasing.Assignments) > 0 {
			all = append(all, releasing)
		}
	}
	return all
}

// ends is when a cluster has given back its room at the latest; zero when that is not known. Its grace begins when the end of its limit
// is noticed, which may be late.
func (p *pass) ends(e entry) time.Time {
	expires := lifecycle.Expires(e.intent.Spec, e.record)
	switch {
	case expires.IsZero():
		return expires
	case e.record.ExpiredAt != nil:
		expires = *e.record.ExpiredAt
	default:
		expires = later(expires, p.at)
	}
	return expires.Add(lifecycle.DefaultDeadlines().Grace + admission.ReleaseTime)
}

func (p *pass) request(a asked) admission.Request {
	e := p.w.store.clusters[a.name]
	in := e.intent
	r := admission.Request{
		Cluster: a.name, UID: in.UID, Project: in.Project, User: in.User, Kind: admission.Kind(a.need.Kind),
		Priority: in.Spec.Priority, Since: in.CreatedAt, Queue: in.Spec.Queue,
	}
	if a.need.Kind == lifecycle.NeedScale && in.ScaledAt != nil {
		r.Since = *in.ScaledAt
	}
	if limit := in.Spec.TimeLimit.Std(); limit > 0 {
		r.Holds = limit + lifecycle.DefaultDeadlines().Grace + admission.ReleaseTime
	}
	if end := p.ends(e); !end.IsZero() {
		r.Holds = max(end.Sub(p.at), time.Second)
	}
	count, avoid := map[string]int{}, map[string]bool{}
	for _, m := range a.need.Members {
		count[m.Group]++
		if m.Avoid != "" {
			avoid[m.Avoid] = true
		}
	}
	for _, g := range in.Spec.Groups {
		if count[g.Name] > 0 {
			g.Size = count[g.Name]
			r.Groups = append(r.Groups, g)
		}
	}
	for _, h := range p.w.store.assignments(e.record) {
		switch {
		case h.releasedAt != nil:
		case a.need.Kind == lifecycle.NeedHeal && h.Spare && count[h.Group] > 0:
			r.Spares = append(r.Spares, *h.Assignment)
		case a.need.Kind == lifecycle.NeedSpare:
			avoid[h.Node] = true
		}
	}
	r.Avoid = slices.Sorted(maps.Keys(avoid))
	return r
}

// accounts are the projects with what they hold and held.
func (p *pass) accounts() map[string]admission.Account {
	accounts := map[string]admission.Account{}
	for name, project := range p.w.store.projects {
		a := admission.Account{Quota: project.Quota, Shares: project.Shares}
		if p.w.cfg.Without != GuardQuota {
			a.Used = p.w.store.used(name)
		}
		accounts[name] = a
	}
	for name, d := range usage.Decay(p.w.store.usageInput(p.at), shareHalfLife) {
		a := accounts[name]
		a.DecayedCoreSeconds, a.ByUser = d.Total, d.ByUser
		accounts[name] = a
	}
	return accounts
}

// used is what counts against a project's quota: what its clusters hold, and what they are to get in the place of what they lost.
func (s *store) used(project string) resource.Vector {
	var sum resource.Vector
	for _, name := range s.names() {
		e := s.clusters[name]
		if e.intent.Project != project || e.record == nil {
			continue
		}
		before := sum
		for _, a := range s.assignments(e.record) {
			if a.releasedAt == nil {
				sum = sum.Plus(resource.OfAssignment(a.Assignment))
			}
		}
		for _, lost := range e.record.Lost {
			for _, g := range e.intent.Spec.Groups {
				if g.Name == lost.Group {
					sum = sum.Plus(resource.OfMember(g.Shape))
				}
			}
		}
		if sum != before {
			sum[resource.Clusters]++
		}
	}
	return sum
}

// usageInput is what totals of use depend on.
func (s *store) usageInput(now time.Time) usage.Input {
	in := usage.Input{Now: now, Records: s.usage}
	for _, name := range slices.Sorted(maps.Keys(s.nodeSpans)) {
		in.Nodes = append(in.Nodes, s.nodeSpans[name]...)
	}
	for _, name := range s.names() {
		e := s.clusters[name]
		for _, a := range s.assignments(e.record) {
			if !a.clean {
				in.Open = append(in.Open, usage.Open{
					Cluster: name, UID: e.intent.UID, Project: e.intent.Project, User: e.intent.User,
					Assignment: a.Assignment, ReleasedAt: a.releasedAt,
				})
			}
		}
	}
	for _, q := range s.quarantined() {
		in.Open = append(in.Open, usage.Open{
			Cluster: q.Assignment.Cluster, UID: q.Assignment.ClusterUID, Assignment: &q.Assignment, ReleasedAt: &q.Since,
		})
	}
	return in
}

// refuse carries out what becomes of a need that gets nothing now.
func (p *pass) refuse(a asked, d admission.Decision) {
	c := p.w.store.cluster(a.name)
	p.apply(a.name, c, lifecycle.PlanRefused(c.Record, lifecycle.Answer{
		Kind: a.need.Kind, Refuse: d.Verdict == admission.Refuse, Undecided: d.Undecided, Constraint: d.Constraint, Reason: d.Reason,
	}, p.at))
}

// give commits what admission has given to one cluster.
func (p *pass) give(name string, places []place, free *placement.View, taken *pool.Pool[int]) {
	if p.over || p.w.err != nil || p.committed[name] {
		return
	}
	c := p.w.store.cluster(name)
	where := placement.Decision{ClusterUID: c.Intent.UID, Cluster: name, Generation: 1}
	var network *api.Network
	if c.Record != nil {
		where.Generation, where.Network = c.Record.Generation+1, c.Record.Network
	}
	if where.Network.Index == 0 {
		fresh, err := placement.DefaultPool.TakeNetwork(taken, c.Intent.UID, false)
		p.w.must(err)
		where.Network, network = fresh, &fresh
	}
	if p.w.cfg.Without != GuardAddress {
		where.Held = c.Unclean()
		for _, q := range p.w.store.quarantined() {
			if q.Assignment.ClusterUID == c.Intent.UID {
				where.Held = append(where.Held, q.Assignment)
			}
		}
	}
	var ops []lifecycle.Operation
	for _, place := range places {
		assignments, err := decision.Assign(place.need, place.decision.Placed, where)
		if err != nil {
			p.w.must(err)
			return
		}
		where.Held = append(where.Held, assignments...)
		for _, id := range place.decision.Spares {
			p.w.happened("spare taken over")
			p.w.must(cmp.Or(free.Release(id), free.Free(id)))
		}
		for _, a := range assignments {
			p.w.must(free.Take(a))
		}
		p.w.happened("admitted " + string(place.need.Kind))
		ops = append(ops, lifecycle.PlanPlaced(lifecycle.Placed{
			Need: place.need, Assignments: assignments, Network: network, Spares: place.decision.Spares,
		})...)
		network = nil
	}
	p.apply(name, c, ops)
}
