package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	driverfake "github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// aPart is what a member on another node holds here.
func aPart(d driver.Driver) *memberState {
	a := api.Assignment{ID: "u.c-0.1-d0", Of: "u.c-0.1", Rank: lifecycle.NoRank, Generation: 1, Node: "n2", Stack: api.StackContainer}
	return &memberState{id: a.ID, driver: d, state: driver.StateAbsent, want: &agentstream.Member{Member: driver.Member{Assignment: a}}}
}

func TestAPartIsReadyOnceItsDriverSaysThatItRuns(t *testing.T) {
	host := driverfake.NewHost()
	a, m := newTestAgent(t), aPart(driverfake.New(host, &drivertest.Ports{}))
	a.members[m.id], a.networks.ok = m, true
	a.start(t.Context(), m)
	(<-a.events)()
	if got := host.Calls(); m.state != driver.StateRunning || m.control != nil || len(got) != 1 {
		t.Errorf("after its start it is %s with control %v after calls %v, want it running, with no member agent to hear", m.state, m.control, got)
	}
	for _, paused := range []bool{false, true} { // its member is frozen; the part has no processes
		m.want.Paused = paused
		a.follow(t.Context(), m, lifecycle.PlanMember(a.input(m, nil, time.Now())))
		if m.phase != api.MemberReady {
			t.Errorf("paused %t: its phase is %s, want ready", paused, m.phase)
		}
	}
	m.want.Release = true
	a.follow(t.Context(), m, lifecycle.PlanMember(a.input(m, nil, time.Now())))
	if m.phase != api.MemberReleasing {
		t.Errorf("released, its phase is %s", m.phase)
	}
	(<-a.events)()
}

func TestAPartThatItsDriverCannotCarryHasFailed(t *testing.T) {
	host := driverfake.NewHost()
	members := struct{ driver.Driver }{driverfake.New(host, &drivertest.Ports{})} // without the optional abilities
	a, m := newTestAgent(t), aPart(members)
	a.members[m.id], a.networks.ok = m, true
	a.start(t.Context(), m)
	if m.phase != api.MemberFailed || !strings.Contains(m.message, "can't carry parts") || len(host.Calls()) != 0 {
		t.Errorf("its phase is %s (%s) after calls %v, want it failed without a call", m.phase, m.message, host.Calls())
	}
}
