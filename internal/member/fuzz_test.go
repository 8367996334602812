package member

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/api"
)

// sender is a connection on which a member has sent all that it will.
type sender struct {
	net.Conn
	io.Reader
}

func (s sender) Read(p []byte) (int, error)     { return s.Reader.Read(p) }
func (sender) SetReadDeadline(time.Time) error  { return nil }
func (sender) SetWriteDeadline(time.Time) error { return nil }
func (sender) Write(p []byte) (int, error)      { return len(p), nil }
func (sender) Close() error                     { return nil }

// FuzzFromMember has a node agent read whatever a member sends: it hears of the jobs that it gave, of output that it asked for, in order, and of
// texts that are fit for terminals.
func FuzzFromMember(f *testing.F) {
	const hello = `{"hello":{"instance":"0123456789abcdef","version":1}}` + "\n"
	for _, seed := range []string{
		hello + `{"ready":{"at":"2026-01-02T03:04:05Z"}}` + "\n" + `{"health":{"healthy":false,"message":"no\u001b[2J"}}` + "\n",
		hello + `{"jobs":[{"id":"j.1","phase":"running"},{"id":"other.1","phase":"failed"}]}` + "\n",
		hello + `{"jobs":[{"id":"j.1","phase":"succeeded","exit_code":0,"log_bytes":-5,"message":"done\u0007"}]}` + "\n" + `{"jobs":[{"id":"j.1","phase":"running"}]}` + "\n",
		hello + `{"log":{"job_id":"j.1","offset":0,"data":"aGVsbG8=","request":1}}` + "\n" + `{"log":{"job_id":"j.1","offset":3,"data":"bG8gd29ybGQ=","request":1}}` + "\n",
		hello + `{"log":{"job_id":"j.1","offset":9223372036854775807,"data":"aGVsbG8=","request":1}}` + "\n" + `{"log":{"job_id":"j.1","offset":9,"data":"aGVsbG8=","request":1}}` + "\n",
		hello + `{"log":{"job_id":"other.1","offset":0,"data":"aGVsbG8=","request":1}}` + "\n" + `{"problem":{"message":"\u202e"}}` + "\n",
		"[]\n", "{}\n", hello + "{\"jobs\":{}}\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		if bytes.Count(sent, []byte("\n")) > messagesPerSecond/2 {
			return // it would be held to the pace of messages
		}
		next, fresh := int64(0), true
		fit := func(text string) {
			if !utf8.ValidString(text) || utf8.RuneCountInString(text) > maxMessage {
				t.Fatalf("a text is passed on: %q", text)
			}
			for _, r := range text {
				if !unicode.IsPrint(r) {
					t.Fatalf("%q in a text is passed on", r)
				}
			}
		}
		s := &Server{
			log: slog.New(slog.DiscardHandler), reported: map[string]JobState{}, lost: map[string]JobState{},
			jobs: map[string]api.Job{"j.1": {ID: "j"}}, logs: map[string]*logCursor{"j.1": {request: 1, fresh: true}},
		}
		s.cfg = ServerConfig{
			OnProblem: func(p Problem) { fit(p.Message) },
			OnHealth:  func(h Health) { fit(h.Message) },
			OnJobs: func(states []JobState) {
				for _, state := range states {
					if state.ID != "j.1" || state.LogBytes < 0 || state.DiscardedBytes < 0 {
						t.Fatalf("passed on is %+v", state)
					}
					fit(state.Message)
				}
			},
			OnLog: func(piece Log) {
				if piece.JobID != "j.1" || len(piece.Data) == 0 || piece.Offset < next || piece.Offset != next && !fresh {
					t.Fatalf("output at %d of %q is passed on after %d", piece.Offset, piece.JobID, next)
				}
				if next, fresh = piece.Offset+int64(len(piece.Data)), false; next < 0 {
					t.Fatalf("output that ends beyond all numbers is passed on: from %d on", piece.Offset)
				}
			},
		}
		c := newServerConn(s, sender{Reader: bytes.NewReader(sent)}, 1)
		if err := c.read(func() {}); err == nil {
			t.Fatal("a connection that has ended goes on")
		}
		if len(s.reported) > 1 {
			t.Fatalf("%d jobs are kept", len(s.reported))
		}
	})
}
