package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// leader is one leadership: a term, and a memory that is lost with it.
type leader struct {
	w     *world
	term  int64
	clock siteClock
	since time.Time // by its clock
	// over: it has crashed, or learned that it does not lead. A leader that was deposed without noticing is not over, only guarded.
	over   bool
	states map[string]*nodeMemory
	// last is what was seen last of members, by cluster, for the check of transitions; first: nothing was looked at yet.
	last  map[string]*memberLog
	first bool
	// doubtful is when the outcome of a commit was last unknown.
	doubtful time.Time
	files    map[string]files // by cluster
	chunks   int
	alarm    alarm
}

// nodeMemory is what a leader knows of one node.
type nodeMemory struct {
	phase api.NodePhase
	conn  *connection
	// heard is when it last answered, by the world's clock; while it is connected and in no trouble, that is now.
	heard    time.Time
	observed map[string]report
	since    map[string]time.Time // when the present phase of a member was first heard, in a row
	// sent is what it was told last, looked the revision at which that was worked out.
	sent   *desired
	looked int64
}

// elect makes a new leader, who reads everything from the store.
func (w *world) elect() {
	w.store.term++
	w.stats.Elections++
	w.checks.disturbed++
	l := &leader{
		w: w, term: w.store.term, clock: w.newSiteClock(), states: map[string]*nodeMemory{},
		last: map[string]*memberLog{}, first: true, files: map[string]files{},
	}
	l.since = l.now()
	w.leader = l
	w.trace("leader of term %d, whose clock says %s", l.term, l.since.Sub(epoch))
	if w.cfg.Without != GuardGarbage {
		w.store.collectGarbage()
	}
	w.checkGarbage()
	for _, n := range w.nodes {
		l.states[n.record.Name] = &nodeMemory{looked: -1, since: map[string]time.Time{}}
	}
	l.wake(0)
}

// now is the time by the leader's clock.
func (l *leader) now() time.Time { return l.clock.now(l.w) }

// leads tells whether it is the leader indeed.
func (l *leader) leads() bool { return l == l.w.leader }

// wake lets the leader look at everything, d from now at the latest.
func (l *leader) wake(d time.Duration) {
	if !l.over {
		l.alarm.by(l.w, d, l.pass)
	}
}

func (l *leader) wakeAt(t time.Time) {
	if !t.IsZero() {
		l.wake(max(0, t.Sub(l.now())))
	}
}

// hear takes in what an agent tells.
func (l *leader) hear(c *connection, told map[string]report) {
	s := l.states[c.n.record.Name]
	for id, r := range told {
		if old, ok := s.observed[id]; !ok || old.Phase != r.Phase {
			s.since[id] = l.now()
		}
	}
	maps.DeleteFunc(s.since, func(id string, _ time.Time) bool { _, ok := told[id]; return !ok })
	s.observed = told
	c.reported = true
	l.wake(0)
}

// planNode plans one node. Death timers run by the world's clock: a server measures them, it does not read them off a wall.
func (l *leader) planNode(n *node) {
	s := l.states[n.record.Name]
	if s.conn != nil {
		s.heard = s.conn.lastWord()
		if l.w.now.Sub(s.heard) >= deathTimer {
			s.conn.closeServer()
		}
	}
	in := lifecycle.NodeInput{
		Name: n.record.Name, Phase: s.phase, Connected: s.conn != nil, LastSeen: s.heard, LeaderSince: l.clock.read,
		Now: l.w.now, DeathTimer: deathTimer,
	}
	if l.w.cfg.Without == GuardGrace {
		in.LeaderSince = time.Time{}
	}
	for _, op := range lifecycle.PlanNode(in) {
		switch op := op.(type) {
		case lifecycle.SetNodePhase:
			if l.leads() {
				l.checkDeath(n, op.To)
				transition(l.w, l.w.tables.nodes, s.phase, op.To)
			}
			s.phase = op.To
			l.wake(0)
		case lifecycle.Emit:
			l.emit(op.Reason)
		case lifecycle.WakeAt:
			// A node that talks is heard of again before its doubt or death: only silence lets them come.
			if s.conn == nil || !s.conn.troubled.IsZero() {
				l.wake(op.Time.Sub(l.w.now))
			}
		}
	}
}

// planSpan keeps the record of what a node offers, and whether it is down.
func (l *leader) planSpan(n *node) {
	spans := l.w.store.nodeSpans[n.record.Name]
	down, seq := l.states[n.record.Name].phase == api.NodeDown, int64(1)
	var open *api.NodeSpan
	if len(spans) > 0 {
		open = spans[len(spans)-1]
		if unheard := l.states[n.record.Name].phase == api.NodeUnknown; open.Down == down || unheard {
			return
		}
		seq = open.Seq + 1
	}
	at := l.now()
	next := &api.NodeSpan{
		Seq: seq, Node: n.record.Name, Cores: len(n.record.Capacity.Cores), MemoryBytes: n.record.Capacity.MemoryBytes, Down: down, From: at,
	}
	_ = l.commit(condition{term: l.term}, func() {
		if open != nil {
			closed := *open
			closed.To = &at
			spans = append(slices.Clone(spans[:len(spans)-1]), &closed)
		}
		l.w.store.nodeSpans[n.record.Name] = append(spans, next)
	}, "span of %s: down %t", n.record.Name, down)
}

// commit writes under the leader's guard. A write that is refused since another leads ends it: it has learned that it does not lead.
func (l *leader) commit(c condition, write func(), format string, args ...any) error {
	w := l.w
	if l.over {
		return errDeposed
	}
	whenever := w.between(10*time.Millisecond, 10*time.Second)
	odds := 150
	if c.takes {
		odds = 50
	}
	if w.chance(CommitUnknown, odds) {
		switch w.random.IntN(3) {
		case 0:
			w.trace("it is not known whether this was committed (it was): "+format, args...)
			_ = w.store.commit(c, write)
		case 1:
			w.trace("it is not known whether this was committed (it will be, if it still can): "+format, args...)
			w.after(whenever, func() {
				err := w.store.commit(c, write)
				if err == errConflict {
					w.happened("conflict")
				} else if err == nil {
					delete(l.last, c.cluster) // it was decided on what was seen then
				}
				w.trace("late commit, %v: "+format, append([]any{err}, args...)...)
				w.wakeLeader()
			})
		default:
			w.trace("it is not known whether this was committed (it was not): "+format, args...)
		}
		l.doubtful = w.now
		l.wake(time.Second)
		return errUnknown
	}
	switch err := w.store.commit(c, write); err {
	case nil:
		w.stats.Commits++
		w.trace(format, args...)
		l.wake(0)
		return nil
	case errConflict:
		w.happened("conflict")
		w.trace("conflict: "+format, args...)
		l.wake(0)
		return err
	default:
		w.stats.Rejected++
		w.trace("refused, leader of term %d was deposed: "+format, append([]any{l.term}, args...)...)
		l.end(true)
		return err
	}
}

func (l *leader) emit(reason string) {
	if l.leads() {
		l.w.stats.Events[reason]++
	}
}
