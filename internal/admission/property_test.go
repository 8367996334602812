package admission

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// live is a cluster, or a part of one, that holds room in a simulated site.
type live struct {
	request     Request
	assignments []api.Assignment
	ends        time.Time
	// hidden: when it ends is not told.
	hidden bool
}

// site is a simulated site: a queue that is planned again whenever something ends.
type site struct {
	t       testing.TB
	scene   string
	now     time.Time
	view    *placement.View
	live    []live
	waiting []Request
	quotas  map[string]api.Quota
	started map[string]time.Time
}

func (s *site) input() Input {
	in := Input{Now: s.now, Free: s.view, Requests: s.waiting, Accounts: map[string]Account{}}
	for p, q := range s.quotas {
		in.Accounts[p] = Account{Quota: q}
	}
	for _, l := range s.live {
		r := Running{Cluster: l.request.Cluster, Project: l.request.Project, Ends: l.ends}
		if l.hidden {
			r.Ends = time.Time{}
		}
		for _, a := range l.assignments {
			r.Assignments = append(r.Assignments, a.ID)
		}
		in.Running = append(in.Running, r)
		acc := in.Accounts[l.request.Project]
		acc.Used = acc.Used.Plus(wants(&l.request, nil))
		in.Accounts[l.request.Project] = acc
	}
	return in
}

// start lets a request hold what it was given.
func (s *site) start(r Request, placed []placement.Placed, hidden bool) {
	s.t.Helper()
	l := live{request: r, hidden: hidden}
	if r.Holds > 0 {
		l.ends = s.now.Add(r.Holds)
	}
	for i, p := range placed {
		a := api.Assignment{
			ID: fmt.Sprintf("%s.%s.%d", r.Cluster, r.Kind, i), Node: p.Node, Slots: p.Slots, Memory: []api.MemoryClaim{{Bytes: p.MemoryBytes()}}, Group: p.Group,
		}
		if err := s.view.Take(a); err != nil {
			s.t.Fatalf("%s\nwhat was admitted can't be taken: %v", s.scene, err)
		}
		l.assignments = append(l.assignments, a)
	}
	s.live = append(s.live, l)
	s.started[r.Cluster+"/"+string(r.Kind)] = s.now
}

// pass plans and starts what is admitted, but only what comes before the first that is held room for when there is no backfill.
func (s *site) pass(backfill bool) {
	s.t.Helper()
	p := newPlanner(s.input())
	asks := p.order()
	p.run(asks)
	p.explain(asks)
	gone := map[int]bool{}
	for _, a := range asks {
		if !backfill && a.shadow != nil && a.request.Kind != KindHeal {
			break
		}
		if !backfill && a.request.Kind != KindHeal && (len(p.closed)+len(p.reserved) > 0) && asks[0].request.Kind == KindHeal && p.head == nil {
			break
		}
		switch a.verdict {
		case Admit:
			s.start(*a.request, a.placed, false)
			gone[a.index] = true
		case Refuse:
			gone[a.index] = true
		case Wait:
		}
	}
	var waiting []Request
	for i, r := range s.waiting {
		if !gone[i] {
			waiting = append(waiting, r)
		}
	}
	s.waiting = waiting
}

// end goes to the next time at which something ends, and frees that; false when nothing ever will.
func (s *site) end() bool {
	next := time.Time{}
	for _, l := range s.live {
		if !l.ends.IsZero() && (next.IsZero() || l.ends.Before(next)) {
			next = l.ends
		}
	}
	if next.IsZero() {
		return false
	}
	s.now = next
	s.live = slices.DeleteFunc(s.live, func(l live) bool {
		if !l.ends.Equal(next) {
			return false
		}
		for _, a := range l.assignments {
			if err := errors.Join(s.view.Release(a.ID), s.view.Free(a.ID)); err != nil {
				s.t.Fatal(err)
			}
		}
		return true
	})
	return true
}

func (s *site) run(backfill bool) {
	s.t.Helper()
	for steps := 0; ; steps++ {
		s.pass(backfill)
		if len(s.waiting) == 0 || !s.end() {
			return
		}
		if steps > 10_000 {
			s.t.Fatalf("%s\nit never comes to an end", s.scene)
		}
	}
}

// drawing says what random sites have.
type drawing struct {
	groups    int // at most, a request
	unlimited bool
	quotas    bool
}

