package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// handClock is moved on by the test.
type handClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *handClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *handClock) Until(at time.Time) time.Duration { return at.Sub(c.Now()) }

func (c *handClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestWhatWasHeardBeforeASilenceSaysNothingAfterIt(t *testing.T) {
	clock := &handClock{now: time.Now()}
	h := &hearing{clock: clock, patience: 5 * time.Second, last: clock.now}
	want := func(what string, current bool) {
		t.Helper()
		if got := h.current(); got != current {
			t.Errorf("%s: current is %t, want %t", what, got, current)
		}
	}
	want("nothing was heard yet", false)
	n := h.begin()
	h.obeyed(n)
	want("a desired state was obeyed", true)
	for range 3 {
		clock.pass(4 * time.Second)
		if !h.heard(n) {
			t.Fatal("a word within the patience counts as after a silence")
		}
	}
	want("words kept coming", true)

	clock.pass(6 * time.Second)
	if h.heard(n) {
		t.Error("a word that is read after a silence, and may have lain in a buffer, counts")
	}
	h.obeyed(n) // it was heard before the silence, too
	want("after a silence", false)
	if h.goesOn(n) {
		t.Error("the stream goes on after a silence")
	}
	m := h.begin()
	want("on a new stream", false)
	h.obeyed(n)
	want("a desired state of the former stream was obeyed", false)
	h.obeyed(m)
	want("one of the new stream was obeyed", true)

	clock.pass(time.Second)
	h.begin()
	want("after a connection that was lost for a moment", true)
}

// asleep is an agent that was stopped while its members had something coming, with a clock by hand and a pretended host.
func asleep(t *testing.T) (*Agent, *handClock, *fake.Host) {
	t.Helper()
	a := newTestAgent(t)
	clock, host := &handClock{now: time.Now()}, fake.NewHost()
	a.cfg.Clock = clock
	a.hearing = &hearing{clock: clock, patience: 5 * time.Second, last: clock.now}
	a.networks.apply = a.applyNetworks
	a.desired = nil
	a.drivers = map[api.Stack]driver.Driver{api.StackContainer: fake.New(host, a.cfg.Fabric.(*fabricfake.Fabric))}
	return a, clock, host
}

// wanted is a desired state with one member.
func wanted(revision int64, change func(*agentstream.Member)) *agentstream.Desired {
	m := agentstream.Member{FilesDigest: "1"}
	m.Assignment.ID, m.Assignment.Stack, m.Assignment.Generation = "u1.a.1", api.StackContainer, 1
	if change != nil {
		change(&m)
	}
	return &agentstream.Desired{Term: 1, Revision: revision, Members: []agentstream.Member{m}}
}

// settle converges until nothing is under way.
func settle(t *testing.T, a *Agent) {
	t.Helper()
	for {
		a.converge(t.Context())
		busy := a.networks.busy
		for _, m := range a.members {
			busy = busy || m.busy
		}
		if !busy {
			return
		}
		(<-a.events)()
	}
}

func TestAnAgentThatWakesUpDoesNothingToItsMembersBeforeItHearsWhatIsWantedNow(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*agentstream.Member)
		state  func(m *memberState, now time.Time)
		goesOn bool
	}{
		{name: "a start that was to be tried again", state: func(m *memberState, now time.Time) {
			m.attempts = lifecycle.Attempts{}.Fail("no such runtime", now)
		}},
		{name: "a first start", state: func(*memberState, time.Time) {}},
		{name: "files to be brought up to date", state: func(m *memberState, _ time.Time) { m.state, m.digest = driver.StateRunning, "0" }},
		{name: "a pause", change: func(m *agentstream.Member) { m.Paused = true }, state: func(m *memberState, _ time.Time) {
			m.state, m.digest = driver.StateRunning, "1"
		}},
		{name: "a resume", state: func(m *memberState, _ time.Time) { m.state, m.digest = driver.StatePaused, "1" }},
		{name: "debris", state: func(m *memberState, _ time.Time) { m.state = driver.StatePrepared }},
		{
			name: "a release, which is never taken back", change: func(m *agentstream.Member) { m.Release = true },
			state: func(m *memberState, _ time.Time) { m.state = driver.StateRunning }, goesOn: true,
		},
	} {
		for _, slept := range []bool{false, true} {
			a, clock, _ := asleep(t)
			number := a.hearing.begin()
			if err := a.hear(t.Context(), wanted(1, tt.change), number); err != nil {
				t.Fatal(err)
			}
			m := a.members["u1.a.1"]
			tt.state(m, clock.Now())
			clock.pass(2 * time.Second)
			a.hearing.heard(number)
			if slept {
				clock.pass(time.Minute)
			}
			plan := a.held(m, lifecycle.PlanMember(a.input(m, map[string]int64{}, clock.Now())))
			does := slices.ContainsFunc(plan, func(op lifecycle.MemberOperation) bool {
				_, report := op.(lifecycle.Report)
				return !report
			})
			if does != (!slept || tt.goesOn) {
				t.Errorf("%s, after a sleep: %t; planned %#v", tt.name, slept, plan)
			}
		}
	}
}

