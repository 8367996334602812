package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// node is one machine: what is on its host survives its agent, and its disk survives the machine.
type node struct {
	w      *world
	record api.NodeRecord
	up     bool
	// boots counts starts of the machine: what a driver did before the last is over.
	boots int
	host  map[string]*hostMember
	agent *agent // nil while none runs
	conn  *connection
	// sick: whatever its drivers do fails.
	sick bool
	// silentSince: the agent is connected and says nothing, since then.
	silentSince time.Time
}

// hostMember is what is on a host of one member.
type hostMember struct {
	state   lifecycle.HostState
	message string
	// since is when it began to run.
	since time.Time
}

// agent is one run of a node's agent: a memory that is lost with it.
type agent struct {
	n       *node
	over    bool
	epoch   lifecycle.Epoch
	current bool
	desired map[string]lifecycle.DesiredMember
	members map[string]*memberMemory
	woken   *event
}

// memberMemory is what an agent remembers of one member.
type memberMemory struct {
	busy      bool
	ready     bool
	cleaned   bool
	release   bool
	recovered time.Time
	attempts  lifecycle.Attempts
	report    *lifecycle.Report
	clean     bool
}

// desired is all that a leader wants on a node.
type desired struct {
	epoch   lifecycle.Epoch
	members map[string]lifecycle.DesiredMember
}

// connection is one stream between one run of an agent and one leader. Reports on it arrive in order; what was under way when it broke is lost.
type connection struct {
	l        *leader
	a        *agent
	closed   bool
	reported bool
	last     time.Time
}

func (n *node) startAgent() {
	if !n.up || n.agent != nil {
		return
	}
	n.w.trace("agent of %s starts", n.record.Name)
	n.agent = &agent{n: n, desired: map[string]lifecycle.DesiredMember{}, members: map[string]*memberMemory{}}
	n.silentSince = time.Time{}
	for _, id := range slices.Sorted(maps.Keys(n.host)) {
		if n.w.cfg.Without != GuardRecovery {
			n.agent.member(id).recovered = n.w.now
		}
		if n.host[id].state == lifecycle.HostRunning {
			n.agent.hearMember(id)
		}
	}
	n.reconnect()
	n.agent.wake(0)
}

func (n *node) stopAgent() {
	if n.agent == nil {
		return
	}
	n.w.trace("agent of %s ends", n.record.Name)
	n.agent.over = true
	n.agent = nil
	n.disconnect()
}

// reconnect lets the agent find the leader after a while.
func (n *node) reconnect() {
	a := n.agent
	n.w.after(n.w.between(time.Millisecond, time.Second), func() {
		l := n.w.leader
		if a == nil || a.over || n.conn != nil || l == nil {
			return
		}
		n.conn = &connection{l: l, a: a}
		s := l.states[n.record.Name]
		s.conn, s.heard, s.sent, s.looked = n.conn, n.w.now, "nothing", -1
		l.wake(0)
		a.report()
	})
}

func (n *node) disconnect() {
	c := n.conn
	if c == nil {
		return
	}
	n.w.trace("%s disconnects", n.record.Name)
	c.closed = true
	n.conn = nil
	s := c.l.states[n.record.Name]
	s.conn = nil
	s.heard = n.lastWord()
	n.silentSince = time.Time{}
	c.l.wake(0)
	n.reconnect()
}

// lastWord is when a connected agent was last heard of: it talks all the time, unless it has fallen silent.
func (n *node) lastWord() time.Time {
	if n.silentSince.IsZero() {
		return n.w.now
	}
	return n.silentSince
}

// send brings a desired state to the agent that runs now. It may come late: after one sent later, or by a leader deposed meanwhile.
func (n *node) send(d desired) {
	a := n.agent
	delay := n.w.between(time.Millisecond, 20*time.Millisecond)
	if n.w.chance(10) {
		delay = n.w.between(time.Millisecond, 20*time.Second)
	}
	n.w.after(delay, func() {
		if a != nil && !a.over {
			a.obey(d)
		}
	})
}

func (a *agent) obey(d desired) {
	if err := a.epoch.Accept(d.epoch); err != nil && a.n.w.cfg.Without != GuardEpoch {
		a.n.w.trace("%s does not obey: %v", a.n.record.Name, err)
		return
	}
	a.epoch, a.current, a.desired = d.epoch, true, d.members
	a.wake(0)
}

// hearMember lets the member's own agent say, after a while, that the member can be reached.
func (a *agent) hearMember(id string) {
	a.n.w.after(a.n.w.between(10*time.Millisecond, 2*time.Second), func() {
		if h := a.n.host[id]; !a.over && h != nil && h.state == lifecycle.HostRunning {
			a.member(id).ready = true
			a.wake(0)
		}
	})
}

func (a *agent) member(id string) *memberMemory {
	if a.members[id] == nil {
		a.members[id] = &memberMemory{}
	}
	return a.members[id]
}

func (a *agent) wake(d time.Duration) {
	w := a.n.w
	t := w.now.Add(d)
	if a.woken != nil && !a.woken.at.After(t) {
		return
	}
	if a.woken != nil {
		a.woken.cancelled = true
	}
	a.woken = w.at(t, func() {
		a.woken = nil
		a.converge()
	})
}

