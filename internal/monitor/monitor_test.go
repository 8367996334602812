package monitor

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// clocked is a monitor whose time the test moves on.
func clocked(t *testing.T) (*Monitor, *time.Time) {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := New(Config{
		LogDir: t.TempDir(), DeathTimer: 5 * time.Second, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler),
	})
	return m, &now
}

// connected is a stream of a node's agent, without a connection under it.
func connected(t *testing.T, m *Monitor, agentID string) *stream {
	t.Helper()
	s := &stream{cancel: func(error) {}, woken: make(chan struct{}, 1), acks: map[string]int64{}}
	if err := m.connect(&agentstream.Hello{AgentID: agentID, Node: api.NodeRecord{Name: "n1"}}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestANodeThatSpeaksAgainAfterItWasGivenUpIsNews(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "a1")
	*now = now.Add(6 * time.Second)
	if phase, _, _ := m.Node("n1"); phase != api.NodeDown {
		t.Fatalf("after 6 s of silence: %s, want down", phase)
	}
	changed := m.Changed()
	m.heard("n1", s)
	if phase, _, _ := m.Node("n1"); phase != api.NodeReady || !isClosed(changed) {
		t.Errorf("after a heartbeat: %s, told: %v; want it ready, and who waits told", phase, isClosed(changed))
	}
	changed = m.Changed()
	*now = now.Add(time.Second)
	if m.heard("n1", s); isClosed(changed) {
		t.Error("an ordinary heartbeat wakes who waits for changes")
	}
}

func TestTheLastWordsOfAReplacedStreamSayNothing(t *testing.T) {
	m, now := clocked(t)
	old := connected(t, m, "a1")
	fresh := connected(t, m, "a1")
	m.observe("n1", old, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: api.MemberStarting}}})
	if m.Reported("n1") {
		t.Error("the node counts as reported by what its former stream said")
	}
	m.observe("n1", fresh, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: api.MemberReady}}})
	m.observe("n1", old, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: api.MemberStarting}}})
	if phase, _, _ := m.Member("x"); phase != api.MemberReady {
		t.Errorf("member: got %s, want ready as the newest stream says", phase)
	}
	*now = now.Add(6 * time.Second)
	if m.heard("n1", old); m.nodes["n1"].lastSeen.Equal(*now) {
		t.Error("a replaced stream keeps its node alive")
	}
}

func TestAMachineThatLostItsStreamForAMomentKeepsItsName(t *testing.T) {
	m, now := clocked(t)
	s := connected(t, m, "a1")
	m.disconnect("n1", s)
	hello := &agentstream.Hello{AgentID: "a2", Node: api.NodeRecord{Name: "n1"}}
	if err := m.connect(hello, &stream{}); !errors.Is(err, errNameTaken) {
		t.Errorf("another machine a moment later: got %v, want it refused", err)
	}
	*now = now.Add(5 * time.Second)
	if err := m.connect(hello, &stream{}); err != nil {
		t.Errorf("another machine after the death timer: got %v, want it taken", err)
	}
}

func TestJobsThatAnAgentNoLongerTellsOfAreForgotten(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	m.observe("n1", s, agentstream.Observed{Jobs: []agentstream.JobObserved{{ID: "j1"}, {ID: "j2"}}})
	m.observe("n1", s, agentstream.Observed{Jobs: []agentstream.JobObserved{{ID: "j2"}}})
	if jobs := m.Jobs(); len(jobs) != 1 || jobs["j2"].ID != "j2" {
		t.Errorf("got %v, want j2 only", jobs)
	}
}

func TestAnAgentThatDoesNotReadIsLetGoOf(t *testing.T) {
	m := newTest(t)
	registered, ended := make(chan struct{}), make(chan struct{})
	m.cfg.Register = func(context.Context, api.NodeRecord) error { close(registered); return nil }
	server := httptest.NewUnstartedServer(agentstream.Handler(func(ctx context.Context, c *agentstream.ServerConn) {
		m.Serve(ctx, c)
		close(ended)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	c, err := agentstream.Dial(t.Context(), server.Client(), server.URL, "token")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// More than fits the connection's flow-control window, so that sending blocks.
	m.SetDesired("n1", agentstream.Desired{Members: []agentstream.Member{{Release: true}}, Jobs: []agentstream.Job{
		{Job: api.Job{ID: strings.Repeat("j", 16<<20)}},
	}})
	if err := c.Send(agentstream.Up{Hello: &agentstream.Hello{AgentID: "a1", Node: api.NodeRecord{Name: "n1"}}}); err != nil {
		t.Fatal(err)
	}
	<-registered
	m.mu.Lock()
	s := m.nodes["n1"].stream
	m.mu.Unlock()
	s.end(errors.New("the agent has connected anew"))
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the handler of a stream that was ended goes on trying to send")
	}
}
