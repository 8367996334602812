package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// pass is one look at everything.
type pass struct {
	*leader
	view  *state.View
	now   time.Time
	nodes map[string]lifecycle.NodeState
	clean map[cleanOn]bool
	free  *placement.View // made when the first cluster asks for a place
	taken map[int]bool    // network indexes given out in this pass
}

// cleanOn is an assignment that a node's agent has confirmed clean.
type cleanOn struct{ node, assignmentID string }

// isClean tells whether the agent of an assignment's own node, and no other, has confirmed it clean.
func (p *pass) isClean(a *api.Assignment) bool { return p.clean[cleanOn{a.Node, a.ID}] }

// observe takes down what agents say, once, so that all decisions of a pass rest on the same.
func (p *pass) observe() {
	for _, n := range p.view.Nodes {
		phase, _, _ := p.cfg.Agents.Node(n.Name)
		p.nodes[n.Name] = lifecycle.NodeState{Phase: phase, Reported: p.cfg.Agents.Reported(n.Name)}
		for _, id := range p.cfg.Agents.Clean(n.Name) {
			p.clean[cleanOn{n.Name, id}] = true
		}
	}
}

// cluster plans one cluster and makes the plan true.
func (p *pass) cluster(ctx context.Context, c *state.Cluster) error {
	in := lifecycle.ClusterInput{
		Intent: &c.Intent, Record: c.Record, Observed: map[string]lifecycle.Observation{}, Nodes: p.nodes,
		Now: p.now, LeaderSince: p.since, Deadlines: p.cfg.Deadlines,
	}
	for a := range c.Held() {
		in.Assignments = append(in.Assignments, lifecycle.ClusterAssignment{Assignment: a})
		p.observed(in.Observed, a)
	}
	for a := range c.Releasing() {
		in.Assignments = append(in.Assignments, lifecycle.ClusterAssignment{Assignment: a, Releasing: true})
		p.observed(in.Observed, a)
	}
	ops := lifecycle.PlanCluster(in)
	if slices.Contains(ops, lifecycle.Operation(lifecycle.Place{})) {
		return p.place(ctx, c)
	}
	return p.commit(ctx, c, ops)
}

func (p *pass) observed(into map[string]lifecycle.Observation, a *api.Assignment) {
	o := lifecycle.Observation{Clean: p.isClean(a)}
	phase, message, ok := p.cfg.Agents.Member(a.ID)
	if ok {
		o.Phase, o.Message = phase, message
	}
	if ok || o.Clean {
		into[a.ID] = o
	}
}