// drawSite makes a random site: what runs on it, what waits. Equal seeds give equal sites.
func drawSite(t testing.TB, seed uint64, d drawing) *site {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	s := &site{
		t: t, scene: fmt.Sprintf("seed %d %+v", seed, d), now: noon, view: placement.NewView(), quotas: map[string]api.Quota{},
		started: map[string]time.Time{},
	}
	for i := range 1 + random.IntN(6) {
		rec := testNode(fmt.Sprint("n", i), 1+random.IntN(8), int64(1+random.IntN(16)))
		if random.IntN(3) == 0 {
			rec.Labels = map[string]string{"disk": "fast"}
		}
		s.view.SetNode(rec, placement.Schedulable)
	}
	draw := func(name string) Request {
		r := Request{
			Cluster: name, Project: fmt.Sprint("p", random.IntN(2)), Kind: KindCreate, Priority: random.IntN(2), Queue: true,
			Since: noon.Add(-time.Duration(random.IntN(1000)) * time.Second),
		}
		for g := range 1 + random.IntN(d.groups) {
			r.Groups = append(r.Groups, testGroup(fmt.Sprint("g", g), 1+random.IntN(4), 1+random.IntN(5), int64(random.IntN(5))))
			if random.IntN(4) == 0 {
				r.Groups[g].NodeSelector = map[string]string{"disk": "fast"}
			}
		}
		if !d.unlimited || random.IntN(4) > 0 {
			r.Holds = time.Duration(1+random.IntN(20)) * time.Minute
		}
		return r
	}
	// What runs without limit ends all at one time that nobody is told.
	secret := time.Duration(1+random.IntN(30)) * time.Minute
	for i := range 12 {
		r := draw(fmt.Sprint("run", i))
		r.Project = "p9"
		if placed, refusal := placement.Place(s.view, placement.Request{Cluster: r.Cluster, Groups: r.Groups}); refusal == nil {
			hidden := r.Holds == 0
			if hidden {
				r.Holds = secret
			}
			s.start(r, placed, hidden)
		}
	}
	for i := range 1 + random.IntN(15) {
		s.waiting = append(s.waiting, draw(fmt.Sprint("wait", i)))
	}
	if d.quotas {
		s.quotas["p0"] = api.Quota{Cores: 8 + random.IntN(16), Members: random.IntN(10)}
	}
	return s
}

const seeds = 300

func firstSeeds(n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(i)
	}
	return all
}

func TestBackfillNeverDelaysTheHead(t *testing.T) {
	heads, backfilled := 0, 0
	for _, d := range []drawing{{groups: 1}, {groups: 3}, {groups: 1, quotas: true}, {groups: 2, unlimited: true, quotas: true}} {
		// Seed 2737 is one in which the groups of the head fit by their numbers, and are not found to fit.
		for _, seed := range append(firstSeeds(seeds), 2737) {
			with, without := drawSite(t, seed, d), drawSite(t, seed, d)
			p := newPlanner(with.input())
			asks := p.order()
			p.run(asks)
			if p.head == nil {
				continue
			}
			heads++
			secretAtPlay := slices.ContainsFunc(with.live, func(l live) bool { return l.hidden })
			if secretAtPlay && !p.head.shadow.at.IsZero() {
				// What ends before its time may let the head start before it was reserved; others may have been let in until then.
				continue
			}
			if slices.ContainsFunc(asks[:slices.Index(asks, p.head)], func(a *ask) bool { return a.verdict == Wait }) {
				// One that goes before it, once its quota allows, say, may take what was reserved.
				continue
			}
			for _, a := range asks[slices.Index(asks, p.head):] {
				if a.verdict == Admit {
					backfilled++
				}
			}
			name := p.head.request.Cluster + "/create"
			with.run(true)
			without.run(false)
			at, ok := with.started[name]
			atWithout, okWithout := without.started[name]
			if okWithout && (!ok || at.After(atWithout)) {
				t.Fatalf("%s\nhead %s started at %v (%t) with backfill, at %v without", with.scene, name, at.Sub(noon), ok, atWithout.Sub(noon))
			}
			if reserved := p.head.shadow.at; !reserved.IsZero() && (!ok || at.After(reserved)) {
				t.Fatalf("%s\nhead %s started at %v (%t), and was told %v", with.scene, name, at.Sub(noon), ok, reserved.Sub(noon))
			}
		}
	}
	if heads < 600 || backfilled < 150 {
		t.Fatalf("the sites prove too little: %d heads, %d backfilled", heads, backfilled)
	}
	t.Logf("%d heads, %d backfilled", heads, backfilled)
}

func TestWithTimeLimitsNobodyWaitsForEver(t *testing.T) {
	for seed := range uint64(seeds) {
		s := drawSite(t, seed, drawing{groups: 3, quotas: true})
		s.run(true)
		if len(s.waiting) > 0 && len(s.live) == 0 {
			for _, d := range Plan(s.input()) {
				if d.Constraint != string(placement.ConstraintTogether) {
					t.Fatalf("%s\nnothing runs, yet %s waits: %s", s.scene, s.waiting[d.Request].Cluster, d.Reason)
				}
			}
		}
	}
}

func TestEqualInputsGiveEqualPlansInWhateverOrderTheyAreListed(t *testing.T) {
	for seed := range uint64(300) {
		d := drawing{groups: 2, unlimited: true, quotas: true}
		in := drawSite(t, seed, d).input()
		want := Plan(in)
		if diff := cmp.Diff(want, Plan(drawSite(t, seed, d).input())); diff != "" {
			t.Fatalf("seed %d: equal inputs, different plans:\n%s", seed, diff)
		}
		random := rand.New(rand.NewPCG(seed, 9))
		requests := slices.Clone(in.Requests)
		random.Shuffle(len(in.Requests), func(i, j int) { in.Requests[i], in.Requests[j] = in.Requests[j], in.Requests[i] })
		random.Shuffle(len(in.Running), func(i, j int) { in.Running[i], in.Running[j] = in.Running[j], in.Running[i] })
		got := Plan(in)
		for i := range got {
			got[i].Request = slices.IndexFunc(requests, func(r Request) bool { return r.Cluster == in.Requests[got[i].Request].Cluster })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d: the order in which requests are listed matters:\n%s", seed, diff)
		}
	}
}
