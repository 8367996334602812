package member

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/nearmetal/nearmetal/api"
)

// How much a member may send before its messages are read more slowly. Twelve MiB/s of output pass.
const (
	messagesPerSecond = 500
	bytesPerSecond    = 16 << 20
	// helloDeadline bounds how long a connection may say nothing before Hello.
	helloDeadline = 10 * time.Second
	// writeDeadline bounds how long a member may leave a message unread.
	writeDeadline = 10 * time.Second
	// maxMessage bounds, in runes, the text a member may attach to a job or a problem.
	maxMessage = 1000
	// maxReported bounds the job states kept before SetJobs tells which jobs there are.
	maxReported = 10000
)

// serverConn is one connection of a member agent.
type serverConn struct {
	server *Server
	conn   net.Conn
	number uint64
	out    *outbox
	ended  chan struct{}
	ctx    context.Context
	cancel context.CancelCauseFunc
	hello  *Hello
	ready  bool
	health *Health
}

func newServerConn(s *Server, nc net.Conn, number uint64) *serverConn {
	c := &serverConn{server: s, conn: nc, number: number, ended: make(chan struct{}), out: newOutbox()}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// end makes run return.
func (c *serverConn) end(cause error) {
	c.cancel(cause)
	_ = c.conn.Close()
}

// run reads until the connection ends.
func (c *serverConn) run() {
	defer close(c.ended)
	var writing sync.WaitGroup
	err := c.read(func() { writing.Go(c.write) })
	c.end(err)
	writing.Wait()
	s := c.server
	s.mu.Lock()
	if s.current == c {
		s.current = nil
	}
	s.mu.Unlock()
	cause := context.Cause(c.ctx)
	s.log.Debug("a member's connection ended", "cause", cause)
	if c.hello != nil && s.cfg.OnDisconnect != nil {
		s.calls.Lock()
		defer s.calls.Unlock()
		s.cfg.OnDisconnect(cause)
	}
}

// read handles messages at a bounded rate and calls greeted after Hello.
func (c *serverConn) read(greeted func()) error {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(make([]byte, 0, 16<<10), maxLine)
	messages, bytes := bucket{perSecond: messagesPerSecond, burst: messagesPerSecond}, bucket{perSecond: bytesPerSecond, burst: 4 << 20}
	if err := c.conn.SetReadDeadline(time.Now().Add(helloDeadline)); err != nil {
		return err
	}
	for lines.Scan() {
		now := time.Now()
		pause(c.ctx, max(messages.take(now, 1), bytes.take(now, float64(len(lines.Bytes())+1))))
		var message FromMember
		if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
			return fmt.Errorf("the member sent an invalid message: %w", err)
		}
		if c.hello == nil {
			if message.Hello == nil || !validInstance(message.Hello.Instance) {
				return errors.New("the member's first message is not a valid hello")
			}
			c.hello = message.Hello
			if err := c.conn.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			c.greet()
			greeted()
			continue
		}
		c.handle(message)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("the member closed the connection")
}

// greet makes this the server's connection and puts everything the member has to know into the outbox.
func (c *serverConn) greet() {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = c
	if s.jobs != nil {
		c.out.setJobs()
	}
	for id, cursor := range s.logs {
		cursor.fresh = true
		// Not from cursor.next on: the member drops what lies before, and what lies between may never be stored.
		c.out.logFrom(LogFrom{JobID: id, Offset: cursor.acked, Request: cursor.request})
		if cursor.discard {
			c.out.logAck(cursor.ack(id))
		}
	}
	if s.checks != nil {
		c.out.setChecks()
	}
	if s.stop {
		c.out.setStop()
	}
}

func (c *serverConn) handle(message FromMember) {
	s := c.server
	switch {
	case message.Ready != nil:
		told := c.ready
		c.ready = true
		if !told && s.cfg.OnReady != nil {
			s.calls.Lock()
			defer s.calls.Unlock()
			s.cfg.OnReady(*message.Ready)
		}
	case message.Problem != nil:
		c.ready = false
		if s.cfg.OnProblem != nil {
			s.calls.Lock()
			defer s.calls.Unlock()
			s.cfg.OnProblem(Problem{Message: plain(message.Problem.Message)})
		}
	case message.Health != nil:
		c.tellHealth(Health{Healthy: message.Health.Healthy, Message: plain(message.Health.Message)})
	case message.Jobs != nil:
		s.mu.Lock()
		for _, state := range *message.Jobs {
			s.note(state)
		}
		s.mu.Unlock()
		s.reportJobs()
	case message.Log != nil:
		if piece, ok := s.expected(*message.Log); ok && s.cfg.OnLog != nil {
			s.calls.Lock()
			defer s.calls.Unlock()
			s.cfg.OnLog(piece)
		}
	}
}

// tellHealth passes on what is new; a member that is not ready has no health.
func (c *serverConn) tellHealth(health Health) {
	s := c.server
	if !c.ready || c.health != nil && *c.health == health {
		return
	}
	c.health = &health
	if s.cfg.OnHealth != nil {
		s.calls.Lock()
		defer s.calls.Unlock()
		s.cfg.OnHealth(health)
	}
}

// note keeps what the member tells about a job, if there can be such a job; s.mu is held.
func (s *Server) note(state JobState) {
	if _, known := s.jobs[state.ID]; !known && (s.jobs != nil || len(s.reported) >= maxReported) {
		return
	}
	switch state.Phase {
	case api.JobPending, api.JobRunning, api.JobSucceeded, api.JobFailed, api.JobCancelled, api.JobLost:
	default:
		return
	}
	if old, ok := s.reported[state.ID]; ok && old.Phase.Ended() && !state.Phase.Ended() {
		return // what has ended does not come back
	}
	state.Message = plain(state.Message)
	state.LogBytes, state.DiscardedBytes = plausible(state.LogBytes), plausible(state.DiscardedBytes)
	s.reported[state.ID] = state
}

// plausible is a count of bytes that is safe to add to another.
func plausible(count int64) int64 { return min(max(count, 0), 1<<60) }

// expected returns the part of a piece of output that comes next, and false when there is none.
func (s *Server) expected(piece Log) (Log, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cursor := s.logs[piece.JobID]
	if cursor == nil || piece.Request != cursor.request || piece.Offset != plausible(piece.Offset) || len(piece.Data) > maxLogPiece {
		return Log{}, false
	}
	switch {
	case piece.Offset > cursor.next && !cursor.fresh:
		return Log{}, false // sent before the member read the latest request
	case piece.Offset > cursor.next:
		cursor.next = piece.Offset
	case piece.Offset < cursor.next:
		seen := min(cursor.next-piece.Offset, int64(len(piece.Data)))
		piece.Offset, piece.Data = piece.Offset+seen, piece.Data[seen:]
	}
	if len(piece.Data) == 0 {
		return Log{}, false
	}
	cursor.fresh = false
	cursor.next += int64(len(piece.Data))
	return piece, true
}

// write sends what the outbox holds until the connection ends.
func (c *serverConn) write() {
	encoder := json.NewEncoder(c.conn)
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.out.wake:
		}
		for _, message := range c.server.compose(c.out.take(), *c.hello) {
			err := c.conn.SetWriteDeadline(time.Now().Add(writeDeadline))
			if err == nil {
				err = encoder.Encode(message)
			}
			if err != nil {
				c.end(fmt.Errorf("the member does not read its messages: %w", err))
				return
			}
		}
	}
}

