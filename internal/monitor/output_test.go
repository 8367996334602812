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
	c, err := agentstream.Dial(t.Context(), server.Client(), server.URL, "token")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.Send(agentstream.Up{Hello: &agentstream.Hello{AgentID: "a1", Node: api.NodeRecord{Name: "n1"}}}); err != nil {
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
	stored, err := os.ReadDir(m.cfg.LogDir)
	if err != nil || len(stored) != 1 || stored[0].Name() != "build.b1.1" {
		t.Errorf("stored: %v, %v", stored, err)
	}
}
