package member_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member"
)

// stranger is the member's end in the hands of someone else.
type stranger struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func connect(t *testing.T, socket string) *stranger {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &stranger{t: t, conn: conn, in: bufio.NewReader(conn)}
}

func hello(t *testing.T, socket, instance string) *stranger {
	t.Helper()
	s := connect(t, socket)
	s.send(member.FromMember{Hello: &member.Hello{Instance: instance, Version: member.ProtocolVersion}})
	return s
}

func (s *stranger) send(message member.FromMember) {
	s.t.Helper()
	if err := json.NewEncoder(s.conn).Encode(message); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stranger) receive() member.ToMember {
	s.t.Helper()
	line, err := s.in.ReadBytes('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	var message member.ToMember
	if err := json.Unmarshal(line, &message); err != nil {
		s.t.Fatal(err)
	}
	return message
}

// untilClosed reads until the node agent has closed the connection.
func (s *stranger) untilClosed() {
	s.t.Helper()
	if _, err := io.Copy(io.Discard, s.in); err != nil && !strings.Contains(err.Error(), "reset") {
		s.t.Fatalf("the connection was not closed: %v", err)
	}
}

func TestGarbageEndsTheConnectionAndNothingElse(t *testing.T) {
	helloLine := `{"hello":{"instance":"i1","version":1}}` + "\n"
	for _, c := range []struct{ name, text string }{
		{"bytes that are no JSON", "\x00\xff\x00GET / HTTP/1.1\r\n\r\n"},
		{"a first message that is no hello", `{"ready":{"at":"2026-01-01T00:00:00Z"}}` + "\n"},
		{"a hello whose instance has a newline", `{"hello":{"instance":"a\nb","version":1}}` + "\n"},
		{"a line without end", strings.Repeat("x", 2<<20)},
		{"a long line after hello", helloLine + `{"problem":{"message":"` + strings.Repeat("x", 2<<20)},
		{"a wrong type after hello", helloLine + `{"jobs":{"id":1}}` + "\n"},
		{"very deep nesting", helloLine + strings.Repeat("[", 100000) + "\n"},
		{"a number out of range", helloLine + `{"log":{"job_id":"j","offset":1e300}}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "agent.sock")
			n := newNodeAgent(t, socket, true)
			s := connect(t, socket)
			go func() { _, _ = io.WriteString(s.conn, c.text) }() // a pipe breaks when it is refused early
			s.untilClosed()
			s = hello(t, socket, "i2")
			s.send(member.FromMember{Ready: &member.Ready{At: time.Now()}})
			n.until("a well-behaved connection is served", func() bool { return n.ready == 1 })
		})
	}
}

func TestAMemberCanTellOnlyOfItsJobsAndOnlyWhatMakesSense(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	n.server.SetJobs([]api.Job{shellJob("mine", "true")})
	s := hello(t, socket, "i1")
	three := 3
	s.send(member.FromMember{Jobs: &[]member.JobState{
		{ID: "not-mine", Phase: api.JobSucceeded},
		{ID: "mine", Phase: "promoted"},
		{ID: "mine", Phase: api.JobFailed, ExitCode: &three, Message: "bad\x1b[2J\nnews" + strings.Repeat("!", 5000), LogBytes: -5},
		{ID: "mine", Phase: api.JobRunning},
	}})
	n.until("a state is told", func() bool { return len(n.states) > 0 })
	if len(n.states) != 1 {
		t.Errorf("got states %+v, want that of the one job there is", n.states)
	}
	got := n.states["mine"]
	if got.Phase != api.JobFailed || got.LogBytes != 0 || len(got.Message) > 1000 || !strings.HasPrefix(got.Message, "bad [2J news!") {
		t.Errorf("got %+v, want the failure, in one printable line of bounded length", got)
	}
}

func TestOutputNobodyAskedForOrOutOfOrderIsNotPassedOn(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, false)
	n.server.SetJobs([]api.Job{shellJob("j", "true"), shellJob("k", "true")})
	n.server.RequestLog("j", 0, 0)
	s := hello(t, socket, "i1")
	piece := func(id string, offset int64, text string) {
		s.send(member.FromMember{Log: &member.Log{JobID: id, Offset: offset, Data: []byte(text)}})
	}
	piece("k", 0, "not asked for")
	piece("other", 0, "not there")
	piece("j", -1, "negative")
	piece("j", 0, "abc")
	piece("j", 1, "bcd")                        // one byte of it is new
	piece("j", 0, "abcd")                       // nothing of it is new
	piece("j", 9, "gap")                        // cannot be
	piece("j", 4, strings.Repeat("x", 100<<10)) // too long
	piece("j", 4, "e")
	n.until("all that is right came", func() bool { return strings.HasSuffix(string(n.logs["j"]), "e") })
	if got := n.output("j"); got != "abcde" {
		t.Errorf("got output %q, want abcde", got)
	}
	if len(n.logs) != 1 {
		t.Errorf("got output of %d jobs, want that of one", len(n.logs))
	}
}

func TestOutputThatWasUnderWayToAnEarlierRequestIsNotTakenForTheAnswer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, false)
	n.server.SetJobs([]api.Job{shellJob("j", "true")})
	n.server.RequestLog("j", 0, 1)
	s := hello(t, socket, "i1")
	piece := func(request, offset int64, text string) {
		s.send(member.FromMember{Log: &member.Log{JobID: "j", Offset: offset, Data: []byte(text), Request: request}})
	}
	piece(1, 0, "abc")
	n.until("the first piece came", func() bool { return string(n.logs["j"]) == "abc" })
	n.note(func() { n.logs["j"] = n.logs["j"][:1] }) // the rest went with a stream that broke
	n.server.RequestLog("j", 1, 2)
	piece(1, 3, "def")
	piece(2, 1, "bcdef")
	n.until("the rest came", func() bool { return strings.HasSuffix(string(n.logs["j"]), "f") })
	if got := n.output("j"); got != "abcdef" {
		t.Errorf("got output %q, want abcdef", got)
	}
}

func TestTheNewestConnectionIsServedAndAFloodOfThemIsSlowedDown(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	first := hello(t, socket, "i1")
	first.send(member.FromMember{Ready: &member.Ready{}})
	n.until("the first is served", func() bool { return n.ready == 1 })
	second := hello(t, socket, "i1")
	second.send(member.FromMember{Ready: &member.Ready{}})
	n.until("the second is served", func() bool { return n.ready == 2 })
	first.untilClosed()

	began := time.Now()
	const flood = 60
	for range flood {
		connect(t, socket)
	}
	last := hello(t, socket, "i1")
	last.send(member.FromMember{Ready: &member.Ready{}})
	n.until("the last is served", func() bool { return n.ready == 3 })
	// Twenty at once, then twenty a second.
	if took := time.Since(began); took < time.Second {
		t.Errorf("%d connections were taken within %v, want them slowed down", flood, took)
	}
}

func TestAFloodOfMessagesIsReadSlowly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	s := hello(t, socket, "i1")
	const flood = 1000
	began := time.Now()
	if _, err := io.WriteString(s.conn, strings.Repeat(`{"problem":{"message":"p"}}`+"\n", flood)); err != nil {
		t.Fatal(err)
	}
	n.until("all messages were read", func() bool { return len(n.problems) == flood })
	if took := time.Since(began); took < 800*time.Millisecond {
		t.Errorf("%d messages were read within %v, want 500 at once and 500 a second", flood, took)
	}
}

func TestWhatMattersIsSentAgainOnEveryConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	n.server.RequestLog("j", 7, 0)
	n.server.SetJobs([]api.Job{shellJob("j", "true")})
	n.server.RequestLog("j", 7, 0)
	for range 2 {
		s := hello(t, socket, "i1")
		if jobs := s.receive().Jobs; jobs == nil || len(*jobs) != 1 || (*jobs)[0].ID != "j" {
			t.Fatalf("got %+v, want the list of jobs", jobs)
		}
		if from := s.receive().LogFrom; from == nil || from.Offset != 7 {
			t.Fatalf("got %+v, want output asked for from 7 on", from)
		}
		_ = s.conn.Close()
	}
	n.server.StopMember()
	s := hello(t, socket, "i1")
	s.receive()
	s.receive()
	if s.receive().Stop == nil {
		t.Error("the member was not asked again to end")
	}
}

func TestAMemberIsToldNothingBeforeTheNodeAgentKnowsWhatItShouldDo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	s := hello(t, socket, "i1")
	s.send(member.FromMember{Jobs: &[]member.JobState{{ID: "j", Phase: api.JobRunning}}})
	s.send(member.FromMember{Ready: &member.Ready{}})
	n.until("the member is ready", func() bool { return n.ready == 1 })
	n.server.SetJobs([]api.Job{shellJob("j", "true")})
	if jobs := s.receive().Jobs; jobs == nil || len(*jobs) != 1 {
		t.Errorf("the first message is not the list of one job: %+v", jobs)
	}
	n.until("what the member told before is known", func() bool { return n.states["j"].Phase == api.JobRunning })
}

func TestAMemberThatDoesNotReadCostsNoMemory(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	s := hello(t, socket, "i1")
	s.send(member.FromMember{Ready: &member.Ready{}})
	n.until("the member is ready", func() bool { return n.ready == 1 })
	// More than the socket holds: what was not sent yet is replaced, not queued.
	for i := range 2000 {
		n.server.SetJobs([]api.Job{shellJob("j", fmt.Sprintf("echo %d %s", i, strings.Repeat("x", 10000)))})
	}
	for messages := 1; ; messages++ {
		jobs := s.receive().Jobs
		if jobs == nil {
			t.Fatal("got no list of jobs")
		}
		if strings.HasPrefix((*jobs)[0].Command[2], "echo 1999 ") {
			if messages > 200 {
				t.Errorf("%d messages were queued for 2000 changes", messages)
			}
			return
		}
	}
}

func TestTheSocketMayLieDeepAndIsTheMembersAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "agent.sock")
	n := newNodeAgent(t, socket, true)
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v, want 0600", info.Mode().Perm())
	}
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there after Close")
	}
	if err := n.server.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}
