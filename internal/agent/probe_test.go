package agent

import (
	"bufio"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/member"
)

// attached is an agent with one running member whose port is attached.
func attached(t *testing.T) (*Agent, *memberState, *fabricfake.Fabric, *fake.Host) {
	t.Helper()
	a, host, ports := newTestAgent(t), fake.NewHost(), &fabricfake.Fabric{}
	a.cfg.Fabric = ports
	network := fabrictest.Network(3, 1)
	if err := ports.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	a.networks.ok = true
	port := network.Ports[0]
	want := &agentstream.Member{Member: driver.Member{Networks: []api.Network{network.Network}}}
	want.Assignment = api.Assignment{ID: port.ID, Ports: []api.PortClaim{{Address: port.Address, MAC: port.MAC}}}
	d := fake.New(host, ports)
	if err := d.Start(t.Context(), want.Member); err != nil {
		t.Fatal(err)
	}
	m := &memberState{id: port.ID, driver: d, want: want, state: driver.StateRunning, ready: true, watched: true}
	a.members[m.id] = m
	return a, m, ports, host
}

// probed looks at the ports once, and waits for what is mended.
func probed(t *testing.T, a *Agent, m *memberState) {
	t.Helper()
	a.probe(t.Context())
	(<-a.events)()
	if m.busy {
		(<-a.events)()
	}
}

func TestAPortThatIsGoneIsMadeAgainAndAMemberIsUnhealthyWhileItCannotBe(t *testing.T) {
	a, m, ports, host := attached(t)
	if probed(t, a, m); m.cut != "" {
		t.Fatalf("with its port: %q", m.cut)
	}
	cut := func() {
		t.Helper()
		if err := ports.Detach(t.Context(), m.id); err != nil {
			t.Fatal(err)
		}
	}
	cut()
	if probed(t, a, m); m.cut != "" || ports.Attached()[m.id].Port.Address == (netip.Addr{}) {
		t.Errorf("after its port was lost: %q, attached %v; want it attached again", m.cut, ports.Attached())
	}
	cut()
	host.Script(m.id, fake.Behaviour{FailMends: 1})
	probed(t, a, m)
	if got := a.input(m, nil, time.Now()).Unhealthy; !strings.Contains(got, "its network port is gone, and the repair failed") {
		t.Errorf("while its port can't be made: unhealthy is %q", got)
	}
	m.unhealthy = `check "gpu" failed`
	if got := a.input(m, nil, time.Now()).Unhealthy; !strings.HasPrefix(got, `check "gpu" failed; its network port`) {
		t.Errorf("with another reason: unhealthy is %q", got)
	}
	m.unhealthy = ""
	if probed(t, a, m); a.input(m, nil, time.Now()).Unhealthy != "" {
		t.Errorf("once it could be made: unhealthy is %q", m.cut)
	}
}

func TestAMemberThatLacksItsFunctionGetsItAndIsUnhealthyWhileItCannot(t *testing.T) {
	a, m, _, host := attached(t)
	a.drivers = map[api.Stack]driver.Driver{api.StackVM: m.driver}
	host.Script(m.id, fake.Behaviour{Portless: "its virtual machine has 0 of its 1 functions", FailMends: 1})
	probed(t, a, m)
	if got := a.input(m, nil, time.Now()).Unhealthy; !strings.Contains(got, "has 0 of its 1 functions, and the repair failed") {
		t.Errorf("while it can't be plugged in: unhealthy is %q", got)
	}
	if probed(t, a, m); a.input(m, nil, time.Now()).Unhealthy != "" {
		t.Errorf("once it was plugged in: unhealthy is %q", m.cut)
	}
	before := len(host.Calls())
	if probed(t, a, m); len(host.Calls()) != before {
		t.Errorf("the port of a member that has its function is repaired again: %v", host.Calls()[before:])
	}
}

func TestAFrozenMembersPortIsNotJudged(t *testing.T) {
	a, m, ports, host := attached(t)
	m.state = driver.StatePaused
	if err := ports.Detach(t.Context(), m.id); err != nil {
		t.Fatal(err)
	}
	if probed(t, a, m); m.cut != "" || slices.Contains(host.Calls(), "Mend "+m.id) {
		t.Errorf("got %q and %v, want it left alone", m.cut, host.Calls())
	}
}

func TestAMemberIsGivenItsChecksAndItsWordOnItsHealthCounts(t *testing.T) {
	a := newTestAgent(t)
	m := &memberState{id: "a", state: driver.StateRunning, want: &agentstream.Member{Checks: []api.Check{{Name: "gpu", Command: []string{"true"}}}}}
	m.want.Assignment.UserIDs.First = uint32(os.Geteuid())
	a.members["a"] = m
	if err := a.listen(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	defer m.control.Close()
	conn, err := net.Dial("unix", filepath.Join(a.controlDir("a"), "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	say := func(message member.FromMember) {
		t.Helper()
		if err := json.NewEncoder(conn).Encode(message); err != nil {
			t.Fatal(err)
		}
	}
	say(member.FromMember{Hello: &member.Hello{Instance: "i", Version: member.ProtocolVersion}})
	given := false
	for lines := bufio.NewScanner(conn); !given && lines.Scan(); {
		var got member.ToMember
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		given = got.Checks != nil && len(*got.Checks) == 1 && (*got.Checks)[0].Name == "gpu"
	}
	if !given {
		t.Error("the member is not given its checks")
	}
	say(member.FromMember{Ready: &member.Ready{At: time.Now()}})
	say(member.FromMember{Health: &member.Health{Message: "no device"}})
	for m.unhealthy == "" {
		(<-a.events)()
	}
	if in := a.input(m, nil, time.Now()); !in.Ready || in.Unhealthy != "no device" {
		t.Errorf("got ready %t, unhealthy %q; want what it said", in.Ready, in.Unhealthy)
	}
	say(member.FromMember{Health: &member.Health{Healthy: true}})
	for m.unhealthy != "" {
		(<-a.events)()
	}
}

// examined asks the drivers once.
func examined(t *testing.T, a *Agent) {
	t.Helper()
	a.examine(t.Context())
	(<-a.events)()
}

func TestAMemberThatHangsIsUnhealthyUntilItIsMadeAnew(t *testing.T) {
	a, m, _, host := attached(t)
	a.drivers = map[api.Stack]driver.Driver{api.StackVM: m.driver}
	if examined(t, a); a.input(m, nil, time.Now()).Unhealthy != "" {
		t.Fatalf("while it runs: unhealthy is %q", m.hung)
	}
	host.Hang(m.id, "its watchdog has fired")
	m.busy = true
	if examined(t, a); m.hung != "" {
		t.Error("a member is judged in the middle of an operation")
	}
	m.busy = false
	if examined(t, a); a.input(m, nil, time.Now()).Unhealthy != "its watchdog has fired" {
		t.Errorf("when it hangs: unhealthy is %q", a.input(m, nil, time.Now()).Unhealthy)
	}
}
