package monitor

import (
	"context"
	"fmt"
	"sync"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// stream is one connection of an agent. What goes down is written by one goroutine from the newest desired state, so that an
// agent that does not read holds up nobody else.
type stream struct {
	conn   *agentstream.ServerConn
	cancel context.CancelCauseFunc
	woken  chan struct{}

	pings pings

	mu   sync.Mutex
	acks map[string]agentstream.LogAck // newest log acknowledgement by run
	// asked are the runs whose output was asked for; this node has no say in the output of others.
	asked   map[string]*followed
	pinged  int64 // the newest ping to send, 0 when it is sent
	tunnels []agentstream.Tunnel
	// unasked are the questions to send, by ID. The newest ID is lastQuestion.
	unasked      map[int64]agentstream.Down
	lastQuestion int64
	homes        questions[agentstream.HomeCounted]
	checks       questions[agentstream.HostChecked]
	networks     questions[agentstream.NetworkChecked]
	measures     questions[agentstream.Measured]
}

func newStream(conn *agentstream.ServerConn, cancel context.CancelCauseFunc) *stream {
	return &stream{
		conn: conn, cancel: cancel, woken: make(chan struct{}, 1), acks: map[string]agentstream.LogAck{}, asked: map[string]*followed{},
		unasked: map[int64]agentstream.Down{}, homes: newQuestions[agentstream.HomeCounted](homeLimits()), checks: newQuestions[agentstream.HostChecked](checkLimits()),
		networks: newQuestions[agentstream.NetworkChecked](networkLimits()), measures: newQuestions[agentstream.Measured](measureLimits()),
	}
}

// streamTo returns the stream of a node's agent, which must be connected to this server.
func (m *Monitor) streamTo(nodeName string) (*stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil {
		return n.stream, nil
	}
	return nil, fmt.Errorf("the agent of node %q is not connected to this server", nodeName)
}

func (s *stream) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *stream) end(cause error) { s.cancel(cause) }

func (s *stream) ping(seq int64) {
	s.mu.Lock()
	s.pinged = seq
	s.mu.Unlock()
	s.wake()
}

func (s *stream) tunnel(t agentstream.Tunnel) {
	s.mu.Lock()
	s.tunnels = append(s.tunnels, t)
	s.mu.Unlock()
	s.wake()
}

// take returns what is to be sent beside the desired state, once.
func (s *stream) take() []agentstream.Down {
	s.mu.Lock()
	defer s.mu.Unlock()
	var down []agentstream.Down
	if s.pinged != 0 {
		down = append(down, agentstream.Down{Ping: &agentstream.Ping{Seq: s.pinged}})
	}
	for i := range s.tunnels {
		down = append(down, agentstream.Down{Tunnel: &s.tunnels[i]})
	}
	for _, question := range s.unasked {
		down = append(down, question)
	}
	for _, ack := range s.acks {
		down = append(down, agentstream.Down{LogAck: &ack})
	}
	s.pinged, s.tunnels = 0, nil
	clear(s.unasked)
	clear(s.acks)
	return down
}

// sendWaiting sends what take returns.
func (s *stream) sendWaiting() error {
	for _, down := range s.take() {
		if err := s.conn.Send(down); err != nil {
			return err
		}
	}
	return nil
}

