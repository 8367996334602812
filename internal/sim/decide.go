package sim

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// planCluster plans one cluster and makes the plan true, in one commit.
func (l *leader) planCluster(name string) {
	s := l.w.store
	record := s.records[name]
	in := lifecycle.ClusterInput{
		Intent: s.intents[name], Record: record, Assignments: s.assignments(record), Observed: map[string]lifecycle.Observation{},
		Nodes: map[string]lifecycle.NodeState{}, Now: l.w.now, LeaderSince: l.since, Deadlines: lifecycle.DefaultDeadlines(),
	}
	for _, a := range in.Assignments {
		// Only the word of the agent of the assignment's own node counts.
		o, ok := l.states[a.Node].observed.members[a.ID]
		if a.Releasing && l.w.cfg.Without == GuardConfirming {
			o, ok = lifecycle.Observation{Clean: true}, true
		}
		if ok {
			in.Observed[a.ID] = o
		}
	}
	for _, n := range l.w.nodes {
		m := l.states[n.record.Name]
		in.Nodes[n.record.Name] = lifecycle.NodeState{Phase: m.phase, Reported: m.conn != nil && m.conn.reported}
		if l.w.cfg.Without == GuardReported {
			in.Nodes[n.record.Name] = lifecycle.NodeState{Phase: m.phase, Reported: true}
		}
	}
	if l.w.cfg.Without == GuardDeadline {
		in.Deadlines.Clean = longest
	}
	l.noteMembers(in)
	ops := lifecycle.PlanCluster(in)
	if slices.Contains(ops, lifecycle.Operation(lifecycle.Place{})) {
		l.place(in)
		return
	}
	l.apply(in, ops, nil)
}

// noteMembers checks that members change phase as the table says.
func (l *leader) noteMembers(in lifecycle.ClusterInput) {
	for _, a := range in.Assignments {
		from, known := l.last[a.ID]
		if a.Clean {
			if known {
				transition(l, lifecycle.Members(), from, "")
				delete(l.last, a.ID)
			}
			continue
		}
		if !known {
			// Committed just now, or read by a new leader: from here on it is watched.
			from = api.MemberAssigned
			transition(l, lifecycle.Members(), "", from)
		}
		to, _ := lifecycle.MemberPhase(a, in.Observed, in.Nodes)
		if to != from {
			transition(l, lifecycle.Members(), from, to)
		}
		l.last[a.ID] = to
	}
}

// place asks placement and commits its answer: chunks ahead, then the header.
func (l *leader) place(in lifecycle.ClusterInput) {
	placed, refusal := placement.Place(l.view, placement.Request{Cluster: in.Intent.Name, Groups: in.Intent.Spec.Groups})
	if refusal != nil {
		l.apply(in, lifecycle.PlanRefused(refusal.Message, refusal.Undecided, l.w.now), nil)
		return
	}
	var records []api.ClusterRecord
	for _, name := range l.w.store.names() {
		if r := l.w.store.records[name]; r != nil {
			records = append(records, *r)
		}
	}
	quarantined := l.w.store.quarantined()
	if l.w.cfg.Without == GuardQuarantine {
		quarantined = nil
	}
	network, err := placement.DefaultPool.LowestFree(placement.DefaultPool.IndexesInUse(records, quarantined), false)
	l.must(err)
	assignments, err := placement.Assign(placed, placement.Decision{
		ClusterUID: in.Intent.UID, Cluster: in.Intent.Name, Generation: 1, Network: network,
	})
	l.must(err)
	record := &api.ClusterRecord{Name: in.Intent.Name, UID: in.Intent.UID, Generation: 1, Phase: api.ClusterPending, Network: network}
	nodes := map[string]bool{}
	for _, a := range assignments {
		nodes[a.Node] = true
	}
	for len(assignments) > 0 {
		n := min(len(assignments), 2)
		l.chunks++
		ref := api.ChunkRef{ID: fmt.Sprintf("%d-%d", l.term, l.chunks), Count: n}
		chunk := assignments[:n:n]
		if !l.commit("chunk %s of %s written ahead", ref.ID, in.Intent.Name)(func() { l.w.store.chunks[in.Intent.UID+"/"+ref.ID] = chunk }) {
			return
		}
		record.Chunks = append(record.Chunks, ref)
		assignments = assignments[n:]
		if l.w.chance(60) {
			l.crash()
			return
		}
	}
	l.apply(in, lifecycle.PlanPlaced(len(placed), len(nodes)), record)
}

