package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// leader is one leadership: a term, and a memory that is lost with it.
type leader struct {
	w     *world
	term  int64
	since time.Time
	// over: it has crashed. A leader that was deposed without noticing is not over, only guarded.
	over   bool
	view   *placement.View
	states map[string]*nodeMemory
	// last are the member phases seen last, by assignment ID: for the check of transitions.
	last   map[string]api.MemberPhase
	chunks int
	woken  *event
}

// nodeMemory is what a leader knows of one node.
type nodeMemory struct {
	phase api.NodePhase
	conn  *connection
	// heard is when it last said anything; while it is connected and not silent, that is now.
	heard    time.Time
	observed observed
	// sent is what it was told last, looked the revision at which that was worked out.
	sent   string
	looked int64
}

// observed is what an agent reports: all it has.
type observed struct {
	members map[string]lifecycle.Observation
}

// elect makes a new leader, who reads everything from the store.
func (w *world) elect() {
	w.store.term++
	w.stats.Elections++
	l := &leader{w: w, term: w.store.term, since: w.now, states: map[string]*nodeMemory{}, last: map[string]api.MemberPhase{}}
	w.leader = l
	w.trace("leader of term %d", l.term)
	if w.cfg.Without != GuardGarbage {
		w.store.collectGarbage()
	}
	for _, n := range w.nodes {
		l.states[n.record.Name] = &nodeMemory{}
	}
	view, err := w.replay(l)
	if err != nil {
		w.err = err
		return
	}
	l.view = view
	for _, n := range w.nodes {
		n.reconnect()
	}
	l.wake(0)
}

// replay makes the view of what is committed, with the availability of nodes as a leader knows it.
func (w *world) replay(l *leader) (*placement.View, error) {
	var nodes []placement.NodeState
	for _, n := range w.nodes {
		nodes = append(nodes, placement.NodeState{Record: n.record, Availability: placement.AvailabilityOf(l.states[n.record.Name].phase, false)})
	}
	var held []placement.Held
	for _, name := range w.store.names() {
		for _, a := range w.store.assignments(w.store.records[name]) {
			if !a.Clean {
				held = append(held, placement.Held{Assignment: *a.Assignment, Releasing: a.Releasing})
			}
		}
	}
	return placement.Build(nodes, held, w.store.quarantined())
}

// crash ends a leadership with all it remembers.
func (l *leader) crash() {
	if l.over {
		return
	}
	l.w.trace("leader of term %d crashes", l.term)
	l.over = true
	if l.w.leader == l {
		l.w.depose()
	}
}

// depose takes the lead from the leader, who may go on without knowing, and lets another be elected.
func (w *world) depose() {
	w.leader = nil
	for _, n := range w.nodes {
		n.disconnect()
	}
	w.after(w.between(100*time.Millisecond, 3*time.Second), w.elect)
}

// wake lets the leader look at everything, d from now at the latest.
func (l *leader) wake(d time.Duration) {
	t := l.w.now.Add(d)
	if l.woken != nil && !l.woken.at.After(t) {
		return
	}
	if l.woken != nil {
		l.woken.cancelled = true
	}
	l.woken = l.w.at(t, func() {
		l.woken = nil
		l.pass()
	})
}

func (l *leader) wakeAt(t time.Time) { l.wake(max(0, t.Sub(l.w.now))) }

// pass looks at all nodes and clusters once and makes true what is planned.
func (l *leader) pass() {
	if l.over {
		return
	}
	for _, n := range l.w.nodes {
		l.planNode(n)
	}
	for _, name := range l.w.store.names() {
		if l.over || l.w.err != nil {
			return
		}
		l.planCluster(name)
	}
	for _, q := range l.w.store.quarantined() {
		l.planQuarantine(q)
	}
	for _, n := range l.w.nodes {
		l.sendDesired(n)
	}
}

