package sim

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// link is one agent's stream to one server, as the network carries it: real ends (agentstream.Dial and Handler) with a modelled way between
// them. What is said arrives in order; what is said while the way is cut arrives when it no longer is, unless the other end has given up.
type link struct {
	s        *server
	up, down *pipe
	conn     *agentstream.ClientConn
	// over: the agent's end is closed; what still comes is late. served: the server's end is.
	over   bool
	served atomic.Bool
	since  time.Time
}

// cuts are what is wrong with the ways from and to a node.
type cuts struct{ up, down atomic.Bool }

// errCut: there is no way.
var errCut = errors.New("the server can't be reached")

// dialer carries one request of an agent to a server.
type dialer struct {
	w    *world
	s    *server
	cuts *cuts
	node string // the only node that the bearer may speak for, "" for any
	seed uint64
	link *link
}

// RoundTrip opens a stream.
func (d *dialer) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.cuts.up.Load() || d.cuts.down.Load() || !d.s.alive() {
		return nil, errCut
	}
	l := d.link
	l.up, l.down = newPipe(d.w.ctx, &d.cuts.up, d.seed), newPipe(d.w.ctx, &d.cuts.down, d.seed+1)
	go func() { // what the agent writes goes on its way
		buffer := make([]byte, 64<<10)
		for {
			n, err := r.Body.Read(buffer)
			if n > 0 {
				l.up.send(append([]byte(nil), buffer[:n]...))
			}
			if err != nil {
				l.up.send(nil)
				return
			}
		}
	}()
	ctx, cancel := context.WithCancel(d.s.ctx)
	ctx = agentstream.ForNode(ctx, d.node)
	request := r.Clone(ctx)
	request.ProtoMajor, request.Body = 2, l.up
	answer := &serverEnd{pipe: l.down, header: http.Header{}}
	stopped := context.AfterFunc(ctx, l.up.abort) // a server that ends reads no more
	d.s.parts.Go(func() {
		d.s.agents.ServeHTTP(answer, request)
		l.served.Store(true)
		stopped()
		cancel()
		l.up.abort() // as a server does that is done with a request
		if !d.s.silent.Load() {
			l.down.send(nil)
		}
	})
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", ProtoMajor: 2, Body: l.down, Request: r}, nil
}

// reset ends a stream for both ends at once.
func (l *link) reset() {
	l.up.abort()
	l.down.abort()
}

// serverEnd is the server's side of the answer.
type serverEnd struct {
	*pipe
	header http.Header
}

func (e *serverEnd) Header() http.Header { return e.header }
func (e *serverEnd) WriteHeader(int)     {}
func (e *serverEnd) FlushError() error   { return nil }

func (e *serverEnd) SetWriteDeadline(time.Time) error {
	e.mute()
	return nil
}

func (e *serverEnd) Write(p []byte) (int, error) {
	if !e.send(append([]byte(nil), p...)) {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// pipe is one direction of a stream.
type pipe struct {
	ctx context.Context // of the run
	cut *atomic.Bool

	mu      sync.Mutex
	some    sync.Cond
	random  *rand.Rand
	transit []parcel // on its way, in order
	arrived []byte
	ended   bool // the end has arrived
	muted   bool // nothing more is sent
	last    time.Time
	read    time.Time // when what is taken off it is looked at, at the earliest
}

// parcel is what was sent at once; empty: the end.
type parcel struct {
	content []byte
	due     time.Time
}

func newPipe(ctx context.Context, cut *atomic.Bool, seed uint64) *pipe {
	p := &pipe{ctx: ctx, cut: cut, random: rand.New(rand.NewPCG(seed, 0))}
	p.some.L = &p.mu
	return p
}

// send sends content, or the end; it reports whether anything can still be sent.
func (p *pipe) send(content []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.muted {
		return false
	}
	p.muted = content == nil
	due := time.Now().Add(span(p.random, time.Millisecond, 20*time.Millisecond))
	if due.Before(p.last) {
		due = p.last
	}
	p.last = due
	p.transit = append(p.transit, parcel{content, due})
	time.AfterFunc(time.Until(due), p.deliver)
	return true
}

// lag holds up what is on its way, and what is sent yet.
func (p *pipe) lag(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.transit {
		p.transit[i].due = p.transit[i].due.Add(d)
		time.AfterFunc(time.Until(p.transit[i].due), p.deliver)
	}
	p.last = later(p.last, time.Now()).Add(d)
}

// slow lets the reader look at what it takes off the pipe only later, even if the pipe has ended by then.
func (p *pipe) slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = time.Now().Add(d)
}

// mute ends what can be sent.
func (p *pipe) mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted = true
}

// deliver lets what is due arrive, if the way is open.
func (p *pipe) deliver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut.Load() {
		return
	}
	now := time.Now()
	for len(p.transit) > 0 && !p.transit[0].due.After(now) {
		first := p.transit[0]
		p.transit = p.transit[1:]
		p.arrived = append(p.arrived, first.content...)
		p.ended = p.ended || len(first.content) == 0
	}
	p.some.Broadcast()
}

// abort ends the pipe for both ends, and what was on its way is lost.
func (p *pipe) abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.muted, p.ended, p.transit = true, true, nil
	p.some.Broadcast()
}

// Read waits for content.
func (p *pipe) Read(buffer []byte) (int, error) {
	n, away := p.take(buffer)
	if n == 0 {
		return 0, io.EOF
	}
	if away > 0 {
		pause(p.ctx, away)
	}
	return n, nil
}

// take waits for content, and returns how much there is, 0 at the end, and how long the reader is away before it looks at it.
func (p *pipe) take(buffer []byte) (n int, away time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.arrived) == 0 && !p.ended {
		p.some.Wait()
	}
	n = copy(buffer, p.arrived)
	p.arrived = p.arrived[n:]
	return n, time.Until(p.read)
}

// Close ends what is read.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.some.Broadcast()
	return nil
}