// compose turns what is due into messages. Every job that goes out for the first time is written down before.
func (s *Server) compose(due outboxContent, to Hello) []ToMember {
	var messages []ToMember
	if due.jobs {
		jobs, lost := s.give(to)
		messages = append(messages, ToMember{Jobs: &jobs})
		if lost {
			s.reportJobs()
		}
	}
	if due.checks {
		s.mu.Lock()
		checks := *s.checks
		s.mu.Unlock()
		messages = append(messages, ToMember{Checks: &checks})
	}
	for _, id := range sortedKeys(due.from) {
		from := due.from[id]
		messages = append(messages, ToMember{LogFrom: &from})
	}
	for _, id := range sortedKeys(due.acks) {
		ack := due.acks[id]
		messages = append(messages, ToMember{LogAck: &ack})
	}
	if due.stop {
		messages = append(messages, ToMember{Stop: &Stop{}})
	}
	return messages
}

// give returns the jobs an instance of the member agent should have, and whether one was found to be lost.
func (s *Server) give(to Hello) (jobs []api.Job, foundLost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs = []api.Job{}
	for _, id := range sortedKeys(s.jobs) {
		job := s.jobs[id]
		if job.Phase.Ended() {
			jobs = append(jobs, job)
			continue
		}
		if job.Attempt > 0 && to.Version < attemptsVersion {
			foundLost = s.lose(id, "the member was started by an earlier version of nearmetal, which can't rerun jobs") || foundLost
			continue
		}
		owner, err := s.given.claim(id, to.Instance)
		if err != nil {
			s.log.Error("a job is held back: its start can't be stored", "job", id, "error", err)
			continue
		}
		if owner == to.Instance {
			jobs = append(jobs, job)
		} else {
			foundLost = s.lose(id, "the job ended when its member was restarted") || foundLost
		}
	}
	return jobs, foundLost
}

// lose notes that a run is lost and returns whether that is new; s.mu is held.
func (s *Server) lose(id, message string) bool {
	if _, known := s.lost[id]; known {
		return false
	}
	state := s.reported[id]
	state.ID, state.Phase, state.Message = id, api.JobLost, message
	s.lost[id] = state
	return true
}

// validInstance accepts what can stand in a line of the given-jobs file.
func validInstance(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-'
	})
}

// plain makes text of a member safe to show: printable, one line, of bounded length.
func plain(text string) string {
	runes := []rune(strings.ToValidUTF8(text, "?"))
	runes = runes[:min(len(runes), maxMessage)]
	for i, r := range runes {
		if !unicode.IsPrint(r) {
			runes[i] = ' '
		}
	}
	return strings.TrimSpace(string(runes))
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func sortStates(states []JobState) {
	slices.SortFunc(states, func(a, b JobState) int { return strings.Compare(a.ID, b.ID) })
}