func (l *leader) planNode(n *node) {
	s := l.states[n.record.Name]
	if s.conn != nil {
		s.heard = n.lastWord()
	}
	in := lifecycle.NodeInput{
		Name: n.record.Name, Phase: s.phase, Connected: s.conn != nil, LastSeen: s.heard, LeaderSince: l.since,
		Now: l.w.now, DeathTimer: lifecycle.DefaultDeathTimer,
	}
	if l.w.cfg.Without == GuardGrace {
		in.LeaderSince = time.Time{}
	}
	for _, op := range lifecycle.PlanNode(in) {
		switch op := op.(type) {
		case lifecycle.SetNodePhase:
			l.must(l.checkDeath(n, op.To))
			transition(l, lifecycle.Nodes(), s.phase, op.To)
			s.phase = op.To
			l.view.SetAvailability(n.record.Name, placement.AvailabilityOf(op.To, false))
			l.wake(0)
		case lifecycle.Emit:
			l.emit(op)
		case lifecycle.WakeAt:
			// A node that talks is heard of again before its doubt or death: only silence lets them come.
			if s.conn == nil || !n.silentSince.IsZero() {
				l.wakeAt(op.Time)
			}
		}
	}
}

func (l *leader) planQuarantine(q api.Quarantine) {
	clean := l.states[q.Assignment.Node].observed.members[q.Assignment.ID].Clean
	for _, op := range lifecycle.PlanQuarantine(q, clean) {
		switch op := op.(type) {
		case lifecycle.EndQuarantine:
			if l.commit("quarantine of %s ends", op.ID)(func() { delete(l.w.store.quarantines, op.ID) }) {
				l.must(l.view.Free(op.ID))
			}
		case lifecycle.Emit:
			l.emit(op)
		}
	}
}

// commit returns what writes under the leader's guard; it tells whether the write was made. A write that is refused ends a leader: it
// has learned that it does not lead.
func (l *leader) commit(format string, args ...any) func(write func()) bool {
	return func(write func()) bool {
		if l.over {
			return false
		}
		if err := l.w.store.commit(l.term, write); err != nil {
			l.w.stats.Rejected++
			l.w.trace("refused, leader of term %d was deposed: "+format, append([]any{l.term}, args...)...)
			l.over = true
			return false
		}
		l.w.stats.Commits++
		l.w.trace(format, args...)
		l.wake(0)
		return true
	}
}

// must ends the simulation when what can't fail fails.
func (l *leader) must(err error) {
	if err != nil && l.w.err == nil {
		l.w.err = err
	}
}

// transition checks a change of phase against the table, and counts it.
func transition[P ~string](l *leader, m lifecycle.Machine[P], from, to P) {
	if l != l.w.leader {
		return // what a deposed leader believes does not become true
	}
	l.must(m.Check(from, to))
	name := transitionName(m.Name, from, to)
	l.w.stats.Transitions[name]++
	l.w.trace("%s", name)
}

func (l *leader) emit(e lifecycle.Emit) {
	if l == l.w.leader {
		l.w.stats.Events[e.Reason]++
	}
}

// sendDesired tells a node's agent all it should have, when that has changed since it was last told.
func (l *leader) sendDesired(n *node) {
	s := l.states[n.record.Name]
	if s.conn == nil || l.over || s.looked == l.w.store.revision {
		return
	}
	s.looked = l.w.store.revision
	d := desired{epoch: lifecycle.Epoch{Term: l.term, Revision: l.w.store.revision}, members: map[string]lifecycle.DesiredMember{}}
	var ids []string
	add := func(a *api.Assignment, release bool) {
		if a.Node == n.record.Name {
			d.members[a.ID] = lifecycle.DesiredMember{Generation: a.Generation, Release: release, Grace: time.Second}
			ids = append(ids, fmt.Sprint(a.ID, release))
		}
	}
	for _, name := range l.w.store.names() {
		for _, a := range l.w.store.assignments(l.w.store.records[name]) {
			if !a.Clean {
				add(a.Assignment, a.Releasing)
			}
		}
	}
	for _, q := range l.w.store.quarantined() {
		add(&q.Assignment, true)
	}
	slices.Sort(ids)
	if text := fmt.Sprint(ids); text != s.sent {
		s.sent = text
		n.send(d)
	}
}
