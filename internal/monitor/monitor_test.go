package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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
	s := newStream(nil, func(error) {})
	if err := m.connect(&agentstream.Hello{Run: agentID, Node: api.NodeRecord{Name: "n1"}}, s); err != nil {
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
	if phase, _, _ := m.Member("n1", "x"); phase != api.MemberReady {
		t.Errorf("member: got %s, want ready as the newest stream says", phase)
	}
	m.ping("n1", fresh)
	before := m.nodes["n1"].lastSeen
	*now = now.Add(time.Second)
	if m.answered("n1", old, 1); !m.nodes["n1"].lastSeen.Equal(before) {
		t.Error("a replaced stream keeps its node alive")
	}
}

func TestACopyOfANodesIdentityIsNoticed(t *testing.T) {
	m, _ := clocked(t)
	connected(t, m, "first")
	connected(t, m, "first") // reconnects
	connected(t, m, "second")
	connected(t, m, "second")
	hello := &agentstream.Hello{Run: "first", Node: api.NodeRecord{Name: "n1"}}
	if err := m.connect(hello, newStream(nil, func(error) {})); !errors.Is(err, errCopied) {
		t.Errorf("a run that another has taken the place of: got %v, want it refused as a copy", err)
	}
	if err := m.admit(hello); !errors.Is(err, errCopied) {
		t.Errorf("before it is registered: got %v, want it refused as a copy", err)
	}
	connected(t, m, "third")
	if err := m.admit(&agentstream.Hello{Run: strings.Repeat("x", maxRun+1), Node: api.NodeRecord{Name: "n1"}}); err == nil {
		t.Error("a run with an endless name is taken")
	}
	for i := range 10 * formerRuns {
		connected(t, m, fmt.Sprint("run", i))
	}
	if n := len(m.nodes["n1"].former); n > formerRuns {
		t.Errorf("%d former runs are remembered", n)
	}
}

func TestAMachineThatMayNotHaveANameIsToldWhyAndChangesNothing(t *testing.T) {
	m := newTest(t)
	m.cfg.Register = func(_ context.Context, node api.NodeRecord) error {
		if node.AgentVersion != "v1" {
			return fmt.Errorf("node %q is another machine; give this one another --name", node.Name)
		}
		return nil
	}
	server := serve(t, m, nil)
	greet := func(agentID string) *agentstream.ClientConn {
		c, err := agentstream.Dial(t.Context(), server.Client(), server.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		err = c.Send(agentstream.Up{Hello: &agentstream.Hello{Node: api.NodeRecord{Name: "n1", AgentVersion: agentID}}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	other := greet("v2")
	down, err := other.Receive()
	if err != nil || !strings.Contains(down.Refused, "give this one another --name") {
		t.Errorf("the other machine is told %+v, %v; want what to do", down, err)
	}
	if _, err := other.Receive(); err == nil {
		t.Error("the stream of a machine that was refused goes on")
	}
	if phase, _, _ := m.Node("n1"); phase == api.NodeReady {
		t.Error("the node counts as ready by a machine that was refused")
	}
	m.SetDesired("n1", agentstream.Desired{Term: 7})
	if down, err := greet("v1").Receive(); err != nil || down.Desired == nil {
		t.Errorf("the node's own machine is told %+v, %v; want its desired state", down, err)
	}
}

func TestTheTimeOfAPhaseCountsFromWhenItWasFirstHeardInARow(t *testing.T) {
	m, now := clocked(t)
	say := func(s *stream, phase api.MemberPhase) {
		m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: phase}}})
	}
	s := connected(t, m, "a1")
	began := *now
	want := func(what string, since time.Time) {
		t.Helper()
		if got, ok := m.MemberState("n1", "x"); !ok || !got.Since.Equal(since) {
			t.Errorf("%s: got since %v, %t; want %v", what, got.Since, ok, since)
		}
	}
	say(s, api.MemberUnhealthy)
	*now = now.Add(3 * time.Second)
	say(s, api.MemberUnhealthy)
	want("said again", began)
	m.disconnect("n1", s)
	s = connected(t, m, "a1")
	*now = now.Add(3 * time.Second)
	say(s, api.MemberUnhealthy)
	want("said again on another stream", began)
	say(s, api.MemberReady)
	*now = now.Add(time.Second)
	say(s, api.MemberUnhealthy)
	want("after another phase", *now)
}

