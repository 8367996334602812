package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// agent is one run of a node's agent: a memory that is lost with it.
type agent struct {
	n    *node
	over bool
	// asleep: it is stopped, and what happens meanwhile happens to it when it wakes.
	asleep   bool
	deferred []func()
	conn     *connection
	// said is what it told last on the connection.
	said    map[string]report
	epoch   lifecycle.Epoch
	current bool
	desired map[string]wanted
	members map[string]*memberMemory
	alarm   alarm
}

// memberMemory is what an agent remembers of one member.
type memberMemory struct {
	busy      bool
	ready     bool
	cleaned   bool
	release   bool
	neverRan  bool
	unhealthy string
	recovered time.Time
	attempts  lifecycle.Attempts
	report    *lifecycle.Report
	clean     bool
}

// wanted is what the leader wants of a member.
type wanted struct {
	lifecycle.DesiredMember
	cluster, name string
	// files names the generated files it should have.
	files string
}

// desired is all that a leader wants on a node.
type desired struct {
	epoch    lifecycle.Epoch
	members  map[string]wanted
	networks map[string]network
}

// report is what an agent says of one member.
type report struct {
	lifecycle.Observation
	files string
}

func newAgent(n *node) {
	a := &agent{n: n, desired: map[string]wanted{}, members: map[string]*memberMemory{}}
	n.agent = a
	a.epoch.Term = n.term
	if n.w.cfg.Without == GuardTerm {
		a.epoch.Term = 0
	}
	for _, id := range slices.Sorted(maps.Keys(n.host)) {
		h := n.host[id]
		if n.w.cfg.Without != GuardRecovery {
			a.member(id).recovered = n.w.now
		}
		if h.state == lifecycle.HostRunning {
			a.hearReady(id, h)
		}
	}
	a.dial()
	a.wake(0)
}

// run does something to the agent, now or when it wakes.
func (a *agent) run(do func()) {
	switch {
	case a.over:
	case a.asleep:
		a.deferred = append(a.deferred, do)
	default:
		do()
	}
}

// awake lets the agent go on: all that has waited for it happens at once.
func (a *agent) awake() {
	if a.over || !a.asleep {
		return
	}
	a.n.w.trace("agent of %s wakes", a.n.record.Name)
	a.asleep = false
	a.n.relook()
	deferred := a.deferred
	a.deferred = nil
	for _, do := range deferred {
		a.run(do)
	}
}

// obey takes over what a leader wants.
func (a *agent) obey(d desired) {
	w := a.n.w
	if err := a.epoch.Accept(d.epoch); err != nil && w.cfg.Without != GuardEpoch {
		w.trace("%s does not obey: %v", a.n.record.Name, err)
		return
	}
	w.checkObedience(a, d.epoch)
	a.epoch, a.current, a.desired = d.epoch, true, d.members
	a.n.term = max(a.n.term, d.epoch.Term)
	a.n.networks, a.n.applied = d.networks, d.epoch
	w.touched()
	a.wake(0)
}

func (a *agent) member(id string) *memberMemory {
	if a.members[id] == nil {
		a.members[id] = &memberMemory{}
	}
	return a.members[id]
}

func (a *agent) wake(d time.Duration) {
	a.alarm.by(a.n.w, d, func() { a.run(a.converge) })
}

// converge plans every member that is wanted, remembered or found, and begins what is to be done.
func (a *agent) converge() {
	ids, newest := map[string]bool{}, map[string]int64{}
	for id, d := range a.desired {
		ids[id] = true
		newest[lineage(id)] = max(newest[lineage(id)], d.Generation)
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
			a.plan(id, newest[lineage(id)])
		}
	}
	a.report()
}

// lineage is an assignment ID without its generation.
func lineage(id string) string { return id[:strings.LastIndexByte(id, '.')] }

func (a *agent) plan(id string, newest int64) {
	m := a.member(id)
	in := lifecycle.MemberInput{
		Current: a.current || a.n.w.cfg.Without == GuardCurrent, NewestGeneration: newest, Host: lifecycle.HostAbsent,
		Ready: m.ready, Unhealthy: m.unhealthy, NeverRan: m.neverRan, Cleaned: m.cleaned, RecoveredAt: m.recovered, Now: a.n.w.now,
	}
	d, ok := a.desired[id]
	if ok {
		in.Desired = &d.DesiredMember
		if d.Release && !m.release {
			m.release, m.attempts = true, lifecycle.Attempts{}
		}
	}
	in.Attempts = m.attempts
	if h := a.n.host[id]; h != nil {
		in.Host, in.HostMessage, in.Stale = h.state, h.message, ok && !d.Release && h.files != d.files
	}
	m.report, m.clean = nil, ok && d.Release && a.n.w.cfg.Without == GuardLooking
	for _, op := range lifecycle.PlanMember(in) {
		a.carryOut(id, m, d, op)
	}
}

