package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

const (
	// logChunk is how much output is read and sent at once.
	logChunk = 64 << 10
	// logTail is how long a follower of an ended job waits for output its agent has announced but not delivered (a lost
	// node never will).
	logTail = 5 * time.Second
	// attemptTail is the same for the output of an attempt that another has followed.
	attemptTail = time.Second
)

// output is what has output, in attempts: a job, or a build.
type output struct {
	// attempt is the newest, run names the output of one.
	attempt int
	run     func(attempt int) string
	ended   bool
	bytes   int64
}

// outputOf tells how it stands as of a view; nil when it is gone.
type outputOf func(view *state.View) *output

// jobLog sends the output of an attempt of a job from an offset on: what is stored, or with follow until the attempt has ended.
func (s *Server) jobLog(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, err := s.findJob(r.Context(), id); err != nil {
		failureOf(err).write(w)
		return
	}
	s.sendOutput(w, r, noJob(id), func(view *state.View) *output {
		job := view.Job(id)
		if job == nil {
			return nil
		}
		run := func(attempt int) string {
			of := *job
			of.Attempt = attempt
			return of.RunID()
		}
		return &output{attempt: job.Attempt, run: run, ended: job.Phase.Ended(), bytes: job.LogBytes}
	})
}

// buildLog sends the output of an attempt at a build, as jobLog does that of a job.
func (s *Server) buildLog(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.sendOutput(w, r, noBuild(id), func(view *state.View) *output {
		build := view.Build(id)
		if build == nil || !seesBuild(who(r.Context()), build) {
			return nil
		}
		run := func(attempt int) string {
			of := *build
			of.Attempt = attempt
			return state.BuildRunID(&of)
		}
		return &output{attempt: build.Attempt, run: run, ended: build.Phase.Ended(), bytes: build.LogBytes}
	})
}

func (s *Server) sendOutput(w http.ResponseWriter, r *http.Request, gone *failure, of outputOf) {
	now := of(s.cfg.Reader.View())
	if now == nil {
		gone.write(w)
		return
	}
	q, f := logParameters(r, now.attempt)
	if f != nil {
		f.write(w)
		return
	}
	if s.cfg.Logs.LogRemoved(now.run(q.attempt)) {
		fail(codeLogRemoved, "the output of %q was removed to make room for that of later jobs; it is no longer stored", now.run(q.attempt)).write(w)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set(attemptHeader, strconv.Itoa(q.attempt))
	first := make([]byte, logChunk)
	n, err := s.cfg.Logs.ReadLog(now.run(q.attempt), first, q.offset)
	if err != nil {
		h.Del("Content-Type")
		s.asFailure(r.Context(), err).write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
	l := logStream{
		s: s, r: r, w: w, rc: http.NewResponseController(w), of: of, run: now.run(q.attempt), attempt: q.attempt, offset: q.offset, buf: first,
	}
	if l.send(n) && l.rest() && q.follow {
		l.follow()
	}
}

// attemptHeader tells which attempt of the job or build the output is of.
const attemptHeader = "Nearmetal-Job-Attempt"

// logQuery is what of a log is asked for.
type logQuery struct {
	offset  int64
	attempt int
	follow  bool
}

func logParameters(r *http.Request, newest int) (logQuery, *failure) {
	q := logQuery{attempt: newest}
	if text := r.URL.Query().Get("offset"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return q, failFields(codeParameter, api.FieldProblem{
				Location: "query.offset", Value: text, Message: "is not an offset; give a number of bytes, 0 or more",
			})
		}
		q.offset = n
	}
	if text := r.URL.Query().Get("attempt"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > newest {
			return q, failFields(codeParameter, api.FieldProblem{
				Location: "query.attempt", Value: text, Message: fmt.Sprintf("is not an attempt; the newest is %d, the first 0", newest),
			})
		}
		q.attempt = n
	}
	q.follow = r.URL.Query().Get("follow") == "true"
	return q, nil
}

// logStream is one answer with output.
type logStream struct {
	s  *Server
	r  *http.Request
	w  http.ResponseWriter
	rc *http.ResponseController
	of outputOf
	// run names the output of the attempt.
	run     string
	attempt int
	offset  int64
	buf     []byte
}

// send writes the first n bytes of the buffer; false when the client is gone.
func (l *logStream) send(n int) bool {
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines has none to miss
	if _, err := l.w.Write(l.buf[:n]); err != nil {
		return false
	}
	l.offset += int64(n)
	if l.rc.Flush() != nil {
		return false
	}
	_ = l.rc.SetWriteDeadline(time.Time{}) // a job may say nothing for long: HTTP/2 would break the stream when the deadline passes
	return true
}

var errRemovedMeanwhile = errors.New("it was removed meanwhile to make room for that of later jobs")

// rest sends all that is stored; false when the client is gone or nothing can be read.
func (l *logStream) rest() bool {
	for {
		n, err := l.s.cfg.Logs.ReadLog(l.run, l.buf, l.offset)
		if n == 0 && err == nil && l.s.cfg.Logs.LogRemoved(l.run) {
			err = errRemovedMeanwhile
		}
		if err != nil {
			// Half the answer is out; breaking the connection tells the client that it is not whole.
			l.s.cfg.Log.ErrorContext(l.r.Context(), "output not read", "run", l.run, "error", err)
			panic(http.ErrAbortHandler)
		}
		if n == 0 {
			return true
		}
		if !l.send(n) {
			return false
		}
	}
}

// follow sends output as it comes, until the job has ended, or is being run again, and all of it is sent.
func (l *logStream) follow() {
	var tail <-chan time.Time
	asker := sessionOf(l.r.Context())
	for {
		// Channel, job and token first, output second: so neither a change nor the last bytes are missed, nor that the token was revoked.
		more := l.s.cfg.Logs.LogChanged(l.run)
		view := l.s.cfg.Reader.View()
		now := l.of(view)
		if !asker.valid() || !l.rest() || now == nil {
			return
		}
		ended, over := now.ended, now.attempt > l.attempt
		if ended && !over && l.offset >= now.bytes {
			return
		}
		if (ended || over) && tail == nil {
			wait := logTail
			if over {
				wait = attemptTail // how much an attempt that was given up has said is not stored
			}
			timer := time.NewTimer(wait)
			defer timer.Stop()
			tail = timer.C
		}
		stored, stop := l.s.hub.stored(l.r.Context(), view.Revision)
		select {
		case <-more:
		case <-stored:
		case <-tail:
			stop()
			return
		case <-l.r.Context().Done():
			stop()
			return
		case <-l.s.stopping:
			stop()
			panic(http.ErrAbortHandler) // not the end of the output: the client comes back for the rest
		}
		stop()
	}
}
