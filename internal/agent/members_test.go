package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
	"github.com/nearmetal/nearmetal/internal/member/memberlink/memberlinktest"
)

// newTestAgent is an agent without its loop, which the test stands in for.
func newTestAgent(t *testing.T) *Agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "nm") // t.TempDir is too long for the path of a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &Agent{
		cfg:    Config{StateDir: dir, Clock: realClock{}, Log: slog.New(slog.DiscardHandler), Fabric: &fabricfake.Fabric{}},
		events: make(chan func(), 64), members: map[string]*memberState{}, stored: map[string]storedLog{},
		outbox: outbox{changed: make(chan struct{}, 1)}, wake: time.NewTimer(time.Hour), desired: &agentstream.Desired{},
		hearing: &hearing{clock: realClock{}, patience: time.Hour, last: time.Now(), known: true}, slots: make(chan struct{}, 4), opening: newOpening(),
	}
}

func TestAMemberThatIsWantedAgainAfterItWasCleanedGetsItsNetwork(t *testing.T) {
	a := newTestAgent(t)
	network := api.Network{Index: 3}
	want := &agentstream.Member{Member: driver.Member{Networks: []api.Network{network}}}
	a.desired.Networks = []fabric.Network{{Network: network, Ports: []fabric.Port{{ID: "a"}}}}
	a.members["a"] = &memberState{id: "a", want: want, cleaned: true}
	if got := a.wantedNetworks(); len(got) != 1 || len(got[0].Ports) != 1 {
		t.Errorf("wanted: got %+v, want its network with its port", got)
	}
	want.Release = true
	if got := a.wantedNetworks(); len(got) != 0 {
		t.Errorf("released and clean: got %+v, want no network", got)
	}
}

func TestANetworkThatMembersAreRoutedToStaysAndKeepsNobodyFromBeingClean(t *testing.T) {
	a := newTestAgent(t)
	on := func(index int, project string) api.Network {
		return api.Network{Index: index, Project: project, Routed: true}
	}
	left, right, foreign := on(3, "lab"), on(4, "lab"), on(5, "class")
	of := func(id string, network api.Network, release bool) *memberState {
		return &memberState{id: id, cleaned: release, want: &agentstream.Member{Member: driver.Member{Networks: []api.Network{network}}, Release: release}}
	}
	a.desired.Networks = []fabric.Network{{Network: left, Ports: []fabric.Port{{ID: "a"}}}, {Network: right, Ports: []fabric.Port{{ID: "b"}}}, {Network: foreign}}
	a.members["a"], a.members["b"] = of("a", left, false), of("b", right, true)
	got := a.wantedNetworks()
	if len(got) != 2 || len(got[0].Ports) != 1 || len(got[1].Ports) != 0 {
		t.Errorf("got %+v, want the network of the member and the other of its project, without the port of the clean member", got)
	}
	a.networks = networks{ok: true, applied: got}
	if !a.networksGone(a.members["b"]) {
		t.Error("a clean member waits for the network that another member is routed to")
	}
	a.members["a"].want.Networks[0] = foreign
	if a.networksGone(a.members["b"]) {
		t.Error("a member is clean while its network is here for nobody")
	}
}

func TestANetworkGoesOnceNothingRunsInItsMembersAndNotBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		release, ended bool
		state          driver.State
		needed         bool
	}{
		"it runs":                              {false, false, driver.StateRunning, true},
		"it is released and runs":              {true, false, driver.StateRunning, true},
		"its first process has ended":          {true, false, driver.StateExited, true},
		"all its processes were ended":         {true, true, driver.StateExited, false},
		"it was ended, and is seen to run":     {true, true, driver.StateRunning, true},
		"it was ended, and is seen frozen":     {true, true, driver.StatePaused, true},
		"it was ended, and is not released":    {false, true, driver.StateExited, true},
		"it was ended and is half way removed": {true, true, driver.StatePrepared, false},
	} {
		a := newTestAgent(t)
		network := api.Network{Index: 3}
		want := &agentstream.Member{Member: driver.Member{Networks: []api.Network{network}}, Release: tt.release}
		a.desired.Networks = []fabric.Network{{Network: network, Ports: []fabric.Port{{ID: "a"}}}}
		a.members["a"] = &memberState{id: "a", want: want, ended: tt.ended, state: tt.state}
		if got := len(a.wantedNetworks()) == 1; got != tt.needed {
			t.Errorf("%s: its network is needed: %t, want %t", name, got, tt.needed)
		}
	}
}

