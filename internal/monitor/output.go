package monitor

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// followed is how the output of one run arrives on a stream. The lock of the stream guards it.
type followed struct {
	// begun: a piece has arrived. begin is the offset of the first: output between the stored end and begin is lost.
	begun bool
	begin int64
	// held: a piece could not be stored. Its successors are ignored until the member has sent it again.
	held bool
	// warned: the log of the server says why output is held.
	warned bool
}

// follow notes that the output of a run is asked for, and reports whether that is new.
func (s *stream) follow(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked[run] != nil {
		return false
	}
	s.asked[run] = &followed{}
	return true
}

// followOnly forgets all runs but these: a stream may outlive any number of jobs.
func (s *stream) followOnly(runs map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.asked, func(run string, _ *followed) bool { return !runs[run] })
}

// ack queues an acknowledgement; the newest of a run replaces older ones, but a request to send again stays one.
func (s *stream) ack(a agentstream.LogAck) {
	s.mu.Lock()
	a.Again = a.Again || s.acks[a.JobID].Again
	s.acks[a.JobID] = a
	s.mu.Unlock()
	s.wake()
}

// expects reports whether a piece of a run that begins at offset is the next one, or a repetition. A piece that leaves a gap was sent
// before the member heard that its predecessors are wanted again.
func (s *stream) expects(run string, offset, stored int64) (expected, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.asked[run]
	if f == nil {
		return false, false
	}
	if !f.begun {
		f.begun, f.begin = true, offset
	}
	return !f.held && offset <= max(stored, f.begin), true
}

// hold notes whether the output of a run is held, and reports whether the reason is news.
func (s *stream) hold(run string, held bool) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.asked[run]
	if f == nil {
		return false // it has ended meanwhile
	}
	news = held && !f.warned
	f.held, f.warned = held, held
	return news
}

// takeOutput stores a piece of output and answers how much is stored. A piece that can't be stored now stays with its member, whose job
// waits while too much of its output does.
func (m *Monitor) takeOutput(ctx context.Context, node string, s *stream, piece *agentstream.Log) {
	log := m.log(piece.JobID)
	expected, asked := s.expects(piece.JobID, piece.Offset, log.size())
	if !asked {
		m.cfg.Log.WarnContext(ctx, "a node sent output that was not requested; it is not stored", "node", node, "job", piece.JobID)
		return
	}
	if !expected {
		return
	}
	ack, rest, err := log.append(piece.Offset, piece.Data)
	if s.hold(piece.JobID, rest == wait) {
		m.cfg.Log.WarnContext(ctx, "can't store a job's output now; the job waits", "job", piece.JobID, "error", cmp.Or(err, m.room.full(), errLogLimits))
	}
	s.ack(ack)
}

// errLogLimits is the reason for output to wait that is not the disk's.
var errLogLimits = errors.New("the output of jobs that still run fills --project-log-limit or --log-limit")

// askAgain asks for held output that there may be room for by now.
func (m *Monitor) askAgain(s *stream) {
	s.mu.Lock()
	held := map[string]int64{}
	for run, f := range s.asked {
		if f.held {
			held[run] = f.begin
		}
	}
	s.mu.Unlock()
	for run, begin := range held {
		ack, room := m.log(run).look()
		if !room {
			continue
		}
		s.mu.Lock()
		if f := s.asked[run]; f != nil {
			f.held = false
		}
		s.mu.Unlock()
		ack.Offset, ack.Again = max(ack.Offset, begin), true
		s.ack(ack)
	}
}
