package monitor

import (
	"errors"
	"time"
)

// pingEvery is the longest time between two pings of a stream.
const pingEvery = time.Second

// pingPace is how often an agent is pinged: often enough for a lost ping or two within the death timer.
func (m *Monitor) pingPace() time.Duration { return min(pingEvery, m.cfg.DeathTimer/5) }

// errNoAnswer ends a stream whose agent does not hear the server, or is not heard.
var errNoAnswer = errors.New("the agent has not answered within the death timer; the connection may work in one direction only")

// pings are those of one stream that have not been answered. The lock of the monitor guards them.
type pings struct {
	newest int64
	sent   []time.Time // of those up to newest, the newest last
}

// send notes that the next ping is sent now, and returns its number.
func (p *pings) send(now time.Time) int64 {
	p.newest++
	p.sent = append(p.sent, now)
	return p.newest
}

// answer returns when ping seq was sent, and false when no ping that waits for an answer has this number. Those before it are
// answered by it, too.
func (p *pings) answer(seq int64) (time.Time, bool) {
	first := p.newest - int64(len(p.sent)) + 1
	if seq < first || seq > p.newest {
		return time.Time{}, false
	}
	at := p.sent[seq-first]
	p.sent = append(p.sent[:0], p.sent[seq-first+1:]...)
	return at, true
}

// ping sends the next ping of a stream, or ends a stream whose agent does not answer: what it says may arrive, but it can't be told
// anything, so its node is dead to this server.
func (m *Monitor) ping(name string, s *stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, now := m.node(name), m.cfg.Now()
	switch {
	case n.stream != s:
	case now.Sub(n.lastSeen) >= m.cfg.DeathTimer:
		s.end(errNoAnswer)
	default:
		s.ping(s.pings.send(now))
	}
}

// answered notes that an agent has answered a ping: it heard the server after that was sent. One that was doubted before is news:
// no clock tells of it.
func (m *Monitor) answered(name string, s *stream, seq int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, now := m.node(name), m.cfg.Now()
	if n.stream != s {
		return
	}
	at, ok := s.pings.answer(seq)
	if !ok {
		return
	}
	if now.Sub(n.lastSeen) >= m.cfg.DeathTimer/2 {
		m.notify(n)
	}
	n.lastSeen = at
}