func TestAMemberIsCurrentWithTheFilesThatItsNodeWasLastToldOf(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	tell := func(digest string) {
		member := agentstream.Member{FilesDigest: digest}
		member.Assignment.ID = "x"
		m.SetDesired("n1", agentstream.Desired{Members: []agentstream.Member{member}})
	}
	say := func(digest string) {
		m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", FilesDigest: digest}}})
	}
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"nothing was told", func() { say("1") }, false},
		{"it has what was told", func() { tell("1") }, true},
		{"other files were told", func() { tell("2") }, false},
		{"it has them", func() { say("2") }, true},
		{"what it has is not known", func() { say("") }, false},
		{"nor what it should have", func() { tell("") }, false},
	} {
		step.do()
		if got, _ := m.MemberState("n1", "x"); got.Current != step.want {
			t.Errorf("%s: current is %t, want %t", step.what, got.Current, step.want)
		}
	}
}

func TestJobsThatAnAgentNoLongerTellsOfAreForgotten(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	m.observe("n1", s, agentstream.Observed{Jobs: []agentstream.JobObserved{{ID: "j1"}, {ID: "j2"}}})
	m.observe("n1", s, agentstream.Observed{Jobs: []agentstream.JobObserved{{ID: "j2"}}})
	_, first := m.Job("n1", "j1")
	if second, known := m.Job("n1", "j2"); first || !known || second.ID != "j2" {
		t.Errorf("j1 is known: %t, j2: %t; want j2 only", first, known)
	}
}

func TestANodeSpeaksForItsOwnMembersAndJobsOnly(t *testing.T) {
	m, _ := clocked(t)
	own := agentstream.Observed{
		Members: []agentstream.MemberObserved{{ID: "x", Phase: api.MemberReady}}, Jobs: []agentstream.JobObserved{{ID: "j", Phase: api.JobRunning}},
	}
	m.observe("n1", connected(t, m, "a1"), own)
	other := newStream(nil, func(error) {})
	if err := m.connect(&agentstream.Hello{Node: api.NodeRecord{Name: "n2"}}, other); err != nil {
		t.Fatal(err)
	}
	code := 0
	m.observe("n2", other, agentstream.Observed{
		Members: []agentstream.MemberObserved{{ID: "x", Phase: api.MemberFailed}}, Jobs: []agentstream.JobObserved{{ID: "j", Phase: api.JobSucceeded, ExitCode: &code}},
	})
	m.observe("n2", other, agentstream.Observed{}) // and what it no longer says takes nothing of another's away
	member, _ := m.MemberState("n1", "x")
	job, _ := m.Job("n1", "j")
	if member.Phase != api.MemberReady || job.Phase != api.JobRunning {
		t.Errorf("after another node spoke of them the member is %s and the job %s, want ready and running", member.Phase, job.Phase)
	}
}

// nodeHeader stands for a certificate: whose agent makes a request; by default that of n1.
const nodeHeader = "Test-Node"

// of is a client in the name of a node's agent.
type of struct {
	node string
	http.RoundTripper
}

func (o of) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(nodeHeader, o.node)
	return o.RoundTripper.RoundTrip(r)
}

// serve serves the streams of agents, and tunnels; ended is called when a stream has ended.
func serve(t *testing.T, m *Monitor, ended func()) *httptest.Server {
	t.Helper()
	if m.cfg.Register == nil {
		m.cfg.Register = func(context.Context, api.NodeRecord) error { return nil }
	}
	mux := http.NewServeMux()
	mux.Handle(agentstream.Path, agentstream.Handler(func(ctx context.Context, c *agentstream.ServerConn) {
		m.Serve(ctx, c)
		if ended != nil {
			ended()
		}
	}))
	mux.Handle(agentstream.TunnelPath, m.ServeTunnel())
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(agentstream.ForNode(r.Context(), cmp.Or(r.Header.Get(nodeHeader), "n1"))))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // first
	return server
}

