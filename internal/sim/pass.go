package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// pass is one look of a leader at everything.
type pass struct {
	*leader
	at    time.Time
	nodes map[string]lifecycle.NodeState
	// committed are the clusters that had a commit in this pass: they are looked at again in the next.
	committed map[string]bool
	asked     []asked
}

// asked is a need of a cluster.
type asked struct {
	name string
	need lifecycle.Need
}

// pass looks at all nodes and clusters once and makes true what is planned.
func (l *leader) pass() {
	if l.over {
		return
	}
	for _, n := range l.w.nodes {
		l.planNode(n)
	}
	for _, n := range l.w.nodes {
		l.planSpan(n)
	}
	p := &pass{leader: l, at: l.now(), nodes: map[string]lifecycle.NodeState{}, committed: map[string]bool{}}
	for name, s := range l.states {
		reported := s.conn != nil && s.conn.reported || l.w.cfg.Without == GuardReported
		p.nodes[name] = lifecycle.NodeState{Phase: s.phase, Reported: reported}
	}
	for _, name := range slices.Clone(l.w.store.names()) {
		if l.over || l.w.err != nil {
			return
		}
		p.cluster(name)
	}
	p.noteGone()
	p.admit()
	for _, q := range l.w.store.quarantined() {
		p.quarantine(q)
	}
	for _, n := range l.w.nodes {
		l.sendDesired(n)
	}
}

// cluster plans one cluster and makes the plan true.
func (p *pass) cluster(name string) {
	c := p.w.store.cluster(name)
	in := p.input(name, c)
	p.noteMembers(name, in)
	ops := lifecycle.PlanCluster(in)
	change := p.apply(name, c, ops)
	if change == nil || change.Dirty {
		return
	}
	for _, need := range change.Needs {
		p.asked = append(p.asked, asked{name, need})
	}
}

// input is what a plan of one cluster depends on.
func (p *pass) input(name string, c decision.Cluster) lifecycle.ClusterInput {
	in := lifecycle.ClusterInput{
		Intent: c.Intent, Record: c.Record, Assignments: c.Assignments(), Observed: map[string]lifecycle.Observation{},
		Nodes: p.nodes, Now: p.at, LeaderSince: p.since, Deadlines: lifecycle.DefaultDeadlines(),
	}
	if p.w.cfg.Without == GuardDeadline {
		in.Deadlines.Clean = longest
	}
	for _, q := range p.w.store.quarantined() {
		if c.Record != nil && q.Assignment.ClusterUID == c.Record.UID {
			in.Quarantined = append(in.Quarantined, &q)
		}
	}
	digest := p.filesOf(name)
	for _, a := range in.Assignments {
		// Only the word of the agent of the assignment's own node counts.
		s := p.states[a.Node]
		r, ok := s.observed[a.ID]
		o := r.Observation
		o.Current, o.Since = r.files == digest, s.since[a.ID]
		lost := a.Releasing && c.Record.Phase != api.ClusterDeleting
		if a.Releasing && p.w.cfg.Without == GuardConfirming || lost && p.w.cfg.Without == GuardLost {
			o, ok = lifecycle.Observation{Clean: true}, true
		}
		if ok {
			in.Observed[a.ID] = o
		}
	}
	return in
}

// apply turns operations into a commit and makes it; it returns what they come to, nil when that is nothing.
func (p *pass) apply(name string, c decision.Cluster, ops []lifecycle.Operation) *decision.Change {
	change, err := decision.Apply(c, ops, p.at)
	if err != nil {
		p.w.must(fmt.Errorf("cluster %s: %w; %+v", name, err, ops))
		return nil
	}
	p.wakeAt(change.WakeAt)
	if !change.Dirty {
		return &change
	}
	e := p.w.store.clusters[name]
	p.write(e, change, ops)
	return &change
}

// chunkSize is how many assignments a chunk holds here: few, so that there are many chunks.
const chunkSize = 2