func TestAStartThatWaitedForItsTurnIsNotMadeAfterWaking(t *testing.T) {
	a, clock, host := asleep(t)
	number := a.hearing.begin()
	if err := a.hear(t.Context(), wanted(1, nil), number); err != nil {
		t.Fatal(err)
	}
	m := a.members["u1.a.1"]
	for range cap(a.slots) {
		a.slots <- struct{}{}
	}
	want := m.want.Member
	a.run(t.Context(), m, "start", time.Minute, a.ifKnown(m, func(ctx context.Context) error { return m.driver.Start(ctx, want) }), func(*memberState) {
		t.Error("it was started")
	})
	clock.pass(time.Minute) // stopped, and woken
	<-a.slots
	(<-a.events)()
	if calls := host.Calls(); len(calls) > 0 || m.attempts.Count > 0 || m.busy {
		t.Errorf("calls %v, attempts %d, busy %t; want nothing done and nothing counted", calls, m.attempts.Count, m.busy)
	}
}

func TestAnAgentThatWakesUpAndIsToldThatItsMemberWasReplacedCleansIt(t *testing.T) {
	a, clock, host := asleep(t)
	number := a.hearing.begin()
	if err := a.hear(t.Context(), wanted(1, nil), number); err != nil {
		t.Fatal(err)
	}
	// A start that has left something behind, to be cleaned and made again.
	m := a.members["u1.a.1"]
	m.want.Assignment.Ports = []api.PortClaim{{Network: "u1", Kind: api.PortVeth, MAC: "02:6e:00:01:00:02"}}
	if err := m.driver.Start(t.Context(), m.want.Member); err == nil {
		t.Fatal("it was started without a network")
	}
	m.state = driver.StatePrepared
	clock.pass(time.Minute)
	old := wanted(1, nil)
	if a.hearing.heard(number) {
		t.Fatal("what lay in the socket's buffer is heard")
	}
	if err := a.hear(t.Context(), old, number); err != nil { // it was in the queue of the loop
		t.Fatal(err)
	}
	before := len(host.Calls())
	settle(t, a)
	if calls := host.Calls()[before:]; len(calls) > 0 {
		t.Fatalf("before it hears what is wanted now, it did %v", calls)
	}
	number = a.hearing.begin()
	if err := a.hear(t.Context(), wanted(2, func(m *agentstream.Member) { m.Release = true }), number); err != nil {
		t.Fatal(err)
	}
	settle(t, a)
	a.report()
	if got := a.outbox.newest.Clean; !slices.Equal(got, []string{"u1.a.1"}) || len(host.IDs()) > 0 {
		t.Errorf("told to release: clean %v, left %v, called %v", got, host.IDs(), host.Calls())
	}
}

// mute is a server that takes streams and says nothing, or what say says.
func mute(t *testing.T, say func(c *agentstream.ServerConn)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(agentstream.Handler(func(ctx context.Context, c *agentstream.ServerConn) {
		if say != nil {
			say(c)
		}
		<-ctx.Done()
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server
}

func TestAnAgentLeavesAStreamOnWhichItHearsNothing(t *testing.T) {
	a := newTestAgent(t)
	server := mute(t, nil)
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	a.hearing = &hearing{clock: realClock{}, patience: 100 * time.Millisecond, last: time.Now()}
	if taken, err := a.session(t.Context()); !errors.Is(err, errSilence) || taken {
		t.Errorf("got %v, taken %t; want that it noticed the silence", err, taken)
	}
}

func TestPingsAreAnsweredWithTheirNumber(t *testing.T) {
	a := newTestAgent(t)
	answers := make(chan int64, 1)
	server := mute(t, func(c *agentstream.ServerConn) {
		for seq := int64(1); seq <= 3; seq++ {
			if err := c.Send(agentstream.Down{Ping: &agentstream.Ping{Seq: seq}}); err != nil {
				t.Error(err)
			}
			for {
				up, err := c.Receive()
				if err != nil {
					t.Error(err)
					return
				}
				if up.Heartbeat != nil {
					answers <- up.Heartbeat.Ping
					break
				}
			}
		}
	})
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := a.session(ctx)
		ended <- err
	}()
	for want := int64(1); want <= 3; want++ {
		if got := <-answers; got != want {
			t.Errorf("answered ping %d, want %d", got, want)
		}
	}
	cancel()
	<-ended
}

func TestARefusalIsShownAsAnErrorThatSaysWhatToDo(t *testing.T) {
	a := newTestAgent(t)
	var said bytes.Buffer
	a.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	sessions := 0
	ctx, cancel := context.WithCancel(t.Context())
	server := mute(t, func(c *agentstream.ServerConn) {
		_ = c.Send(agentstream.Down{Refused: "node \"n1\" is another machine; give this one another --name"})
	})
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode {
		if sessions++; sessions == 3 {
			cancel()
		}
		return nil
	}
	a.connect(ctx)
	text := said.String()
	if strings.Contains(text, `msg="connected to the server"`) {
		t.Errorf("an agent that is refused says that it is connected:\n%s", text)
	}
	if strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "give this one another --name") {
		t.Errorf("three refusals were shown as\n%swant one error with the reason", text)
	}
}

func TestTunnelsDoNotShareTheConnectionOfTheStream(t *testing.T) {
	a := newTestAgent(t)
	known := &Credentials{server: "192.0.2.1:1", shown: &tls.Certificate{}}
	known.now.Pin = trust.Pin{}.String()
	a.cfg.Client = known.Client()
	one, done := a.tunnelClient()
	defer done()
	of := func(c *http.Client) *http.Transport {
		transport, err := c.Transport.(*renewable).transport()
		if err != nil {
			t.Fatal(err)
		}
		return transport
	}
	if first := of(one); first == of(a.cfg.Client) || first != of(one) {
		t.Error("a tunnel that is not read from would hold up the answers to pings")
	}
}