func TestNoMemberStartsWhileItIsNotKnownWhatNetworkIsInForce(t *testing.T) {
	m := &driver.Member{Assignment: api.Assignment{ID: "a", Ports: []api.PortClaim{{Network: "u", MAC: "02:6e:00:03:00:02"}, {Network: "u.storage", MAC: "02:6e:00:04:00:02"}}}}
	first, second := fabric.PortOf(&m.Assignment, 0), fabric.PortOf(&m.Assignment, 1)
	other := second
	other.MAC = "02:6e:00:04:00:03"
	for name, tt := range map[string]struct {
		ok    bool
		ports []fabric.Port
		want  bool
	}{
		"both ports are pinned":                {true, []fabric.Port{first, second}, true},
		"applying has failed half way":         {false, []fabric.Port{first, second}, false},
		"its second port is not pinned":        {true, []fabric.Port{first}, false},
		"its second port has another identity": {true, []fabric.Port{first, other}, false},
	} {
		n := networks{ok: tt.ok, applied: []fabric.Network{{Network: api.Network{Index: 3}, Ports: tt.ports[:1]}, {Network: api.Network{Index: 4}, Ports: tt.ports[1:]}}}
		if got := n.has(m); got != tt.want {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestJobsEndWithTheirMemberAndWhatHasEndedStays(t *testing.T) {
	m := &memberState{jobs: map[string]agentstream.JobObserved{"j1": {Phase: api.JobRunning}, "j2": {Phase: api.JobSucceeded}}}
	m.loseJobs(time.Now())
	if got := m.jobs["j1"]; got.Phase != api.JobLost || got.EndedAt == nil {
		t.Errorf("a running job: got %+v, want it lost", got)
	}
	if got := m.jobs["j2"].Phase; got != api.JobSucceeded {
		t.Errorf("a job that had ended: got %s, want succeeded", got)
	}
}

func TestJobsThatTheLeaderNoLongerNamesAreForgotten(t *testing.T) {
	a := newTestAgent(t)
	a.members["a"] = &memberState{id: "a", state: driver.StateExited, jobs: map[string]agentstream.JobObserved{"j1": {}, "j2": {}}}
	a.stored["j1"], a.stored["j2"] = storedLog{offset: 1, stream: 1}, storedLog{offset: 2, stream: 1}
	a.desired = &agentstream.Desired{
		Members: []agentstream.Member{{Member: driver.Member{Assignment: api.Assignment{ID: "a"}}}},
		Jobs:    []agentstream.Job{{Job: api.Job{ID: "j2"}, MemberID: "a"}},
	}
	a.setWanted(t.Context(), a.desired)
	if jobs := a.members["a"].jobs; len(jobs) != 1 || len(a.stored) != 1 {
		t.Errorf("left: %v and %v, want j2 only", jobs, a.stored)
	}
}

func TestAJobsOutputIsAskedForWhenTheMembersSocketIsOpenedLater(t *testing.T) {
	a := newTestAgent(t)
	m := &memberState{id: "a", want: &agentstream.Member{}}
	m.want.Assignment.UserIDs.First = uint32(os.Geteuid())
	a.members["a"] = m
	a.desired.Jobs = []agentstream.Job{{Job: api.Job{ID: "j1", Phase: api.JobPending}, MemberID: "a"}}
	a.ackLog(&agentstream.LogAck{JobID: "j1", Offset: 7}, 1, true)
	if err := a.listen(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	defer m.control.Close()
	conn, err := net.Dial("unix", filepath.Join(a.controlDir("a"), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	hello := member.FromMember{Hello: &member.Hello{Instance: "i", Version: member.ProtocolVersion}}
	if err := json.NewEncoder(conn).Encode(hello); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var got member.ToMember
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.LogFrom != nil {
			if got.LogFrom.JobID != "j1" || got.LogFrom.Offset != 7 || got.LogFrom.Request != 1 {
				t.Errorf("got %+v, want the output of j1 from 7 on, for stream 1", got.LogFrom)
			}
			return
		}
	}
	t.Error("the member is not asked for its job's output")
}

func TestAMemberIsHeardOverTheLinkThatWasMadeForIt(t *testing.T) {
	a := newTestAgent(t)
	m := &memberState{id: "a", want: &agentstream.Member{}}
	m.want.Assignment.ID = "a"
	a.members["a"] = m
	authority := memberlinktest.NewAuthority(t)
	address := ""
	a.cfg.Listen = func(_ string, m driver.Member) (memberlink.Endpoint, error) {
		if m.Assignment.ID != "a" {
			t.Errorf("a link is made for member %q", m.Assignment.ID)
		}
		link := authority.Listen(t, "127.0.0.1:0", memberlinktest.Template(false, memberlinktest.NodeURI(memberlinktest.Node)), authority.Members())
		address = link.Addr().String()
		return link, nil
	}
	if err := a.listen(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	defer m.control.Close()
	dialer, err := memberlink.Open(authority.Link(t, address, memberlinktest.Template(true, memberlinktest.MemberURI("a")), authority))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	messages := json.NewEncoder(conn)
	for _, message := range []member.FromMember{
		{Hello: &member.Hello{Instance: "i", Version: member.ProtocolVersion}}, {Ready: &member.Ready{At: time.Now()}},
	} {
		if err := messages.Encode(message); err != nil {
			t.Fatal(err)
		}
	}
	if (<-a.events)(); !m.ready {
		t.Error("the member is not ready")
	}
}

func TestTheEndOfAnEarlierInstanceSaysNothingOfTheMemberThatRuns(t *testing.T) {
	a := newTestAgent(t)
	d := &slowWaiter{ended: make(chan struct{}), err: driver.ErrNotFound}
	m := &memberState{id: "a", driver: d, state: driver.StateRunning}
	a.members["a"] = m
	a.watch(t.Context(), m)
	m.instance, m.watched, m.ready = 1, false, true // cleaned and made anew
	close(d.ended)
	(<-a.events)()
	if m.state != driver.StateRunning || !m.ready {
		t.Errorf("got state %s, ready %v; want it to run and be ready", m.state, m.ready)
	}
}

func TestAMemberThatCannotBeWatchedIsLookedAtAndNotTakenForEnded(t *testing.T) {
	a := newTestAgent(t)
	d := &slowWaiter{ended: make(chan struct{}), err: errors.New("too many open files")}
	m := &memberState{id: "a", driver: d, state: driver.StateRunning, ready: true}
	a.members["a"] = m
	a.watch(t.Context(), m)
	close(d.ended)
	(<-a.events)()
	if m.state != driver.StateRunning || !m.ready || m.lookAt.IsZero() {
		t.Errorf("got state %s, ready %v, look at %v; want it running, ready, and looked at soon", m.state, m.ready, m.lookAt)
	}
}

// slowWaiter is a driver whose Wait ends with err when the test says so.
type slowWaiter struct {
	driver.Driver
	ended chan struct{}
	err   error
}

func (d *slowWaiter) Wait(_ context.Context, _ string) (driver.Observation, error) {
	<-d.ended
	return driver.Observation{}, d.err
}

func TestObservationsBeyondABurstKeepAPace(t *testing.T) {
	var p pace
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i := range observationBurst {
		if wait := p.take(now); wait != 0 {
			t.Fatalf("observation %d of a burst waits %s", i, wait)
		}
	}
	wait := p.take(now)
	if wait != time.Second/observationsPerSecond {
		t.Fatalf("after the burst: wait %s, want %s", wait, time.Second/observationsPerSecond)
	}
	if wait := p.take(now.Add(wait)); wait != 0 {
		t.Errorf("after that pause: wait %s more", wait)
	}
	now = now.Add(wait)
	p.pay()
	for i := range observationsForRuns {
		if wait := p.take(now); wait != 0 {
			t.Errorf("observation %d that the server has paid for waits %s", i, wait)
		}
	}
	if wait := p.take(now); wait == 0 {
		t.Error("an observation beyond those that the server has paid for does not wait")
	}
}

func TestWhatFilesAMemberHasIsNotKnownWhileTheyAreChanged(t *testing.T) {
	a := newTestAgent(t)
	if err := os.MkdirAll(a.controlDir("a"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		digest string
		err    error
		want   string
	}{{"1", nil, "1"}, {"2", errors.New("half of them"), ""}, {"3", nil, "3"}} {
		err := a.changeFiles("a", step.digest, func() error {
			if got := a.loadDigest("a"); got != "" {
				t.Errorf("while files of %s are written, %q are said to be there", step.digest, got)
			}
			return step.err
		})
		if got := a.loadDigest("a"); !errors.Is(err, step.err) || got != step.want {
			t.Errorf("files of %s: got %v and digest %q, want %v and %q", step.digest, err, got, step.err, step.want)
		}
	}
}
