package member

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// ServerConfig says where a Server listens and what it calls.
type ServerConfig struct {
	// Member is the assignment ID of the member; connections of others are refused.
	Member string
	// Dir is the member's control directory, which must exist: its file jobs.given remembers which jobs went to which instance of
	// the member agent.
	Dir string
	// Link is where the member agent connects to. The Server closes it.
	Link memberlink.Endpoint
	// Log may be nil.
	Log *slog.Logger

	// The callbacks are called one at a time and may be nil. They may call the Server's methods except Close, which waits for
	// them: it must not be called with a lock held that they take. While OnLog does not return, nothing more is read from the
	// member.

	// OnReady is called once for every connection of a member that is ready, and again after a problem.
	OnReady func(Ready)
	// OnProblem reports what keeps the member from being ready.
	OnProblem func(Problem)
	// OnHealth reports whether a ready member can be used: once for every connection, then at every change. Members that were started
	// by an earlier version never say it.
	OnHealth func(Health)
	// OnJobs gets the states of those jobs of SetJobs that the member told something about, or that are lost: always all.
	OnJobs func([]JobState)
	// OnLog gets output that was asked for by RequestLog, in order, without overlap. A gap is possible only in the first piece
	// after RequestLog, when the member no longer holds what lies before it.
	OnLog func(Log)
	// OnDisconnect says why a connection that had said Hello ended.
	OnDisconnect func(error)
}

// Server is the node agent's end of the link to one member. It serves one connection at a time, the newest.
type Server struct {
	cfg   ServerConfig
	log   *slog.Logger
	given *givenJobs
	done  sync.WaitGroup
	// serving ends with Close.
	serving context.Context
	stopped context.CancelFunc
	// turn is held by who changes newest, the connection that was accepted last of all that were let in.
	turn   sync.Mutex
	newest *serverConn

	// calls serializes the callbacks.
	calls sync.Mutex

	mu       sync.Mutex
	closed   bool
	current  *serverConn
	jobs     map[string]api.Job // by run ID; nil until SetJobs: an agent that knows nothing yet must say nothing
	checks   *[]api.Check       // nil until SetChecks
	reported map[string]JobState
	lost     map[string]JobState
	logs     map[string]*logCursor
	stop     bool
}

// logCursor is how far a job's output was asked for, seen and acknowledged.
type logCursor struct {
	next  int64 // offset of the next byte OnLog should get
	acked int64
	// discard: nothing after acked is stored any more.
	discard bool
	// request is the number that pieces must carry.
	request int64
	fresh   bool // no piece has come since the request, so a gap is possible
}

func (c *logCursor) ack(runID string) LogAck {
	return LogAck{JobID: runID, Offset: c.acked, Discard: c.discard}
}

