package apiserver

import (
	"net/http"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// logChunk is how much output is read and sent at once.
	logChunk = 64 << 10
	// logTail is how long a follower of an ended job waits for output its agent has announced but not delivered (a lost
	// node never will).
	logTail = 5 * time.Second
)

// jobLog sends the output of a job from an offset on: what is stored, or with follow until the job has ended.
func (s *Server) jobLog(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if s.cfg.Reader.View().Job(id) == nil {
		noJob(id).write(w)
		return
	}
	offset, follow, f := logParameters(r)
	if f != nil {
		f.write(w)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	first := make([]byte, logChunk)
	n, err := s.cfg.Logs.ReadLog(id, first, offset)
	if err != nil {
		h.Del("Content-Type")
		s.asFailure(r.Context(), err).write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
	l := logStream{s: s, r: r, w: w, rc: http.NewResponseController(w), id: id, offset: offset, buf: first}
	if l.send(n) && l.rest() && follow {
		l.follow()
	}
}

func logParameters(r *http.Request) (offset int64, follow bool, f *failure) {
	if text := r.URL.Query().Get("offset"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return 0, false, failFields(codeParameter, api.FieldProblem{
				Location: "query.offset", Value: text, Message: "is not an offset; give a number of bytes, 0 or more",
			})
		}
		offset = n
	}
	follow, f = boolParameter(r, "follow")
	return offset, follow, f
}

// logStream is one answer with a job's output.
type logStream struct {
	s      *Server
	r      *http.Request
	w      http.ResponseWriter
	rc     *http.ResponseController
	id     string
	offset int64
	buf    []byte
}

// send writes the first n bytes of the buffer; false when the client is gone.
func (l *logStream) send(n int) bool {
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines has none to miss
	if _, err := l.w.Write(l.buf[:n]); err != nil {
		return false
	}
	l.offset += int64(n)
	return l.rc.Flush() == nil
}

// rest sends all that is stored; false when the client is gone or nothing can be read.
func (l *logStream) rest() bool {
	for {
		n, err := l.s.cfg.Logs.ReadLog(l.id, l.buf, l.offset)
		if err != nil {
			// Half the answer is out; breaking the connection tells the client that it is not whole.
			l.s.cfg.Log.ErrorContext(l.r.Context(), "job log", "job", l.id, "error", err)
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

// follow sends output as it comes, until the job has ended and all of it is sent.
func (l *logStream) follow() {
	var tail <-chan time.Time
	who := sessionOf(l.r.Context())
	for who.valid() {
		// Channel and job first, output second: so neither a change nor the last bytes are missed.
		more := l.s.cfg.Logs.LogChanged(l.id)
		view := l.s.cfg.Reader.View()
		job := view.Job(l.id)
		if !l.rest() || job == nil || job.Phase.Ended() && l.offset >= job.LogBytes {
			return
		}
		if job.Phase.Ended() && tail == nil {
			timer := time.NewTimer(logTail)
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
