package monitor

import (
	"context"
	"os"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestANodeTellsTheOutputOfNothingButItsOwnRuns(t *testing.T) {
	m := newTest(t)
	m.cfg.Register = func(_ context.Context, _ api.NodeRecord) error { return nil }
	server := serve(t, m, nil)
	m.SetDesired("n1", agentstream.Desired{Term: 7, Builds: []api.Build{{ID: "b1", Attempt: 1}}})
	c, err := agentstream.Dial(t.Context(), server.Client(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Send(agentstream.Up{Hello: &agentstream.Hello{Run: "a1", Node: api.NodeRecord{Name: "n1"}}}); err != nil {
		t.Fatal(err)
	}
	acked := func(run string, offset int64) {
		t.Helper()
		for {
			down, err := c.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if a := down.LogAck; a != nil && a.JobID == run && a.Offset == offset {
				return
			}
		}
	}
	acked("build.b1.1", 0)
	for _, run := range []string{"build.b2.1", "job-of-another-node", "build.b1.1"} {
		if err := c.Send(agentstream.Up{Log: &agentstream.Log{JobID: run, Data: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	acked("build.b1.1", 1) // what came before it is dealt with
	m.SetDesired("n1", agentstream.Desired{Term: 7, Revision: 1, Builds: []api.Build{{ID: "b3", Attempt: 1}}})
	acked("build.b3.1", 0)
	m.mu.Lock()
	asked := m.nodes["n1"].stream.asked
	m.mu.Unlock()
	if len(asked) != 1 || asked["build.b3.1"] == nil {
		t.Errorf("a stream remembers %v; want the runs that are wanted now", asked)
	}
	stored, err := os.ReadDir(m.cfg.LogDir)
	if err != nil || len(stored) != 1 || stored[0].Name() != "build.b1.1" {
		t.Errorf("stored: %v, %v", stored, err)
	}
}

func TestOutputThatCannotBeStoredIsHeldAndAskedForAgain(t *testing.T) {
	m := newTest(t)
	s := newStream(nil, func(error) {})
	s.follow("j1")
	send := func(offset int64, data string) {
		m.takeOutput(t.Context(), "n1", s, &agentstream.Log{JobID: "j1", Offset: offset, Data: []byte(data)})
	}
	acked := func(when string, want agentstream.LogAck) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if want != (agentstream.LogAck{}) {
			want.JobID = "j1"
		}
		if got := s.acks["j1"]; got != want {
			t.Errorf("%s: acknowledged %+v, want %+v", when, got, want)
		}
		clear(s.acks)
	}
	if err := os.Rename(m.cfg.LogDir, m.cfg.LogDir+".away"); err != nil {
		t.Fatal(err)
	}
	send(0, "ab")
	acked("without a folder", agentstream.LogAck{JobID: "j1"})
	if err := os.Rename(m.cfg.LogDir+".away", m.cfg.LogDir); err != nil {
		t.Fatal(err)
	}
	send(2, "cd") // on its way before the member heard of anything
	m.askAgain(s)
	acked("once there is a folder again", agentstream.LogAck{Again: true})
	send(4, "ef") // on its way, too: storing it would make a gap
	send(0, "ab")
	send(2, "cd")
	send(4, "ef")
	acked("in the end", agentstream.LogAck{Offset: 6})
	p := make([]byte, 100)
	if n, err := m.ReadLog("j1", p, 0); string(p[:n]) != "abcdef" || err != nil {
		t.Errorf("stored %q, %v; want all of it in order", p[:n], err)
	}
	m.askAgain(s)
	acked("with nothing held", agentstream.LogAck{})
}

func TestOutputThatTheMemberNoLongerHasIsAGapAlsoWhenItsFirstPieceWasHeld(t *testing.T) {
	m := newTest(t)
	s := newStream(nil, func(error) {})
	s.follow("j1")
	piece := &agentstream.Log{JobID: "j1", Offset: 100, Data: []byte("end")}
	dir := m.cfg.LogDir
	m.cfg.LogDir = dir + "/none"
	m.takeOutput(t.Context(), "n1", s, piece)
	m.cfg.LogDir = dir
	m.logs = map[string]*jobLog{}
	m.askAgain(s)
	if got, want := s.acks["j1"], (agentstream.LogAck{JobID: "j1", Offset: 100, Again: true}); got != want {
		t.Fatalf("asked for %+v, want %+v", got, want)
	}
	if m.takeOutput(t.Context(), "n1", s, piece); m.LogBytes("j1") != 103 {
		t.Errorf("%d bytes are stored, want 103", m.LogBytes("j1"))
	}
}
