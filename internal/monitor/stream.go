package monitor

import (
	"context"
	"sync"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// stream is one connection of an agent. What goes down is written by one goroutine from the newest desired state, so that an
// agent that does not read holds up nobody else.
type stream struct {
	conn   *agentstream.ServerConn
	cancel context.CancelCauseFunc
	woken  chan struct{}

	mu   sync.Mutex
	acks map[string]int64 // newest log acknowledgement by job
}

func (s *stream) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

func (s *stream) end(cause error) { s.cancel(cause) }

func (s *stream) ack(jobID string, offset int64) {
	s.mu.Lock()
	s.acks[jobID] = offset
	s.mu.Unlock()
	s.wake()
}

func (s *stream) takeAcks() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	acks := s.acks
	s.acks = map[string]int64{}
	return acks
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
	log := m.cfg.Log.With("node", hello.Node.Name)
	s := &stream{conn: conn, cancel: cancel, woken: make(chan struct{}, 1), acks: map[string]int64{}}
	if err := m.connect(hello, s); err != nil {
		log.WarnContext(ctx, "agent refused", "error", err)
		_ = conn.Send(agentstream.Down{Refused: err.Error()})
		return
	}
	defer m.disconnect(hello.Node.Name, s)
	hello.Node.FirstSeenAt = m.cfg.Now() // a known node keeps its own
	if err := m.cfg.Register(ctx, hello.Node); err != nil {
		log.ErrorContext(ctx, "the node can't be registered", "error", err)
		return
	}
	log.InfoContext(ctx, "agent connected", "version", hello.Node.AgentVersion)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.send(ctx, hello.Node.Name, s)
		cancel(nil)
	}()
	received := make(chan error, 1)
	go func() { received <- m.receive(ctx, hello.Node.Name, s) }()
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case err = <-received:
		cancel(err)
	}
	conn.Abort() // send may be held up by an agent that does not read
	<-ended      // nobody may write once the handler has returned
	log.InfoContext(ctx, "agent disconnected", "reason", err)
}

// send writes the newest desired state whenever it changed, and log acknowledgements.
func (m *Monitor) send(ctx context.Context, name string, s *stream) {
	var sent *agentstream.Desired
	told := map[string]bool{}
	for {
		m.mu.Lock()
		desired := m.node(name).desired
		m.mu.Unlock()
		if desired != nil && desired != sent {
			if s.conn.Send(agentstream.Down{Desired: desired}) != nil {
				return
			}
			for _, job := range desired.Jobs {
				if !told[job.ID] {
					// Where the stored output ends: the agent goes on from there, at first and after a lost connection.
					told[job.ID] = true
					s.ack(job.ID, m.log(job.ID).size())
				}
			}
			sent = desired
		}
		for id, offset := range s.takeAcks() {
			if s.conn.Send(agentstream.Down{LogAck: &agentstream.LogAck{JobID: id, Offset: offset}}) != nil {
				return
			}
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
			offset, err := m.log(up.Log.JobID).append(up.Log.Offset, up.Log.Data)
			if err != nil {
				m.cfg.Log.ErrorContext(ctx, "a job's output can't be stored; it stays with the agent", "job", up.Log.JobID, "error", err)
			}
			m.heard(name, s)
			s.ack(up.Log.JobID, offset)
		default:
			m.heard(name, s)
		}
	}
}
