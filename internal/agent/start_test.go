package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// leaving is a driver whose Start ends as a test says, and leaves something behind that looks like a member which has ended.
type leaving struct {
	driver.Driver
	start error
}

func (d leaving) Start(context.Context, driver.Member) error { return d.start }
func (d leaving) Clean(context.Context, string) error        { return nil }
func (d leaving) Observe(context.Context) ([]driver.Observation, error) {
	return []driver.Observation{{ID: "a", State: driver.StateExited}}, nil
}

func (d leaving) Wait(ctx context.Context, _ string) (driver.Observation, error) {
	<-ctx.Done()
	return driver.Observation{}, ctx.Err()
}

// startable is a member whose network is in force.
func startable(t *testing.T, a *Agent, d driver.Driver) *memberState {
	t.Helper()
	m := &memberState{id: "a", driver: d, want: &agentstream.Member{Member: driver.Member{
		Assignment: api.Assignment{ID: "a", UserIDs: api.IDRange{First: uint32(os.Geteuid())}}, Networks: []api.Network{{Index: 3}},
		HomeDir: filepath.Join(a.cfg.StateDir, "home"),
	}}}
	a.members["a"] = m
	a.networks.ok, a.networks.applied = true, []fabric.Network{{Network: m.want.Networks[0], Ports: []fabric.Port{{ID: "a"}}}}
	t.Cleanup(func() {
		if m.control != nil {
			_ = m.control.Close()
		}
	})
	return m
}

// readmitting is a fabric with adapters that takes note of who begins anew.
type readmitting struct {
	fabric.Fabric
	fabric.FunctionAttacher
	readmitted []string
}

func (r *readmitting) Readmit(_ context.Context, id string) error {
	r.readmitted = append(r.readmitted, id)
	return nil
}

func TestAMemberThatBeginsAnewMayHaveItsFunctionsAgain(t *testing.T) {
	a := newTestAgent(t)
	adapters := &readmitting{Fabric: a.cfg.Fabric}
	a.cfg.Fabric = adapters
	m := startable(t, a, leaving{})
	a.start(t.Context(), m)
	(<-a.events)() // how the start went
	if len(adapters.readmitted) != 1 || adapters.readmitted[0] != m.id {
		t.Errorf("before the start, %v may have their functions again; want %s", adapters.readmitted, m.id)
	}
}

func TestWhatAFailedStartLeavesHasNeverRunAndWhatStartedHas(t *testing.T) {
	for name, tc := range map[string]struct {
		err      error
		neverRan bool
	}{
		"the start fails":    {errors.New("no"), true},
		"the start succeeds": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestAgent(t)
			m := startable(t, a, leaving{start: tc.err})
			a.start(t.Context(), m)
			(<-a.events)() // how the start went
			if tc.err != nil {
				(<-a.events)() // what a look finds
			}
			if got := a.input(m, nil, a.cfg.Clock.Now()).NeverRan; got != tc.neverRan {
				t.Errorf("never ran: got %t, want %t; its host says %s", got, tc.neverRan, m.state)
			}
		})
	}
}

func TestCleaningLeavesWhatTheNextStartAndOtherMembersNeed(t *testing.T) {
	for name, tc := range map[string]struct{ release, releaseHome, control, home bool }{
		"a start that failed is tried again":          {false, false, true, true},
		"a member of a living cluster is released":    {true, false, false, true},
		"a member is released with its whole cluster": {true, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestAgent(t)
			m := startable(t, a, leaving{})
			m.want.Release, m.want.ReleaseHome = tc.release, tc.releaseHome
			for _, dir := range []string{a.controlDir("a"), m.want.HomeDir} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			a.clean(t.Context(), m)
			(<-a.events)()
			there := func(path string) bool {
				_, err := os.Stat(path)
				return err == nil
			}
			if control, home := there(a.controlDir("a")), there(m.want.HomeDir); control != tc.control || home != tc.home {
				t.Errorf("there afterwards: control directory %t, home %t; want %t and %t", control, home, tc.control, tc.home)
			}
		})
	}
}

func TestNobodyIsLedToAMemberThatIsReleased(t *testing.T) {
	a := newTestAgent(t)
	startable(t, a, leaving{}).want.Release = true
	go func() { (<-a.events)() }()
	if _, err := a.reach(t.Context(), agentstream.Tunnel{MemberID: "a", Target: agentstream.TargetPort, Port: 22}); err == nil || !strings.Contains(err.Error(), "no such member") {
		t.Errorf("got %v, want that there is no such member", err)
	}
}

func TestAMemberThatHangsWhileItComesUpIsUnhealthy(t *testing.T) {
	a := newTestAgent(t)
	m := startable(t, a, leaving{})
	m.state, m.hung = driver.StateRunning, "its kernel gave no sign of life"
	ops := lifecycle.PlanMember(a.input(m, nil, a.cfg.Clock.Now()))
	if report, ok := ops[0].(lifecycle.Report); !ok || report.Phase != api.MemberUnhealthy || !strings.Contains(report.Message, m.hung) {
		t.Errorf("the agent is to report %+v, want that the member is unhealthy because %s", ops, m.hung)
	}
}