// commit makes the operations on one cluster true: all changes of the record in one commit, then the events.
func (p *pass) commit(ctx context.Context, c *state.Cluster, ops []lifecycle.Operation) error {
	change := recordChange{}
	if c.Record != nil {
		change.record = cloneRecord(c.Record)
	} else {
		change.record = api.ClusterRecord{Name: c.Name(), UID: c.UID()}
	}
	var events []api.Event
	forget := false
	for _, op := range oneCommit(ops) {
		switch op := op.(type) {
		case lifecycle.Emit:
			events = append(events, api.Event{
				Time: p.now, Cluster: c.Name(), Reason: op.Reason, Message: op.Message, Member: op.Member, Node: op.Node,
			})
		case lifecycle.WakeAt:
			p.sooner(op.Time)
		case lifecycle.Forget:
			forget = true
		default:
			if err := change.apply(op, c, p.now); err != nil {
				return err
			}
		}
	}
	var revision int64
	var err error
	switch {
	case forget:
		revision, err = p.writer.Forget(ctx, c)
	case change.dirty:
		revision, err = p.writer.CommitRecord(ctx, c, change.record, change.quarantine...)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	p.committed = max(p.committed, revision)
	return p.emit(ctx, events)
}

// emit stores events. They tell what became true, so losing them with a crash loses no truth.
func (p *pass) emit(ctx context.Context, events []api.Event) error {
	if len(events) == 0 {
		return nil
	}
	for _, e := range events {
		p.log.InfoContext(ctx, e.Message, "cluster", e.Cluster, "reason", e.Reason, "member", e.Member, "node", e.Node)
	}
	_, err := p.cfg.Repo.AppendEvents(ctx, events...)
	return err
}

// quarantinesPerCommit is how many assignments pass into quarantine in one commit, which takes store.MaxOps writes at most.
const quarantinesPerCommit = store.MaxOps / 2

// oneCommit cuts off what does not fit one commit; the look that follows the commit goes on with it.
func oneCommit(ops []lifecycle.Operation) []lifecycle.Operation {
	n := 0
	for i, op := range ops {
		if _, ok := op.(lifecycle.Quarantine); ok {
			if n++; n > quarantinesPerCommit {
				return ops[:i]
			}
		}
	}
	return ops
}

// recordChange collects the changes of one cluster's record.
type recordChange struct {
	record     api.ClusterRecord
	quarantine []api.Quarantine
	dirty      bool
}

func cloneRecord(r *api.ClusterRecord) api.ClusterRecord {
	out := *r
	out.Chunks, out.Clean = slices.Clone(r.Chunks), slices.Clone(r.Clean)
	return out
}

func (ch *recordChange) apply(op lifecycle.Operation, c *state.Cluster, now time.Time) error {
	ch.dirty = true
	switch op := op.(type) {
	case lifecycle.SetPhase:
		from := ch.record.Phase
		if c.Record == nil {
			from = api.ClusterPending
		}
		if op.To != from {
			if err := lifecycle.Clusters().Check(from, op.To); err != nil {
				return err
			}
			ch.record.ChangedAt = now
		}
		ch.record.Phase, ch.record.Message = op.To, op.Message
		if op.To == api.ClusterReady && ch.record.ReadyAt == nil {
			ch.record.ReadyAt = &now
		}
	case lifecycle.Release:
		for i := range ch.record.Chunks {
			ch.record.Chunks[i].Releasing = true
		}
		ch.record.Generation++
	case lifecycle.ConfirmClean:
		ch.record.Clean = append(ch.record.Clean, op.IDs...)
	case lifecycle.Quarantine:
		for a := range c.All() {
			if a.ID == op.ID {
				ch.quarantine = append(ch.quarantine, api.Quarantine{Assignment: *a, Reason: op.Reason, Since: now})
				ch.record.Clean = append(ch.record.Clean, op.ID)
			}
		}
	default:
		return fmt.Errorf("the controller does not know operation %T", op)
	}
	return nil
}

// place asks placement and commits its answer.
func (p *pass) place(ctx context.Context, c *state.Cluster) error {
	free, err := p.freeView()
	if err != nil {
		return err
	}
	if d, ok := p.doubts[c.UID()]; ok {
		return p.commitPlaced(ctx, c, d.network, d.assignments)
	}
	placed, refusal := placement.Place(free, placement.Request{Cluster: c.Name(), Groups: c.Intent.Spec.Groups})
	if refusal != nil {
		return p.commit(ctx, c, lifecycle.PlanRefused(refusal.Message, refusal.Undecided || p.justStarted(c), p.now))
	}
	records := make([]api.ClusterRecord, 0, len(p.view.Clusters))
	for _, other := range p.view.Clusters {
		if other.Record != nil {
			records = append(records, *other.Record)
		}
	}
	quarantined := make([]api.Quarantine, 0, len(p.view.Quarantines))
	for _, q := range p.view.Quarantines {
		quarantined = append(quarantined, *q)
	}
	used := p.cfg.Pool.IndexesInUse(records, quarantined)
	for index := range p.taken {
		used[index] = true
	}
	network, err := p.cfg.Pool.LowestFree(used, c.Intent.Spec.Egress)
	if err != nil {
		return p.commit(ctx, c, lifecycle.PlanRefused(err.Error(), false, p.now))
	}
	assignments, err := placement.Assign(placed, placement.Decision{
		ClusterUID: c.UID(), Cluster: c.Name(), Generation: 1, Network: network,
	})
	if err != nil {
		return p.commit(ctx, c, lifecycle.PlanRefused(err.Error(), false, p.now))
	}
	return p.commitPlaced(ctx, c, network, assignments)
}

func (p *pass) commitPlaced(ctx context.Context, c *state.Cluster, network api.Network, assignments []api.Assignment) error {
	nodes := map[string]bool{}
	for _, a := range assignments {
		nodes[a.Node] = true
	}
	record := api.ClusterRecord{Name: c.Name(), UID: c.UID(), Generation: 1, Network: network, ChangedAt: p.now}
	var events []api.Event
	for _, op := range lifecycle.PlanPlaced(len(assignments), len(nodes)) {
		switch op := op.(type) {
		case lifecycle.SetPhase:
			record.Phase, record.Message = op.To, op.Message
		case lifecycle.Emit:
			events = append(events, api.Event{Time: p.now, Cluster: c.Name(), Reason: op.Reason, Message: op.Message})
		}
	}
	revision, err := p.writer.CommitGeneration(ctx, c, record, state.Batch{Assignments: assignments})
	switch {
	case errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader):
		return err
	case err != nil:
		p.doubts[c.UID()] = doubt{network: network, assignments: assignments}
	}
	p.committed = max(p.committed, revision)
	p.taken[network.Index] = true
	for _, a := range assignments {
		if p.free.Holds(a.ID) {
			continue // held since it was in doubt
		}
		if takeErr := p.free.Take(a); takeErr != nil {
			return errors.Join(err, fmt.Errorf("placement gave out what is taken: %w", takeErr))
		}
	}
	if err != nil {
		return err
	}
	return p.emit(ctx, events)
}