// NewServer serves the link until Close. On error it has closed the link.
func NewServer(cfg ServerConfig) (*Server, error) {
	given, err := openGivenJobs(filepath.Join(cfg.Dir, "jobs.given"))
	if err != nil {
		return nil, errors.Join(err, cfg.Link.Close())
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, given: given,
		reported: map[string]JobState{}, lost: map[string]JobState{}, logs: map[string]*logCursor{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.serving, s.stopped = context.WithCancel(context.Background())
	s.done.Go(s.accept)
	return s, nil
}

// SetJobs gives the whole list of jobs the member should supervise, each in the attempt that is to run: an earlier one is ended then.
// An attempt is started once: one that was given to an earlier instance of the member agent is not given again but reported lost.
// Until the first call the member is told nothing.
func (s *Server) SetJobs(jobs []api.Job) {
	s.mu.Lock()
	next := make(map[string]api.Job, len(jobs))
	for _, job := range jobs {
		next[job.RunID()] = job
	}
	changed := s.jobs == nil || !reflect.DeepEqual(s.jobs, next)
	s.jobs = next
	for id := range s.logs {
		if _, ok := next[id]; !ok {
			delete(s.logs, id)
		}
	}
	conn := s.current
	s.mu.Unlock()
	if !changed {
		return
	}
	if conn != nil {
		conn.out.setJobs()
	}
	go s.reportJobs() // not under the caller, who may hold locks that OnJobs takes
}

// SetChecks gives the whole list of the group's health checks, every default filled in.
func (s *Server) SetChecks(checks []api.Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.checks != nil && slices.EqualFunc(*s.checks, checks, sameCheck) {
		return
	}
	checks = append([]api.Check{}, checks...) // never nil, which would say nothing
	s.checks = &checks
	if s.current != nil {
		s.current.out.setChecks()
	}
}

func sameCheck(a, b api.Check) bool { return reflect.DeepEqual(a, b) }

// RequestLog asks for the output of a job's run from offset on and keeps it coming, on later connections too; everything before offset
// is acknowledged by it. Repeating it starts anew from offset; with another number of the request, nothing that was under way
// to the former one is taken any more.
func (s *Server) RequestLog(runID string, offset, request int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cursor := s.logs[runID]; cursor != nil {
		offset = max(offset, cursor.acked)
	}
	s.logs[runID] = &logCursor{next: offset, acked: offset, request: request, fresh: true}
	if s.current != nil {
		s.current.out.logFrom(LogFrom{JobID: runID, Offset: offset, Request: request})
	}
}

// RepeatLog asks once more for the output of a run from offset on, all of which was asked for before: it could not be stored when it came.
func (s *Server) RepeatLog(runID string, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cursor := s.logs[runID]
	if cursor == nil {
		return
	}
	cursor.next, cursor.acked, cursor.fresh = offset, max(cursor.acked, offset), false
	if s.current != nil {
		s.current.out.logFrom(LogFrom{JobID: runID, Offset: offset, Request: cursor.request})
	}
}

// AckLog notes that a run's output before offset is stored for good. The member sends only about 1 MiB ahead of it.
func (s *Server) AckLog(runID string, offset int64) { s.acknowledge(runID, offset, false) }

// DiscardLog notes that a run's output before offset is stored for good, and that none after it will be: the member throws that away and
// counts it.
func (s *Server) DiscardLog(runID string, offset int64) { s.acknowledge(runID, offset, true) }

func (s *Server) acknowledge(runID string, offset int64, discard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cursor := s.logs[runID]
	if cursor == nil || offset <= cursor.acked && (cursor.discard || !discard) {
		return
	}
	cursor.acked, cursor.discard = max(cursor.acked, offset), cursor.discard || discard
	if s.current != nil {
		s.current.out.logAck(cursor.ack(runID))
	}
}

// StopMember asks the member to end its jobs, sshd and itself; the driver sees it exit.
func (s *Server) StopMember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = true
	if s.current != nil {
		s.current.out.setStop()
	}
}

// Connected reports whether a member agent that said Hello is connected.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current != nil
}

// Close ends the connection, closes the link and returns when no callback runs any more.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.stopped()
	err := s.cfg.Link.Close()
	s.done.Wait()
	err = errors.Join(err, s.given.Close())
	s.calls.Lock() // a last reportJobs of SetJobs
	defer s.calls.Unlock()
	return err
}

// reportJobs calls OnJobs with all that is known of the jobs of SetJobs.
func (s *Server) reportJobs() {
	s.calls.Lock()
	defer s.calls.Unlock()
	s.mu.Lock()
	states := make([]JobState, 0, len(s.jobs))
	for id := range s.jobs {
		if state, ok := s.lost[id]; ok {
			states = append(states, state)
		} else if state, ok := s.reported[id]; ok {
			states = append(states, state)
		}
	}
	for id := range s.reported {
		if _, ok := s.jobs[id]; !ok && s.jobs != nil {
			delete(s.reported, id)
		}
	}
	silent := s.closed || len(states) == 0
	s.mu.Unlock()
	if silent || s.cfg.OnJobs == nil {
		return
	}
	sortStates(states)
	s.cfg.OnJobs(states)
}
