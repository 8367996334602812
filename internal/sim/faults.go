package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// scheduleFaults lets one thing after the other go wrong until it is calm.
func (w *world) scheduleFaults() {
	w.after(span(w.faultRandom, time.Second, 40*time.Second), func() {
		if w.calm {
			return
		}
		w.fault()
		w.scheduleFaults()
	})
}

// fault lets one thing go wrong. Everything is drawn before it is known whether it may happen, so that the rest stays as it is.
func (w *world) fault() {
	r := w.faultRandom
	kind := AgentRestart + Kind(r.IntN(int(kinds-AgentRestart)))
	n := w.nodes[r.IntN(mostNodes)%len(w.nodes)]
	short, long := span(r, 100*time.Millisecond, 30*time.Second), span(r, time.Minute, 30*time.Minute)
	one, rare := r.IntN(2) == 0, r.IntN(3) == 0
	if !w.cfg.Kinds.Has(kind) {
		return
	}
	away := short
	if rare {
		away = long
	}
	w.checks.disturbed++
	w.happened(kind.String())
	switch kind {
	case AgentRestart:
		n.stopAgent()
		w.after(short, n.startAgent)
	case AgentSleep:
		n.sleep(short)
	case Power:
		if n.up {
			w.trace("%s loses its power", n.record.Name)
			n.loseMemory()
			n.boot(away)
		}
	case Reinstall:
		if n.up {
			w.trace("%s is reinstalled", n.record.Name)
			n.loseMemory()
			n.loseDisk()
			n.boot(longestZombie + away)
		}
	case Sick:
		n.fallSick(away / 2)
	case Cut:
		n.cut(true, true, min(away, 5*time.Minute))
	case CutOneWay:
		n.cut(one, !one, min(away, 5*time.Minute))
	case Reset:
		if n.agent != nil && n.agent.conn != nil {
			w.trace("the stream of %s is reset", n.record.Name)
			c := n.agent.conn
			c.closeServer()
			n.agent.run(c.closeAgent)
		}
	case LeaderCrash:
		if w.leader != nil && !w.steady {
			w.leader.crash(one)
		}
	case Usurp:
		if !w.steady {
			w.usurp()
			if one {
				// Its next agent has nothing but the disk to tell the two leaders apart.
				w.after(time.Second+short/15, func() {
					n.stopAgent()
					n.startAgent()
				})
			}
		}
	case ClockJump:
		w.skew = span(r, -20*time.Minute, 20*time.Minute)
		w.trace("clocks are %s off", w.skew)
	}
}

// becomeCalm ends all faults.
func (w *world) becomeCalm() {
	if w.calm {
		return
	}
	w.trace("calm")
	w.calm = true
	for _, n := range w.nodes {
		n.up, n.sick = true, false
		n.mend()
		if n.agent != nil {
			n.agent.awake()
		}
		n.startAgent()
	}
	w.undrainAll()
	w.wakeLeader()
	w.after(settling, w.endAll)
}

// settling is how long a site may take to come to rest when nothing goes wrong any more: the longest pauses between attempts, the clean
// deadline, a start that is tried again.
const settling = 25 * time.Minute

// endAll deletes every cluster, after a look at where they have come to rest.
func (w *world) endAll() {
	w.checkRest()
	w.trace("everything is deleted")
	w.over = true
	for _, name := range w.store.names() {
		w.delete(w.store.clusters[name].intent)
	}
}

// longestZombie is how long a deposed leader may go on without noticing: its lease has run out by then.
const longestZombie = 20 * time.Second

// usurp elects another leader while the old one goes on, believing that it leads: what it still decides must not become true. Some
// agents hold on to it.
func (w *world) usurp() {
	old := w.leader
	if old == nil {
		return
	}
	w.trace("leader of term %d is deposed and does not notice", old.term)
	w.zombies = append(w.zombies, old)
	w.leader = nil
	for _, n := range w.nodes {
		if c := old.states[n.record.Name].conn; c != nil && w.random.IntN(2) == 0 {
			c.closeServer()
		}
	}
	w.elect()
	for range 3 {
		w.after(w.between(0, 5*time.Second), old.pass)
	}
	w.after(w.between(time.Second, longestZombie), func() { old.end(true) })
}

// crash ends a leadership with all it remembers. politely: the kernel of its machine tells the agents.
func (l *leader) crash(politely bool) {
	if l.over {
		return
	}
	l.w.trace("leader of term %d crashes", l.term)
	l.end(politely)
}

// end ends what a leader does, for one that crashed or has learned that it does not lead.
func (l *leader) end(politely bool) {
	w := l.w
	if l.over {
		return
	}
	l.over = true
	for _, n := range w.nodes {
		if c := l.states[n.record.Name].conn; c != nil && politely {
			c.closeServer()
		}
		n.relook()
	}
	for i, z := range w.zombies {
		if z == l {
			w.zombies = append(w.zombies[:i:i], w.zombies[i+1:]...)
			return
		}
	}
	if w.leader == l {
		w.leader = nil
		w.after(w.between(100*time.Millisecond, 3*time.Second), w.elect)
	}
}

// deathTimer is how long a machine may be silent.
const deathTimer = lifecycle.DefaultDeathTimer