// write makes a change true: chunks ahead, then the record with all that belongs to it.
func (p *pass) write(base entry, change decision.Change, why []lifecycle.Operation) {
	w, name := p.w, base.intent.Name
	p.committed[name] = true
	record := change.Record
	record.Chunks = slices.Clone(record.Chunks)
	takes := slices.ContainsFunc(why, func(op lifecycle.Operation) bool { _, ok := op.(lifecycle.Hold); return ok })
	for _, b := range change.Add {
		for part := range slices.Chunk(b.Assignments, chunkSize) {
			p.chunks++
			ref := api.ChunkRef{
				ID: fmt.Sprintf("%d-%d", p.term, p.chunks), Count: len(part), Releasing: b.Releasing, ReleasedAt: b.ReleasedAt,
			}
			record.Chunks = append(record.Chunks, ref)
			key, content := chunkKey(record.UID, ref.ID), slices.Clone(part)
			if w.store.commit(condition{term: p.term}, func() { w.store.chunks[key] = content }) != nil {
				p.end(true)
				return
			}
			if w.chance(CrashBetweenWrites, 60) {
				p.crash(false)
				return
			}
		}
	}
	c := condition{
		term: p.term, cluster: name, intentRevision: base.intentRevision, recordRevision: base.recordRevision,
		blind: w.cfg.Without == GuardConflict, takes: takes,
	}
	err := p.commit(c, func() { w.land(base, change, record, p.at) }, "%s: %s", name, operations(why))
	if err == errUnknown && takes && w.cfg.Without != GuardDoubt {
		// It may be true, or become true while this leadership lasts: nothing may be given out before it is over.
		w.trace("leader of term %d steps down", p.term)
		p.end(true)
	}
	if err != nil {
		return
	}
	if w.chance(CrashBetweenWrites, 200) {
		p.crash(false) // committed, and nobody was told
		return
	}
	if p.leads() {
		for _, e := range change.Events {
			p.emit(e.Reason)
		}
	}
}

// land is what a commit does to the store at last.
func (w *world) land(base entry, change decision.Change, record api.ClusterRecord, at time.Time) {
	s, name := w.store, base.intent.Name
	if in := s.clusters[name].intent; in == nil || in.UID != base.intent.UID {
		w.fail("conflict", "what was decided about cluster %s (%s) came true when it was gone", name, base.intent.UID)
		return
	}
	w.checks.before(w, base.intent, at)
	for _, q := range change.Quarantines {
		s.quarantines[q.Assignment.ID] = q
	}
	if change.Usage != nil && w.cfg.Without == GuardUsage && w.chance(CrashBetweenWrites, 20) {
		change.Usage = nil // the leader crashed before it wrote that, too
	}
	if change.Usage != nil {
		s.usage = append(s.usage, change.Usage)
		w.checks.usageWritten(change.Usage)
	}
	from := api.ClusterPending
	if e := s.clusters[name]; e.record != nil {
		from = e.record.Phase
	}
	if change.Forget {
		transition(w, w.tables.clusters, from, "")
		s.putRecord(name, nil)
	} else {
		if record.Phase != from {
			transition(w, w.tables.clusters, from, record.Phase)
			w.checkPhase(&record, from)
		}
		s.putRecord(name, &record)
	}
	w.checks.after(w, base.intent, at)
}

// quarantine frees what was quarantined and has been confirmed clean after all.
func (p *pass) quarantine(q api.Quarantine) {
	id := q.Assignment.ID
	clean := p.states[q.Assignment.Node].observed[id].Clean
	for _, op := range lifecycle.PlanQuarantine(q, clean) {
		switch op := op.(type) {
		case lifecycle.EndQuarantine:
			s := p.w.store
			write := func() {
				if _, still := s.quarantines[id]; !still {
					return
				}
				in := &api.ClusterIntent{UID: q.Assignment.ClusterUID, Name: q.Assignment.Cluster}
				p.w.checks.before(p.w, in, p.at)
				delete(s.quarantines, id)
				record := decision.EndQuarantine(q, p.at)
				s.usage = append(s.usage, &record)
				p.w.checks.usageWritten(&record)
				p.w.checks.after(p.w, in, p.at)
			}
			if p.commit(condition{term: p.term}, write, "quarantine of %s ends", op.ID) != nil {
				return
			}
		case lifecycle.Emit:
			p.emit(op.Reason)
		}
	}
}

// availability is what a node is to placement.
func (p *pass) availability(node string) placement.Availability {
	return placement.AvailabilityOf(p.nodes[node].Phase, p.w.store.controls[node].Drained)
}
