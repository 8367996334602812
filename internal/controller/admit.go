package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// errDoubt ends a leadership: a commit that hands out room ended with neither yes nor no (a time-out, say). It may be true already, or
// become true while this leadership lasts, so nothing may be given out before it is over: the next one reads what became of it.
var errDoubt = errors.New("it is unknown whether the last assignments were committed")

// answerHolds is how long an answer holds while nothing changes. Time alone frees nothing, but as use grows and decays another may become
// the first in the queue, and have room that is not enough for the one before.
const answerHolds = time.Minute

// admitFor is how long a pass goes on writing answers. Only the next one tells nodes what they were given, and sees who was lost meanwhile.
const admitFor = time.Second

// answersTogether is how many answers are written together: a hundred small clusters cost few syncs of the disk, and a pass is still left soon.
const answersTogether = 16

// planned is what admission was asked last, by identity: while it is the same, so is the answer, but for the order of the queue.
type planned struct {
	clusters, offers, quarantines, projects, environments, networks, volumes any
	available                                                                string
	asked                                                                    string
}

// admit answers those who need room, as far as there is any.
func (p *pass) admit(ctx context.Context) error {
	if p.lost {
		return nil
	}
	if placed, err := p.gpuServers(ctx); placed || err != nil {
		return err // what was committed brings the next pass
	}
	if len(p.asked) == 0 {
		return nil
	}
	asks, next := p.planned(), p.answeredAt.Add(answerHolds)
	if asks == p.answered && p.raw.Before(next) {
		p.soonerRaw(next)
		return nil
	}
	p.room.Now = p.now
	var err error
	if p.EnergyJoules, err = p.cfg.Cache.EnergyUsed(ctx, p.now); err != nil {
		return err
	}
	free, err := p.room.Update(p.view, p.Available)
	if err != nil {
		return err
	}
	var errs []error
	unanswered := false
	began, before := p.cfg.Now(), p.committed
	for batch := range slices.Chunk(p.answers(admission.Plan(p.Admission(p.asked, free))), answersTogether) {
		each, err := p.answerAll(ctx, batch, p.numbers())
		errs = append(errs, err)
		for i, err := range each {
			switch {
			case errors.Is(err, errDoubt) || errors.Is(err, store.ErrNotLeader):
				return err
			case errors.Is(err, store.ErrConflict):
				unanswered = true
			case err != nil:
				unanswered = true
				errs = append(errs, fmt.Errorf("cluster %q: %w", batch[i].cluster.Name(), err))
			}
		}
		if p.committed > before && p.cfg.Now().Sub(began) >= admitFor {
			unanswered = true // what was written brings the next pass
			break
		}
	}
	if !unanswered && !p.again {
		p.answered, p.answeredAt = asks, p.raw
		p.soonerRaw(p.raw.Add(answerHolds))
	}
	return errors.Join(errs...)
}

// answer is what admission says to one cluster: places for some of its needs, which one commit makes true, or why there is none.
type answer struct {
	cluster *state.Cluster
	places  []place
	waits   []wait
}

type place struct {
	need    lifecycle.Need
	placed  []placement.Placed
	spares  []string
	resized *admission.Resized
}

// front is how many in the queue have their records written anew when what binds them changes. That changes for all with each little
// room that comes or goes, and ten thousand writes would hold up everything else.
const front = 32

type wait struct {
	need     lifecycle.Need
	decision admission.Decision
	// numbers: it was admitted, and lacks a number, or its fabric does not admit it.
	numbers bool
}

// answers gathers decisions by cluster, in the order in which they were made.
func (p *pass) answers(decisions []admission.Decision) []*answer {
	var all []*answer
	of := map[*state.Cluster]*answer{}
	for _, d := range decisions {
		asked := p.asked[d.Request]
		a := of[asked.Cluster]
		if a == nil {
			a = &answer{cluster: asked.Cluster}
			of[asked.Cluster], all = a, append(all, a)
		}
		if d.Verdict == admission.Admit {
			a.places = append(a.places, place{need: asked.Need, placed: d.Placed, spares: d.Spares, resized: d.Resized})
		} else {
			a.waits = append(a.waits, wait{need: asked.Need, decision: d})
		}
	}
	return all
}

// planned names everything but the time that the answer depends on.
func (p *pass) planned() planned {
	available := make([]byte, 0, len(p.view.Nodes))
	for _, n := range p.view.Nodes {
		available = append(available, p.Available(n.Name)[0])
	}
	var asked []byte
	for _, a := range p.asked {
		asked = fmt.Appendf(asked, "%s %s %d\n", a.Cluster.UID(), a.Need.Kind, len(a.Need.Members))
	}
	return planned{
		clusters: identity(p.view.Clusters), offers: p.view.Offers, quarantines: identity(p.view.Quarantines),
		projects: identity(p.view.Projects), environments: identity(p.view.Environments), networks: identity(p.view.Networks), volumes: identity(p.view.Volumes), available: string(available), asked: string(asked),
	}
}

// identity tells lists of views apart: a list that did not change is shared.
func identity[T any](list []*T) any {
	if len(list) == 0 {
		return nil
	}
	return struct {
		first **T
		n     int
	}{&list[0], len(list)}
}

