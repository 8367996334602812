package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// connection is one stream between one run of an agent and one leader. Each end learns for itself that it is over. What is said on it
// arrives in order; what is said while the way is cut arrives when it no longer is, unless the other end has given up by then.
type connection struct {
	n *node
	a *agent
	l *leader
	// agentGone, serverGone: that end has closed it, or died.
	agentGone, serverGone bool
	// reported: the agent has told all it has.
	reported bool
	// troubled is since when the server's pings are not answered, zero while they are.
	troubled time.Time
	// deaf is since when the agent hears nothing.
	deaf     time.Time
	up, down pipe
}

// pipe is one direction.
type pipe struct {
	last    time.Time
	waiting []func() // sent, and held up while the way is cut
}

// send brings a message over a pipe that is cut while cut says so.
func (c *connection) send(p *pipe, cut func() bool, arrive func()) {
	w := c.n.w
	at := later(w.now.Add(w.between(time.Millisecond, 20*time.Millisecond)), p.last)
	p.last = at
	w.at(at, func() {
		if len(p.waiting) > 0 || cut() {
			p.waiting = append(p.waiting, arrive)
			return
		}
		arrive()
	})
}

// flush lets what was held up arrive.
func (c *connection) flush(p *pipe) {
	waiting := p.waiting
	p.waiting = nil
	for _, arrive := range waiting {
		arrive()
	}
}

// tell brings a message to the agent. Most come in order or not at all; some come late, out of what the agent had taken off a stream
// that is over.
func (c *connection) tell(message func(a *agent)) {
	w := c.n.w
	late := w.chance(LateMessages, 8)
	a := c.a
	arrive := func() {
		a.run(func() {
			if !c.agentGone || late {
				message(a)
			}
		})
	}
	c.send(&c.down, func() bool { return c.n.downCut }, arrive)
	if late {
		// The same once more, and much later.
		w.after(w.between(time.Millisecond, 20*time.Second), func() { a.run(func() { message(a) }) })
	}
}

// say brings a message to the server; what comes on a stream that is over is late.
func (c *connection) say(message func()) {
	w := c.n.w
	late := w.chance(LateMessages, 8)
	c.send(&c.up, func() bool { return c.n.upCut }, func() {
		if c.l.over {
			return
		}
		if !c.serverGone || w.cfg.Without == GuardStream {
			message()
		}
	})
	if late {
		w.after(w.between(time.Millisecond, 20*time.Second), func() {
			if !c.l.over && (!c.serverGone || w.cfg.Without == GuardStream) && !c.current() {
				message()
			}
		})
	}
}

// current tells whether the stream is the one that the leader has for the node.
func (c *connection) current() bool { return c.l.states[c.n.record.Name].conn == c }

// closeAgent closes the agent's end. The server hears of it, if the way is open.
func (c *connection) closeAgent() {
	if c.agentGone {
		return
	}
	c.agentGone = true
	c.look()
	if c.a.conn == c {
		c.a.conn = nil
		c.a.dial()
	}
	c.send(&c.up, func() bool { return c.n.upCut }, c.closeServer)
}

// closeServer closes the server's end. The agent hears of it, if the way is open and the machine runs.
func (c *connection) closeServer() {
	if c.serverGone {
		return
	}
	c.serverGone = true
	s := c.l.states[c.n.record.Name]
	if s.conn == c {
		s.heard = c.lastWord()
		s.conn = nil
		c.l.wake(0)
	}
	c.send(&c.down, func() bool { return c.n.downCut }, func() { c.a.run(c.closeAgent) })
}

// lastWord is when the server last had an answer to a ping.
func (c *connection) lastWord() time.Time {
	if c.troubled.IsZero() {
		return c.n.w.now
	}
	return c.troubled
}

// look notes whether pings are answered and whether the agent hears anything.
func (c *connection) look() {
	n, w := c.n, c.n.w
	bad := c.agentGone || c.a.over || !n.up || c.a.asleep || n.upCut || n.downCut && w.cfg.Without != GuardEcho
	switch {
	case bad && c.troubled.IsZero():
		c.troubled = w.now
		c.l.wake(0)
	case !bad && !c.troubled.IsZero():
		c.troubled = time.Time{}
		c.l.wake(0)
	}
	deaf := n.downCut || c.l.over || c.serverGone
	switch {
	case deaf && c.deaf.IsZero():
		c.deaf = w.now
		w.after(lifecycle.DefaultDeathTimer, func() {
			c.a.run(func() {
				if !c.deaf.IsZero() && w.now.Sub(c.deaf) >= lifecycle.DefaultDeathTimer {
					c.closeAgent()
				}
			})
		})
	case !deaf:
		c.deaf = time.Time{}
	}
}

// dial lets the agent look for a leader until it finds one.
func (a *agent) dial() {
	w := a.n.w
	w.after(w.between(time.Millisecond, time.Second), func() {
		a.run(func() {
			if a.conn != nil {
				return
			}
			if l := a.n.reach(); l != nil {
				a.connect(l)
				return
			}
			a.dial()
		})
	})
}

// reach finds a leader that takes the agent: the one there is, or one that does not know yet that it was deposed.
func (n *node) reach() *leader {
	w := n.w
	if n.upCut || n.downCut {
		return nil
	}
	l := w.leader
	if len(w.zombies) > 0 && (l == nil || w.random.IntN(2) == 0) {
		l = w.zombies[w.random.IntN(len(w.zombies))]
	}
	if l == nil || l.over || n.term > l.term && w.cfg.Without != GuardTerm {
		return nil
	}
	return l
}

func (a *agent) connect(l *leader) {
	c := &connection{n: a.n, a: a, l: l}
	a.conn, a.said = c, nil
	s := l.states[a.n.record.Name]
	if old := s.conn; old != nil {
		old.closeServer()
	}
	s.conn, s.heard, s.sent = c, a.n.w.now, nil
	s.looked = -1
	a.n.conns = append(a.n.conns, c)
	l.wake(0)
	a.report()
}

// relook looks at all connections of the machine after something about it or its ways has changed.
func (n *node) relook() {
	conns := n.conns
	n.conns = nil
	for _, c := range conns {
		if c.agentGone && c.serverGone {
			continue
		}
		n.conns = append(n.conns, c)
		c.look()
	}
}

// cut cuts the way from the machine, the way to it, or both, for a while.
func (n *node) cut(up, down bool, away time.Duration) {
	n.w.trace("%s is cut off: up %t, down %t, for %s", n.record.Name, up, down, away)
	n.upCut, n.downCut = n.upCut || up, n.downCut || down
	n.relook()
	n.w.after(away, n.mend)
}

// mend ends all cuts; what was held up arrives.
func (n *node) mend() {
	if !n.upCut && !n.downCut {
		return
	}
	n.w.trace("%s can be reached again", n.record.Name)
	n.upCut, n.downCut = false, false
	conns := n.conns
	n.relook()
	for _, c := range conns {
		c.flush(&c.up)
		c.flush(&c.down)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