// Serve is the life of one agent's stream; it returns when the stream ends.
func (m *Monitor) Serve(ctx context.Context, conn *agentstream.ServerConn) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	first, err := conn.Receive()
	if err != nil || first.Hello == nil || first.Hello.Node.Name == "" {
		m.cfg.Log.WarnContext(ctx, "an agent's stream did not begin with a greeting", "error", err)
		return
	}
	hello := first.Hello
	if hello.Node.Name != conn.Node {
		m.cfg.Log.WarnContext(ctx, "an agent claims to be another node", "node", conn.Node, "claims", hello.Node.Name)
		_ = conn.Send(agentstream.Down{Refused: fmt.Sprintf("this identity is of node %q only", conn.Node)})
		return
	}
	log := m.cfg.Log.With("node", hello.Node.Name)
	s := newStream(conn, cancel)
	if err := m.welcome(ctx, hello, s); err != nil {
		log.WarnContext(ctx, "agent refused", "error", err)
		_ = conn.Send(agentstream.Down{Refused: err.Error()})
		return
	}
	defer m.disconnect(hello.Node.Name, s)
	log.InfoContext(ctx, "agent connected", "version", hello.Node.AgentVersion)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.send(ctx, hello.Node.Name, s)
		cancel(nil)
	}()
	received := make(chan error, 1)
	go func() { received <- m.receive(ctx, hello.Node.Name, s) }()
	err = m.accompany(ctx, hello.Node.Name, s, received)
	cancel(err)
	conn.Abort() // send may be held up by an agent that does not read
	<-ended      // nobody may write once the handler has returned
	log.InfoContext(ctx, "agent disconnected", "reason", err)
}

// welcome registers an agent's node and makes the stream its one. A machine that may not have the name changes nothing, neither here
// nor in what is stored.
func (m *Monitor) welcome(ctx context.Context, hello *agentstream.Hello, s *stream) error {
	if err := m.admit(hello); err != nil {
		return err
	}
	hello.Node.FirstSeenAt = m.cfg.Now() // a known node keeps its own
	if err := m.cfg.Register(ctx, hello.Node); err != nil {
		return fmt.Errorf("the node can't be registered: %w", err)
	}
	return m.connect(hello, s)
}

// accompany pings until the stream ends and returns why it did.
func (m *Monitor) accompany(ctx context.Context, name string, s *stream, received <-chan error) error {
	ticks, stop := m.cfg.Tick(m.pingPace())
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-received:
			return err
		case <-ticks:
			m.ping(name, s)
			m.askAgain(s)
		}
	}
}

// send writes the newest desired state whenever it changed, pings, requests for tunnels and log acknowledgements.
func (m *Monitor) send(ctx context.Context, name string, s *stream) {
	var sent *agentstream.Desired
	for {
		m.mu.Lock()
		desired := m.node(name).desired
		m.mu.Unlock()
		if desired != nil && desired != sent {
			// What else waits goes between the pieces: a node is alive, and its jobs print, also while it hears of many members.
			if s.conn.SendDesired(desired, s.sendWaiting) != nil {
				return
			}
			wanted := desired.Runs()
			for run := range wanted {
				if s.follow(run) {
					// Where the stored output ends: the agent goes on from there, at first and after a lost connection.
					s.ack(m.log(run).ack())
				}
			}
			s.followOnly(wanted)
			sent = desired
		}
		if s.sendWaiting() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		}
	}
}

// receive takes what the agent says until the stream ends.
func (m *Monitor) receive(ctx context.Context, name string, s *stream) error {
	for {
		up, err := s.conn.Receive()
		if err != nil {
			return err
		}
		switch {
		case up.Observed != nil:
			m.observe(name, s, *up.Observed)
		case up.Log != nil:
			m.takeOutput(ctx, name, s, up.Log)
		case up.HomeCounted != nil:
			s.homes.take(s, *up.HomeCounted)
		case up.HostChecked != nil:
			s.checks.take(s, *up.HostChecked)
		case up.NetworkChecked != nil:
			s.networks.take(s, *up.NetworkChecked)
		case up.Measured != nil:
			s.measures.take(s, *up.Measured)
		case up.Counts != nil:
			m.count(name, s, up.Counts)
		case up.Uses != nil:
			m.takeUses(name, s, up.Uses)
		case up.Energy != nil:
			m.takeEnergy(name, s, up.Energy)
		case up.Faults != nil:
			m.takeFaults(name, s, *up.Faults)
		case len(up.Spans) > 0 && m.cfg.Spans != nil:
			m.cfg.Spans(name, up.Spans[:min(len(up.Spans), agentstream.MaxSpans)])
		case up.Heartbeat != nil:
			m.answered(name, s, up.Heartbeat.Ping)
		}
	}
}