// apply makes operations on one cluster true. first is the record of the first generation, whose assignments are taken.
func (l *leader) apply(in lifecycle.ClusterInput, ops []lifecycle.Operation, first *api.ClusterRecord) {
	name := ""
	if in.Intent != nil {
		name = in.Intent.Name
	} else {
		name = in.Record.Name
	}
	record := first
	if record == nil && in.Record != nil {
		copied := *in.Record
		copied.Chunks, copied.Clean = slices.Clone(copied.Chunks), slices.Clone(copied.Clean)
		record = &copied
	} else if record == nil {
		record = &api.ClusterRecord{Name: name, UID: in.Intent.UID, Phase: api.ClusterPending}
	}
	change := &change{l: l, record: record, assignments: in.Assignments}
	if first != nil {
		change.assignments = l.w.store.assignments(first)
		for _, a := range change.assignments {
			change.then = append(change.then, func() error { return l.view.Take(*a.Assignment) })
		}
	}
	for _, op := range ops {
		change.add(op)
	}
	if !change.dirty {
		return
	}
	written := l.commit("%s: %+v", name, ops)(func() { change.write(name) })
	if !written {
		return
	}
	if l.w.chance(200) {
		l.crash() // committed, and nobody was told
		return
	}
	for _, do := range change.then {
		l.must(do())
	}
}

// change gathers what one commit does to a cluster, and what then changes in the leader's view.
type change struct {
	l           *leader
	record      *api.ClusterRecord
	assignments []lifecycle.ClusterAssignment
	quarantine  []api.Quarantine
	forget      bool
	dirty       bool
	then        []func() error
}

func (c *change) add(op lifecycle.Operation) {
	l := c.l
	switch op := op.(type) {
	case lifecycle.Emit:
		l.emit(op)
		return
	case lifecycle.WakeAt:
		l.wakeAt(op.Time)
		return
	case lifecycle.SetPhase:
		if op.To != c.record.Phase {
			transition(l, lifecycle.Clusters(), c.record.Phase, op.To)
			if op.To == api.ClusterDegraded {
				l.must(l.checkAlarm(c))
			}
			c.record.ChangedAt = l.w.now
		}
		c.record.Phase, c.record.Message = op.To, op.Message
	case lifecycle.Release:
		for i := range c.record.Chunks {
			c.record.Chunks[i].Releasing = true
		}
		for _, a := range c.assignments {
			c.then = append(c.then, func() error { return l.view.Release(a.ID) })
		}
	case lifecycle.ConfirmClean:
		c.record.Clean = append(c.record.Clean, op.IDs...)
		for _, id := range op.IDs {
			c.then = append(c.then, func() error { return l.view.Free(id) })
		}
	case lifecycle.Quarantine:
		c.record.Clean = append(c.record.Clean, op.ID)
		at := slices.IndexFunc(c.assignments, func(a lifecycle.ClusterAssignment) bool { return a.ID == op.ID })
		c.quarantine = append(c.quarantine, api.Quarantine{Assignment: *c.assignments[at].Assignment, Reason: op.Reason, Since: l.w.now})
		c.then = append(c.then, func() error { return l.view.Quarantine(op.ID) })
	case lifecycle.Forget:
		transition(l, lifecycle.Clusters(), c.record.Phase, "")
		c.forget = true
	default:
		l.must(fmt.Errorf("the simulated leader does not know operation %T", op))
	}
	c.dirty = true
}

func (c *change) write(name string) {
	s := c.l.w.store
	for _, q := range c.quarantine {
		s.quarantines[q.Assignment.ID] = q
	}
	if !c.forget {
		s.records[name] = c.record
		return
	}
	for _, a := range c.assignments {
		if !a.Clean {
			c.l.must(fmt.Errorf("cluster %s is forgotten while %s is not confirmed clean", name, a.ID))
		}
	}
	for _, ref := range c.record.Chunks {
		delete(s.chunks, c.record.UID+"/"+ref.ID)
	}
	delete(s.intents, name)
	delete(s.records, name)
}