// converge plans every member that is wanted, remembered or found, and begins what is to be done.
func (a *agent) converge() {
	if a.over {
		return
	}
	ids := map[string]bool{}
	for id := range a.desired {
		ids[id] = true
	}
	for id := range a.n.host {
		ids[id] = ids[id] || a.n.w.cfg.Without != GuardDebris
	}
	for id, m := range a.members {
		if m.busy {
			delete(ids, id)
		} else if !ids[id] {
			delete(a.members, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if ids[id] {
			a.plan(id)
		}
	}
	a.report()
}

func (a *agent) plan(id string) {
	m := a.member(id)
	in := lifecycle.MemberInput{
		Current: a.current || a.n.w.cfg.Without == GuardCurrent, Host: lifecycle.HostAbsent, Ready: m.ready, Cleaned: m.cleaned, RecoveredAt: m.recovered,
		Attempts: m.attempts, Now: a.n.w.now,
	}
	if d, ok := a.desired[id]; ok {
		in.Desired = &d
		if d.Release && !m.release {
			m.release, m.attempts, in.Attempts = true, lifecycle.Attempts{}, lifecycle.Attempts{}
		}
	}
	if h := a.n.host[id]; h != nil {
		in.Host, in.HostMessage = h.state, h.message
	}
	m.report, m.clean = nil, in.Desired != nil && in.Desired.Release && a.n.w.cfg.Without == GuardLooking
	for _, op := range lifecycle.PlanMember(in) {
		switch op := op.(type) {
		case lifecycle.Report:
			m.report = &op
		case lifecycle.ReportClean:
			m.clean = true
		case lifecycle.CountFailure:
			m.attempts = m.attempts.Fail(op.Message, a.n.w.now)
			a.wake(m.attempts.NextTry.Sub(a.n.w.now))
		case lifecycle.WakeAt:
			a.wake(op.Time.Sub(a.n.w.now))
		case lifecycle.Start:
			a.start(id, m)
		case lifecycle.Stop:
			a.drive(id, m, "stop", op.Grace+100*time.Millisecond, func(failed bool) {
				if h := a.n.host[id]; h != nil && !failed {
					h.state, h.message = lifecycle.HostExited, "stopped"
				}
			})
		case lifecycle.Clean:
			a.drive(id, m, "clean", time.Second, func(failed bool) {
				if !failed {
					delete(a.n.host, id)
					m.cleaned, m.ready = true, false
				}
			})
		}
	}
}

func (a *agent) start(id string, m *memberMemory) {
	m.cleaned, m.ready, m.recovered = false, false, time.Time{}
	a.n.host[id] = &hostMember{state: lifecycle.HostPrepared}
	a.drive(id, m, "start", 3*time.Second, func(failed bool) {
		if h := a.n.host[id]; h != nil && !failed {
			h.state, h.since = lifecycle.HostRunning, a.n.w.now
			a.hearMember(id)
			a.endSomeDay(id, h)
		}
	})
}

// drive runs a driver's call: it takes its time, and may fail. When the agent ends meanwhile, what had begun may or may not be
// carried through on the host; nobody hears of it.
func (a *agent) drive(id string, m *memberMemory, what string, longest time.Duration, done func(failed bool)) {
	w := a.n.w
	m.busy = true
	failed := w.chance(12) || a.n.sick
	boot := a.n.boots
	w.after(w.between(time.Millisecond, longest), func() {
		if a.over && (boot != a.n.boots || a.n.agent != nil || w.random.IntN(2) == 0) {
			return // the machine has failed, the next agent has killed what was left of the call, or it died with the agent
		}
		w.trace("%s: %s of %s, failed %t", a.n.record.Name, what, id, failed)
		done(failed)
		m.busy = false
		if failed {
			m.attempts = m.attempts.Fail(what+" failed", w.now)
		}
		if !a.over {
			a.wake(0)
		}
	})
}

// endSomeDay lets some members end by themselves.
func (a *agent) endSomeDay(id string, h *hostMember) {
	n, w := a.n, a.n.w
	if !w.chance(6) {
		return
	}
	w.after(w.between(time.Second, 2*time.Minute), func() {
		if n.host[id] != h || h.state != lifecycle.HostRunning {
			return
		}
		w.trace("%s: %s ends by itself", n.record.Name, id)
		h.state, h.message = lifecycle.HostExited, "ended by signal 9"
		if n.agent != nil {
			n.agent.member(id).ready = false
			n.agent.wake(0)
		}
	})
}

// report tells the leader all the agent has, in order on the connection.
func (a *agent) report() {
	c, w := a.n.conn, a.n.w
	if c == nil || c.a != a || !a.n.silentSince.IsZero() {
		return
	}
	o := observed{members: map[string]lifecycle.Observation{}}
	for id, m := range a.members {
		switch {
		case m.clean && !m.busy:
			o.members[id] = lifecycle.Observation{Clean: true}
		case m.report != nil:
			o.members[id] = lifecycle.Observation{Phase: m.report.Phase, Message: m.report.Message}
		}
	}
	at := w.now.Add(w.between(time.Millisecond, 20*time.Millisecond))
	if at.Before(c.last) {
		at = c.last
	}
	c.last = at
	w.at(at, func() {
		if c.closed || c.l.over {
			return
		}
		c.reported = true
		s := c.l.states[a.n.record.Name]
		s.observed, s.heard = o, w.now
		c.l.wake(0)
	})
}