// doubt is a generation whose commit ended with an error that says neither yes nor no, a time-out say: it may be true already or
// become true later. What it holds is not given to others, and the same is committed again until the state shows it.
type doubt struct {
	network     api.Network
	assignments []api.Assignment
}

// settle drops the doubts that the view clears: the cluster has a record, or is gone and can get none any more.
func (p *pass) settle() {
	if len(p.doubts) == 0 {
		return
	}
	open := map[string]bool{}
	for _, c := range p.view.Clusters {
		open[c.UID()] = c.Record == nil
	}
	maps.DeleteFunc(p.doubts, func(uid string, _ doubt) bool { return !open[uid] })
}

// justStarted tells whether no node can have joined yet: neither server nor cluster is older than an agent takes to connect.
func (p *pass) justStarted(c *state.Cluster) bool {
	const patience = lifecycle.DefaultDeathTimer
	return len(p.nodes) == 0 && p.now.Sub(p.since) < patience && p.now.Sub(c.Intent.CreatedAt) < patience
}

// freeView is what is free as of this pass: made once, then kept current by the pass's own commits.
func (p *pass) freeView() (*placement.View, error) {
	if p.free != nil {
		return p.free, nil
	}
	var nodes []placement.NodeState
	for _, n := range p.view.Nodes {
		nodes = append(nodes, placement.NodeState{Record: *n, Availability: placement.AvailabilityOf(p.nodes[n.Name].Phase, false)})
	}
	var held []placement.Held
	for _, c := range p.view.Clusters {
		for a := range c.Held() {
			held = append(held, placement.Held{Assignment: *a})
		}
		for a := range c.Releasing() {
			held = append(held, placement.Held{Assignment: *a, Releasing: true})
		}
	}
	quarantined := make([]api.Quarantine, 0, len(p.view.Quarantines))
	for _, q := range p.view.Quarantines {
		quarantined = append(quarantined, *q)
	}
	taken := map[int]bool{}
	for _, d := range p.doubts {
		taken[d.network.Index] = true
		for _, a := range d.assignments {
			held = append(held, placement.Held{Assignment: a})
		}
	}
	free, err := placement.Build(nodes, held, quarantined)
	if err != nil {
		return nil, fmt.Errorf("nothing is placed while stored assignments collide: %w", err)
	}
	p.free, p.taken = free, taken
	return free, nil
}

// quarantines frees what was quarantined and has been confirmed clean after all.
func (p *pass) quarantines(ctx context.Context) error {
	var errs []error
	for _, q := range p.view.Quarantines {
		errs = append(errs, p.quarantine(ctx, q))
	}
	return errors.Join(errs...)
}

func (p *pass) quarantine(ctx context.Context, q *api.Quarantine) error {
	for _, op := range lifecycle.PlanQuarantine(*q, p.isClean(&q.Assignment)) {
		switch op := op.(type) {
		case lifecycle.EndQuarantine:
			revision, err := p.writer.Unquarantine(ctx, op.ID)
			if err != nil {
				return err // nor has the event happened
			}
			p.committed = max(p.committed, revision)
		case lifecycle.Emit:
			if err := p.emit(ctx, []api.Event{{
				Time: p.now, Cluster: q.Assignment.Cluster, Reason: op.Reason, Message: op.Message, Member: op.Member, Node: op.Node,
			}}); err != nil {
				return err
			}
		}
	}
	return nil
}
