package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// What agents report are levels: whatever happens between two looks of the leader, it sees only the phases before and after. These faults make
// much happen between two looks: the leader stands still, or its store does, at a moment that is chosen by what a member is just then.

// blinks is how rarely the leader stands still after it has heard of a member in a phase, by the phase. Phases that are common or short make up
// for it.
var blinks = map[api.MemberPhase]int{
	api.MemberPreparing: 120, api.MemberStarting: 120, api.MemberReady: 300,
	api.MemberUnhealthy: 6, api.MemberPaused: 6, api.MemberFailed: 3,
}

// blink may let the leader stand still after a node has told of a member in a phase, while something befalls the node.
func (w *world) blink(n *node, id string, phase api.MemberPhase) {
	r, odds := w.blindRandom, blinks[phase]
	if odds == 0 {
		return
	}
	frozen := phase == api.MemberFailed && n.agent.desired[id].Paused
	soon, back, longer := span(r, 50*time.Millisecond, 500*time.Millisecond), span(r, 6*time.Second, 12*time.Second), span(r, 200*time.Millisecond, 8*time.Second)
	what, dies, silent := r.IntN(3), r.IntN(2) == 0, r.IntN(4) == 0
	if frozen {
		// The loss is decided as soon as it is heard of, and must not become true.
		odds, soon, silent, dies = 1, 0, true, false
		longer += 4 * time.Second
	}
	if !w.chanceOf(r, Blind, odds) {
		return
	}
	w.after(soon, func() {
		if w.isCalm() || n.box != nil || !n.up || n.agent == nil {
			return
		}
		w.trace("%s is %s on %s, and the leader sees nothing of what comes", id, phase, n.record.Name)
		lasts := back + longer
		n.loseMemory()
		if what < 2 {
			n.loseDisk()
		}
		if what == 0 && !frozen { // it is heard to have nothing when the leader looks again
			lasts = back + 1100*time.Millisecond
			n.slow = time.Now().Add(lasts + 500*time.Millisecond)
		}
		n.bootAware(back)
		w.blind(n, lasts, dies, silent)
	})
}

// blinkAtNew may let the leader stand still from when a node hears of a new member on: the node begins with it at once.
func (w *world) blinkAtNew(n *node, m *agentstream.Member) {
	r, odds := w.blindRandom, 80
	lasts, dies := span(r, 4*time.Second, 28*time.Second), r.IntN(2) == 0
	if m.Paused {
		odds = 2
	}
	if w.chanceOf(r, Blind, odds) {
		w.trace("%s is new on %s, and the leader sees nothing of what comes", m.Assignment.ID, n.record.Name)
		w.blind(n, lasts, dies, false)
	}
}

// blind lets the leader, or its store, stand still. What starts on the node meanwhile ends at once, or falls ill.
func (w *world) blind(n *node, lasts time.Duration, dies, silent bool) {
	if lasts = w.spell.extend(time.Now(), lasts); lasts <= 0 {
		return
	}
	w.checks.disturbed.Add(1)
	n.frail, n.dies = time.Now().Add(lasts), dies
	if silent {
		w.store.silence(lasts)
		return
	}
	w.up().stall(lasts)
}

// spell is a time in which the leader stands still, or its store does, again and again. A paused member that fails whenever it is resumed would
// let it go on for minutes, in which nothing is noticed.
type spell struct{ began, ends time.Time }

const (
	longestSpell = 40 * time.Second
	leastCalm    = 5 * time.Second // between two spells
)

// extend returns how long the leader may stand still from now on; not above 0: not at all.
func (s *spell) extend(now time.Time, by time.Duration) time.Duration {
	if now.Sub(s.ends) > leastCalm {
		s.began = now
	}
	by = min(by, s.began.Add(longestSpell).Sub(now))
	s.ends = later(s.ends, now.Add(by))
	return by
}

// bootAware starts the machine after a while, once no deposed leader goes on: an agent that has lost its disk could not tell it from the present
// one.
func (n *node) bootAware(after time.Duration) {
	boots := n.boots
	n.w.after(after, func() {
		switch {
		case n.boots != boots || n.up:
		case n.w.anyUnaware():
			n.bootAware(time.Second)
		default:
			n.boot(0)
		}
	})
}

// anyUnaware reports whether a deposed leader goes on.
func (w *world) anyUnaware() bool {
	w.servers.mu.Lock()
	defer w.servers.mu.Unlock()
	return len(w.servers.unaware) > 0
}

// silence lets the store answer no leader for a while; what leaders ask of it meanwhile does not become true.
func (s *witness) silence(lasts time.Duration) {
	s.w.trace("the store is silent for %s", lasts)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = later(s.silent, time.Now().Add(lasts))
	s.doubtful = s.silent
}

// answersAgain waits until the store answers, and reports whether it was silent.
func (s *witness) answersAgain() bool {
	s.mu.Lock()
	left := time.Until(s.silent)
	s.mu.Unlock()
	if left > 0 {
		pause(s.w.ctx, left)
	}
	return left > 0
}

// hang may let the agent do nothing for a while but answer: its disk does not answer, say. Leaders that stay see deadlines pass.
func (a *agent) hang(d *agentstream.Desired) {
	r := a.n.w.blindRandom
	lasts, odds := span(r, time.Minute, 9*time.Minute), 500
	if a.n.w.steady {
		odds = 25
	}
	isNew := func(m agentstream.Member) bool { return a.isNew(&m) }
	if a.n.box == nil && slices.ContainsFunc(d.Members, isNew) && a.n.w.chanceOf(r, AgentHangs, odds) {
		a.n.w.trace("agent of %s hangs for %s", a.n.record.Name, lasts)
		a.n.w.checks.disturbed.Add(1)
		a.hangs = time.Now().Add(lasts)
		a.wake(lasts)
	}
}

// isNew reports whether a member is to be made that was not wanted before.
func (a *agent) isNew(m *agentstream.Member) bool {
	_, known := a.desired[m.Assignment.ID]
	return !known && !m.Release
}

// stumble may let a stream end while the server has yet to read what it took off it: those words come after the next stream has begun.
func (a *agent) stumble(l *link) {
	w := a.n.w
	slow, soon := span(w.blindRandom, 2*time.Second, 10*time.Second), span(w.blindRandom, 20*time.Millisecond, time.Second)
	if time.Since(l.since) < time.Second || !w.chanceOf(w.blindRandom, LateMessages, 60) {
		return // a greeting that is late is another story: the stream it begins takes the place of the next
	}
	w.trace("the server is slow to read what %s says", a.n.record.Name)
	l.up.slow(slow)
	w.after(soon, func() { a.run(func() { a.leave(l) }) })
}

// rival asks for the same as a cluster, and goes before it, while it is not known whether the cluster got its places.
func (w *world) rival(name string) {
	if !w.cfg.Kinds.Has(Priorities) {
		return
	}
	for _, in := range w.intents() {
		if in.Name == name {
			w.rivals++
			in.Name, in.Project = fmt.Sprintf("rival%d", w.rivals), api.DefaultProject // whose quota does not bind
			in.Spec.Home, in.Spec.Volumes = api.ClusterHome{}, nil                     // which are the other's
			in.Spec.Priority++
			w.create(life{intent: in, lasts: time.Minute})
		}
	}
}