// greeted is an agent's end of a stream that the server has taken.
func greeted(t *testing.T, m *Monitor, server *httptest.Server, agentID string) *agentstream.ClientConn {
	t.Helper()
	c, err := agentstream.Dial(t.Context(), server.Client(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	changed := m.Changed()
	if err := c.Send(agentstream.Up{Hello: &agentstream.Hello{Run: agentID, Node: api.NodeRecord{Name: "n1"}}}); err != nil {
		t.Fatal(err)
	}
	<-changed
	return c
}

// overflowing is a desired state larger than the connection's flow-control window: sending it blocks while the agent does not read.
func overflowing() agentstream.Desired {
	d := agentstream.Desired{Term: 7, Members: []agentstream.Member{{Release: true}}}
	for i := range 300 {
		d.Jobs = append(d.Jobs, agentstream.Job{Job: api.Job{
			ID: fmt.Sprintf("j%d", i), JobRequest: api.JobRequest{Command: []string{strings.Repeat("x", 64<<10)}},
		}})
	}
	return d
}

func TestAcknowledgementsPassBetweenThePiecesOfAState(t *testing.T) {
	m := newTest(t)
	const run = "build.b1.1"
	small := agentstream.Desired{Term: 7, Builds: []api.Build{{ID: "b1", Attempt: 1}}}
	m.SetDesired("n1", small)
	c := greeted(t, m, serve(t, m, nil), "a1")
	for {
		down, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if down.LogAck != nil {
			break
		}
	}
	large := overflowing()
	large.Builds = small.Builds
	m.SetDesired("n1", large)
	stored := m.LogChanged(run)
	if err := c.Send(agentstream.Up{Log: &agentstream.Log{JobID: run, Data: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stored:
	case <-time.After(10 * time.Second):
		t.Fatal("the output is not stored while a large state is sent")
	}
	for {
		down, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if down.Desired != nil {
			t.Fatal("the acknowledgement waits for the end of a large state")
		}
		if down.LogAck != nil && down.LogAck.Offset == 1 {
			return
		}
	}
}

func TestAnAgentThatDoesNotReadIsLetGoOf(t *testing.T) {
	m := newTest(t)
	ended := make(chan struct{})
	server := serve(t, m, func() { close(ended) })
	m.SetDesired("n1", overflowing())
	greeted(t, m, server, "a1")
	m.mu.Lock()
	s := m.nodes["n1"].stream
	m.mu.Unlock()
	s.end(errors.New("the agent has reconnected"))
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the handler of a stream that was ended goes on trying to send")
	}
}

func TestWhatAnAgentSaysIsHeldInBounds(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	long := "\x1b[2J" + strings.Repeat("x", 40<<10)
	m.observe("n1", s, agentstream.Observed{
		Members: []agentstream.MemberObserved{{ID: "x", Message: long}}, Jobs: []agentstream.JobObserved{{ID: "j", Message: long}},
		Builds: []agentstream.BuildObserved{{ID: "b", Attempt: 1, Message: long, Step: long, Percent: 1 << 40}}, PowerOffProblem: long,
	})
	member, _ := m.MemberState("n1", "x")
	build := m.Builds()["n1"][0]
	job, _ := m.Job("n1", "j")
	for what, text := range map[string]string{
		"a member": member.Message, "a job": job.Message, "a build": build.Message, "a build's step": build.Step, "a power switch": m.PowerOffProblem("n1"),
	} {
		if text == "" || len(text) > api.MaxMessageBytes || strings.Contains(text, "\x1b") {
			t.Errorf("%s has a message of %d bytes that begins with %q, want up to %d without what a terminal obeys", what, len(text), text[:min(len(text), 9)], api.MaxMessageBytes)
		}
	}
	if build.Percent != 100 {
		t.Errorf("a build is at %d percent", build.Percent)
	}
}

func TestAPeerIsAtAnAddress(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	for url, want := range map[string]bool{
		"http://198.18.0.1:7701/images/": true, "http://[fd00::1]:7701/images/": true,
		"https://198.18.0.1:7701/": false, "http://metadata.example/": false, "http://a:b@198.18.0.1:7701/": false, "file:///etc/shadow": false,
		"http://198.18.0.1:7701/" + strings.Repeat("x", maxPeerURL): false, "http://198.18.0.1:7701/\x1b[2J": false,
	} {
		m.observe("n1", s, agentstream.Observed{PeerURL: url, Images: []agentstream.ImageObserved{{Digest: "sha256:x", Whole: true}}})
		if whole, _ := m.Holders("sha256:x"); (whole["n1"] == url) != want {
			t.Errorf("peers are told of %q: %t, want %t", whole["n1"], !want, want)
		}
	}
}

func TestAPhaseThatIsNotForAgentsToReportMakesAMemberUnhealthy(t *testing.T) {
	m, _ := clocked(t)
	s := connected(t, m, "a1")
	for _, phase := range []api.MemberPhase{api.MemberAssigned, api.MemberLost, api.MemberWaiting, api.MemberSpare, "hibernating", "\x1b[31mready", ""} {
		m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: phase}}})
		got, message, ok := m.Member("n1", "x")
		if want := fmt.Sprintf("phase %q", phase); !ok || got != api.MemberUnhealthy || !strings.Contains(message, want) {
			t.Errorf("reported as %q: got %s (%s), want it unhealthy, with a message about %s", phase, got, message, want)
		}
	}
	for _, phase := range []api.MemberPhase{
		api.MemberPreparing, api.MemberStarting, api.MemberReady, api.MemberUnhealthy, api.MemberPaused, api.MemberFailed, api.MemberUnknown, api.MemberReleasing,
	} {
		m.observe("n1", s, agentstream.Observed{Members: []agentstream.MemberObserved{{ID: "x", Phase: phase, Message: "m"}}})
		if got, message, _ := m.Member("n1", "x"); got != phase || message != "m" {
			t.Errorf("reported as %q: got %s (%s), want it believed", phase, got, message)
		}
	}
}
