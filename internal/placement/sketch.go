package placement

import (
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// Sketch is a copy of what is free that plans are tried on: what a plan has given away already, what will be free later, what is held
// for somebody. It shares all but the numbers with its view, so it is made and copied in microseconds for a thousand nodes, and it must
// not be used any more once the view has changed.
//
// A sketch counts cores and memory node by node. Only one on which LayOut is called knows single cores besides.
type Sketch struct {
	view View
	// slots is the occupancy of the nodes that members were laid out on.
	slots map[int32]occupancy
	// whole are the nodes that were given away whole.
	whole map[int32]bool
}

// Share is what some members take of one node.
type Share struct {
	node   int32
	cores  int32
	memory int64
	whole  bool
	// besides is what few members take.
	besides resource.Vector
}

// Fit says how many members of each group go to which node; it holds for the groups it was made for.
type Fit struct {
	counts [][]nodeCount
	// Shares are what it takes of the nodes.
	Shares []Share
}

// Sketch returns a copy of what is free.
func (v *View) Sketch() *Sketch {
	s := &Sketch{view: *v, slots: map[int32]occupancy{}, whole: map[int32]bool{}}
	s.view.rows, s.view.changed = slices.Clone(v.rows), map[int32]resource.Vector{}
	maps.Copy(s.view.changed, v.changed)
	if s.view.claims == nil {
		s.view.claims = map[int32][]api.DeviceClaim{}
	}
	return s
}

// Clone returns a copy that counts; members that were laid out on s are only numbers to it.
func (s *Sketch) Clone() *Sketch { return s.view.Sketch() }

// Trial is Clone with devices and cores of its own: what is taken of those on it is not taken on s.
func (s *Sketch) Trial() *Sketch {
	t := s.Clone()
	t.view.claims = maps.Clone(t.view.claims)
	for id, had := range s.slots {
		t.slots[id] = had.clone()
	}
	return t
}

// CopyFrom makes s count what o counts.
func (s *Sketch) CopyFrom(o *Sketch) {
	copy(s.view.rows, o.view.rows)
	clear(s.view.changed)
	maps.Copy(s.view.changed, o.view.changed)
}

// Held returns an assignment that will give back what it holds; nil when it is not held, is quarantined, or its node is not in the inventory.
func (v *View) Held(assignment string) *api.Assignment {
	h, ok := v.holdings[assignment]
	if !ok || h.quarantined || v.nodes[v.ids[h.assignment.Node]].availability == Absent {
		return nil
	}
	return &h.assignment
}

// ShareOf is what a held assignment gives back when it ends; false when that is nothing: it is not held, it is quarantined, or its node
// is not in the inventory.
func (v *View) ShareOf(assignment string) (Share, bool) {
	a := v.Held(assignment)
	if a == nil {
		return Share{}, false
	}
	id := v.ids[a.Node]
	share := Share{node: id, memory: a.NodeMemoryBytes(), besides: resource.HeldOnNode(a)}
	for _, slot := range a.Slots {
		if _, ok := v.nodes[id].layout.position(slot); ok {
			share.cores++
		}
	}
	return share, true
}

// Take takes shares; more than there is leaves less than nothing, which no member fits into.
func (s *Sketch) Take(shares []Share) {
	for _, t := range shares {
		r := &s.view.rows[t.node]
		r.freeCores, r.freeMemory = r.freeCores-t.cores, r.freeMemory-t.memory
		s.changeBesides(t.node, t.besides, -1)
		if t.whole {
			s.whole[t.node] = true
		}
	}
}

// Give gives shares back, up to what the nodes have.
func (s *Sketch) Give(shares []Share) {
	for _, t := range shares {
		r, c := &s.view.rows[t.node], &s.view.cold[t.node]
		r.freeCores, r.freeMemory = min(r.freeCores+t.cores, c.cores), min(r.freeMemory+t.memory, c.memory)
		s.changeBesides(t.node, t.besides, 1)
	}
}

// Limit leaves on each node no more than o has there, and nothing on nodes that o keeps closed.
func (s *Sketch) Limit(o *Sketch) {
	for id := range s.view.rows {
		s.view.rows[id].limit(&o.view.rows[id])
	}
	for id := range o.view.changed {
		s.limitBesides(id, o)
	}
}

// LimitAt is Limit on the nodes of the shares.
func (s *Sketch) LimitAt(shares []Share, o *Sketch) {
	for _, t := range shares {
		s.view.rows[t.node].limit(&o.view.rows[t.node])
		s.limitBesides(t.node, o)
	}
}

func (r *row) limit(o *row) {
	r.freeCores, r.freeMemory, r.state = min(r.freeCores, o.freeCores), min(r.freeMemory, o.freeMemory), max(r.state, o.state)
}

// Close closes every node that could ever hold a member of one of the groups, were it up and empty.
func (s *Sketch) Close(groups []api.Group) {
	for _, g := range groups {
		f := s.view.finder(g, 0, conditions{}, nil)
		for _, id := range s.view.order {
			c, r := &s.view.cold[id], &s.view.rows[id]
			if c.cores >= f.cores && c.memory >= f.memory && f.besides.Fits(s.view.besides[id].offered) && f.suits(r) {
				r.state = rowUnavailable
			}
		}
	}
}

// Without closes the named nodes until restore is called; nothing else may be called on s in between but Fit. It tells whether any of
// them was open.
func (s *Sketch) Without(nodes []string) (restore func(), any bool) {
	type closed struct {
		id    int32
		state rowState
	}
	var were []closed
	for _, name := range nodes {
		if id, ok := s.view.ids[name]; ok && s.view.rows[id].state <= rowAsleep {
			were = append(were, closed{id, s.view.rows[id].state})
			s.view.rows[id].state = rowUnavailable
		}
	}
	return func() {
		for _, c := range were {
			s.view.rows[c.id].state = c.state
		}
	}, len(were) > 0
}

// Suits reports whether a node may get a member of the group at all, whatever is free there.
func (s *Sketch) Suits(node string, g api.Group) bool {
	id, ok := s.view.ids[node]
	return ok && s.view.rows[id].state.open(g.Stack) && s.view.suits(id, g, &suits{}) == ""
}

// Fit finds room for all members of all groups, or for none of them; then room is how many members of the group that failed would fit.
// It works as Place does, and asks nothing about the reason.
func (s *Sketch) Fit(groups []api.Group) (fit Fit, room int, ok bool) {
	counts, failed := planWithDevices(&s.view, groups)
	if failed != nil {
		return Fit{}, failed.fits, false
	}
	nodes := 0
	for _, c := range counts {
		nodes += len(c)
	}
	fit = Fit{counts: counts, Shares: make([]Share, 0, nodes)}
	for i, g := range groups {
		for _, c := range counts[i] {
			takes := s.view.use(c, g)
			fit.Shares = append(fit.Shares, Share{node: c.id, cores: takes.cores, memory: takes.memory, besides: takes.besides, whole: Whole(g.Stack)})
		}
	}
	return fit, 0, true
}

// FitOn finds room for one member of a group on one node, with the devices that the member needs there.
func (s *Sketch) FitOn(node string, g api.Group) (Fit, bool) {
	id, ok := s.view.ids[node]
	if !ok || s.view.rows[id].state != rowSchedulable || s.view.suits(id, g, &suits{}) != "" {
		return Fit{}, false
	}
	g.Size = 1
	if members, _, _ := s.view.finder(g, 0, conditions{devices: true}, nil).room(id); members < 1 {
		return Fit{}, false
	}
	one := nodeCount{id: id, members: 1}
	takes := s.view.use(one, g)
	return Fit{
		counts: [][]nodeCount{{one}}, Shares: []Share{{node: id, cores: takes.cores, memory: takes.memory, besides: takes.besides, whole: Whole(g.Stack)}},
	}, true
}

// FitsEmptied reports whether the request would fit on the nodes at hand if only what is quarantined were held.
func (s *Sketch) FitsEmptied(groups []api.Group) bool {
	_, failed := planAll(&s.view, groups, conditions{level: emptied})
	return failed == nil
}

// LayOut gives the members of a fit their cores. It takes those, but not their number: call Take besides.
func (s *Sketch) LayOut(groups []api.Group, f Fit) []Placed {
	return layOut(&s.view, groups, f.counts, s.slots)
}

// Capacity is how many members of one group there is room for, under assumptions that give more and more back.
type Capacity struct {
	// Now is what fits; NowByCores what would if memory did not count; WithUnknown with what is free on nodes that are not heard of.
	Now, NowByCores, WithUnknown int
	// NowWithoutDisk, NowWithoutHugePages and NowWithoutRates are what would fit if those did not count.
	NowWithoutDisk, NowWithoutHugePages, NowWithoutRates int
	// Soon is what fits with whole machines that come free by themselves; for members that take no whole machine it is Now.
	Soon int
	// Emptied is what would fit if only what is quarantined were held, Unquarantined if nothing were, Everything with every node up besides.
	Emptied, Unquarantined, Everything int
}

// Capacity counts; the group's size does not matter.
func (s *Sketch) Capacity(g api.Group) Capacity {
	d := diagnosis{v: &s.view}
	count := func(c conditions) int { return d.count(g, 0, c, nil) }
	c := Capacity{
		NowWithoutDisk: count(conditions{ignore: ConstraintDisk}), NowWithoutHugePages: count(conditions{ignore: ConstraintHugePages}),
		NowWithoutRates: count(conditions{ignore: ConstraintUplink}),
		Now:             count(conditions{}), NowByCores: count(conditions{ignore: ConstraintMemory}), WithUnknown: count(conditions{level: freeOrUnknown}),
		Emptied: count(conditions{level: emptied}), Unquarantined: count(conditions{level: unquarantined}), Everything: count(conditions{level: everything}),
	}
	if c.Soon = c.Now; Whole(g.Stack) {
		c.Soon = count(conditions{level: freeSoon})
	}
	return c
}

// FitsSoon reports whether the request would fit with the whole machines that come free by themselves.
func (s *Sketch) FitsSoon(groups []api.Group) bool {
	_, failed := planAll(&s.view, groups, conditions{level: freeSoon})
	return failed == nil
}

// Total returns the cores and memory of the nodes of the inventory, whatever is held and whether they are up or not.
func (s *Sketch) Total() resource.Vector { return s.view.total() }

func (v *View) total() resource.Vector {
	var total resource.Vector
	for _, id := range v.order {
		if c, m, ok := v.available(id, everything); ok {
			total = total.Plus(resource.Vector{resource.Cores: int64(c), resource.Memory: m}).Plus(v.besides[id].offered)
		}
	}
	return total
}

// Refuse names what keeps a group of this size, all that a cluster asks for, from being placed now: Constraint, Undecided and Never are
// those that Place would tell, but for the constraint of what is never possible, which takes a closer look.
func (c Capacity) Refuse(size int) Refusal {
	switch {
	case size <= c.WithUnknown:
		return Refusal{Constraint: ConstraintDown, Undecided: true}
	case size <= c.Emptied && size <= c.NowByCores:
		return Refusal{Constraint: ConstraintMemory}
	case size <= c.Emptied && size <= c.NowWithoutDisk:
		return Refusal{Constraint: ConstraintDisk}
	case size <= c.Emptied && size <= c.NowWithoutHugePages:
		return Refusal{Constraint: ConstraintHugePages}
	case size <= c.Emptied && size <= c.NowWithoutRates:
		return Refusal{Constraint: ConstraintUplink}
	case size <= c.Emptied:
		return Refusal{Constraint: ConstraintCores}
	case size <= c.Unquarantined:
		return Refusal{Constraint: ConstraintQuarantine}
	case size <= c.Everything:
		return Refusal{Constraint: ConstraintDown}
	default:
		return Refusal{Never: true}
	}
}

// Classify is Explain without words: Constraint, Undecided and Never, and nothing about why it is so.
func (s *Sketch) Classify(r Request) *Refusal {
	_, failed := planAll(&s.view, r.Groups, conditions{level: freeNow})
	if failed == nil {
		return nil
	}
	refusal, _ := classify(&s.view, r, failed)
	return refusal
}

// Explain says why the request does not fit, as Place does; nil when it fits.
func (s *Sketch) Explain(r Request) *Refusal {
	if refusal := Check(r); refusal != nil {
		return refusal
	}
	_, failed := planAll(&s.view, r.Groups, conditions{level: freeNow})
	if failed == nil {
		return nil
	}
	return refuse(&s.view, r, failed)
}