func (a *agent) carryOut(id string, m *memberMemory, d wanted, op lifecycle.MemberOperation) {
	switch op := op.(type) {
	case lifecycle.Report:
		m.report = &op
	case lifecycle.ReportClean:
		m.clean = true
	case lifecycle.WakeAt:
		a.wake(op.Time.Sub(a.n.w.now))
	case lifecycle.Reject:
		a.n.w.trace("%s does not start %s: %s", a.n.record.Name, id, op.Reason)
	case lifecycle.Start:
		a.start(id, m, d)
	case lifecycle.Update:
		a.drive(id, m, StartFails, "update", time.Second, func(h *hostMember) { h.files = d.files })
	case lifecycle.Pause:
		a.drive(id, m, FreezeFails, "pause", time.Second, func(h *hostMember) {
			if h.state == lifecycle.HostRunning {
				h.state = lifecycle.HostPaused
			}
		})
	case lifecycle.Resume:
		a.drive(id, m, FreezeFails, "resume", time.Second, func(h *hostMember) {
			if h.state == lifecycle.HostPaused {
				h.state = lifecycle.HostRunning
			}
		})
	case lifecycle.Stop:
		a.drive(id, m, CleanFails, "stop", op.Grace+100*time.Millisecond, func(h *hostMember) {
			h.state, h.message = lifecycle.HostExited, "stopped"
		})
	case lifecycle.Clean:
		a.drive(id, m, CleanFails, "clean", time.Second, func(*hostMember) {
			delete(a.n.host, id)
			m.cleaned, m.ready, m.neverRan, m.unhealthy = true, false, false, ""
		})
	default:
		a.n.w.fail("must", "the simulated agent does not know operation %T", op)
	}
}

func (a *agent) start(id string, m *memberMemory, d wanted) {
	m.cleaned, m.ready, m.unhealthy, m.recovered = false, false, "", time.Time{}
	h := &hostMember{state: lifecycle.HostPrepared, cluster: d.cluster, name: d.name, files: d.files}
	a.n.host[id] = h
	a.n.w.touched()
	a.drive(id, m, StartFails, "start", 3*time.Second, func(h *hostMember) {
		h.state, h.since = lifecycle.HostRunning, a.n.w.now
		m.neverRan = false
		a.hearReady(id, h)
		a.n.endSomeDay(id, h)
		a.n.fallIllSomeDay(id, h)
	})
}

// drive runs a driver's call: it takes its time, and may fail. When the agent ends meanwhile, what had begun may or may not be
// carried through on the host; nobody hears of it.
func (a *agent) drive(id string, m *memberMemory, fails Kind, what string, longest time.Duration, done func(*hostMember)) {
	w, n := a.n.w, a.n
	m.busy = true
	failed := w.chance(fails, 12) || n.sick
	if failed {
		w.checks.disturbed++
	}
	boot, half := n.boots, w.random.IntN(2) == 0
	finish := func() {
		w.trace("%s: %s of %s, failed %t", n.record.Name, what, id, failed)
		h := n.host[id]
		if (h != nil || what == "clean") && !failed {
			done(h)
		}
		if failed && what == "start" && h != nil && half {
			h.state, m.neverRan = lifecycle.HostExited, true // it came up and did not get far
		}
		w.touched()
		m.busy = false
		if failed {
			m.attempts = m.attempts.Fail(what+" failed", w.now)
		}
	}
	w.after(w.between(time.Millisecond, longest), func() {
		if !a.over {
			a.run(func() {
				finish()
				a.wake(0)
			})
			return
		}
		// The machine has failed, the next agent has killed what was left of the call, or it died with the agent.
		if boot == n.boots && n.agent == nil && half {
			finish()
		}
	})
}

// report tells the leader all the agent has, when that is not what it said last.
func (a *agent) report() {
	c := a.conn
	if c == nil {
		return
	}
	told := make(map[string]report, len(a.members))
	for id, m := range a.members {
		switch {
		case m.clean && !m.busy:
			told[id] = report{Observation: lifecycle.Observation{Clean: true}}
		case m.report != nil:
			r := report{Observation: lifecycle.Observation{Phase: m.report.Phase, Message: m.report.Message}}
			if h := a.n.host[id]; h != nil {
				r.files = h.files
			}
			told[id] = r
		}
	}
	if a.said != nil && maps.Equal(a.said, told) {
		return
	}
	a.said = told
	c.say(func() { c.l.hear(c, told) })
}