// numbers returns what networks and clusters have of what is handed out once. What is given out in this pass is added.
func (p *pass) numbers() *placement.Numbers {
	if p.taken != nil {
		return p.taken
	}
	var records []*api.ClusterRecord
	for _, c := range p.view.Clusters {
		if c.Record != nil {
			records = append(records, c.Record)
		}
	}
	p.taken = p.cfg.Pool.Numbers(p.view.Networks, records, p.view.Quarantines)
	return p.taken
}

// answerAll makes what admission says to clusters true. It returns what went wrong with each, and with their events.
func (p *pass) answerAll(ctx context.Context, all []*answer, numbers *placement.Numbers) (each []error, err error) {
	each = make([]error, len(all))
	var changes []decided
	var of []int
	for i, a := range all {
		change, err := p.answer(a, numbers)
		if err != nil {
			each[i] = err
			continue
		}
		changes, of = append(changes, decided{a.cluster, change}), append(of, i)
	}
	if slices.ContainsFunc(of, func(i int) bool { return len(all[i].places) > 0 }) {
		failpoint.Hit("controller.before-place")
	}
	outcomes, err := p.commitEach(ctx, changes)
	for n, err := range outcomes {
		if a := all[of[n]]; err != nil && len(a.places) > 0 && !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotLeader) {
			err = fmt.Errorf("%w: %w", errDoubt, err)
		}
		each[of[n]] = err
	}
	return each, err
}

// answer is what one cluster's record becomes by what admission says to it.
func (p *pass) answer(a *answer, numbers *placement.Numbers) (decision.Change, error) {
	if len(a.places) > 0 {
		return p.place(a, numbers)
	}
	c := a.cluster
	var ops []lifecycle.ClusterOperation
	for _, w := range a.waits {
		ops = append(ops, lifecycle.PlanRefused(c.Record, lifecycle.Answer{
			Kind: w.need.Kind, Members: w.need.Members, Refuse: w.decision.Verdict == admission.Refuse, Undecided: w.decision.Undecided || p.justStarted(c),
			Far: w.decision.Position > front, Constraint: w.decision.Constraint, Reason: w.decision.Reason, Numbers: w.numbers,
		}, p.now)...)
	}
	change, err := decision.Apply(c.Decision(), ops, p.now)
	if err == nil && !change.WakeAt.IsZero() {
		p.sooner(change.WakeAt)
		p.again = true
	}
	return change, err
}

// place makes the assignments of what was admitted for one cluster.
func (p *pass) place(a *answer, numbers *placement.Numbers) (decision.Change, error) {
	c, base := a.cluster, a.cluster.Decision()
	at := placement.Decision{ClusterUID: c.UID(), Cluster: c.Name(), Generation: 1, TakenAt: p.now, Held: base.Unclean()}
	if c.Record != nil {
		at.Generation, at.UserIDs = c.Record.Generation+1, c.Record.UserIDs
	}
	for _, q := range p.view.Quarantines {
		if q.Assignment.ClusterUID == c.UID() {
			at.Held = append(at.Held, q.Assignment)
		}
	}
	fresh, joined, err := p.takeNumbers(a, &at, numbers)
	if errors.Is(err, store.ErrConflict) {
		return decision.Change{}, err
	}
	if err != nil {
		return p.unplaced(a, err, numbers)
	}
	base.Beside = at.Beside
	var ops []lifecycle.ClusterOperation
	for _, place := range a.places {
		if place.resized != nil {
			ops = append(ops, lifecycle.PlanResize(place.need, place.resized.Hold, place.resized.To)...)
			continue
		}
		assignments, err := decision.Assign(place.need, place.placed, at)
		if err != nil {
			return decision.Change{}, err
		}
		if err := p.admits(assignments, at.Networks); err != nil {
			return p.unplaced(a, err, numbers)
		}
		pinImages(p.view, c, assignments)
		if err := attachVolumes(p.view, c, assignments, &at); err != nil {
			return p.unplaced(a, err, numbers)
		}
		at.Held = append(at.Held, assignments...)
		ops = append(ops, lifecycle.PlanPlaced(lifecycle.Placed{
			Need: place.need, Assignments: assignments, Networks: fresh, Joined: joined, UserIDs: at.UserIDs, Spares: place.spares,
		})...)
		fresh, joined = nil, nil
		p.noteGiven(at.Networks, assignments)
	}
	return decision.Apply(base, ops, p.now)
}

// unplaced takes the places of one cluster back that it can't have, and has it wait or be refused with the reason.
func (p *pass) unplaced(a *answer, why error, numbers *placement.Numbers) (decision.Change, error) {
	verdict := admission.Refuse
	if a.cluster.Intent.Spec.Queue {
		verdict = admission.Wait
	}
	for _, place := range a.places {
		a.waits = append(a.waits, wait{
			need: place.need, decision: admission.Decision{Verdict: verdict, Constraint: "networks", Reason: why.Error()}, numbers: true,
		})
	}
	a.places = nil
	return p.answer(a, numbers)
}
