package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// floatingNetwork is a network with egress and two members, the first of which has a floating address, and the second two ports of another.
func floatingNetwork(index int) fabric.Network {
	n := testNetwork(index, 2, 3)
	n.Egress = true
	n.FloatingPool = []netip.Prefix{netip.MustParsePrefix("198.18.3.0/25")}
	n.Floating = []fabric.Floating{
		{Address: netip.MustParseAddr("198.18.3.1"), Port: n.Ports[0].ID},
		{Address: netip.MustParseAddr("198.18.3.2"), Port: n.Ports[1].ID, Forwards: []fabric.Forward{{Protocol: "tcp", Port: 2222, MemberPort: 22}, {Protocol: "udp", Port: 53, MemberPort: 53}}},
	}
	return n
}

// withFloating returns a network with these floating addresses.
func withFloating(n fabric.Network, floating ...fabric.Floating) fabric.Network {
	n.Floating = floating
	return n
}

func TestPlansOfFloatingAddressesAreAsWritten(t *testing.T) {
	m := newMachine()
	var b strings.Builder
	step := func(why string, networks ...fabric.Network) {
		ops, err := Compute(planConfig, networks, m.Observed)
		if err != nil {
			t.Fatalf("%s: %v", why, err)
		}
		fmt.Fprintf(&b, "=== %s\n", why)
		for _, op := range ops {
			fmt.Fprintln(&b, op)
			m.execute(op)
		}
		if rest, err := Compute(planConfig, networks, m.Observed); err != nil || len(rest) > 0 {
			t.Errorf("%s: a second plan is not empty: %v, %v", why, rest, err)
		}
	}
	full := floatingNetwork(1)
	other := testNetwork(2, 2)
	other.Egress, other.Project, other.Connections = true, "physics", 100
	without := withFloating(full)
	finish(t, m, []fabric.Network{without})
	step("a floating address and a forwarded port: the addresses come up after their rules", full)
	step("another member gets the first address: its connections are forgotten", withFloating(full,
		fabric.Floating{Address: full.Floating[0].Address, Port: full.Ports[1].ID}, full.Floating[1]))
	step("a forwarded port fewer", withFloating(full, full.Floating[0],
		fabric.Floating{Address: full.Floating[1].Address, Port: full.Ports[1].ID, Forwards: full.Floating[1].Forwards[:1]}))
	step("a network of another project with a limit of its own", full, other)
	m.change("up0", func(l *Link) { l.Addresses = nil })
	step("somebody took the addresses off the uplink", full, other)
	m.Links["up1"] = Link{Name: "up1", Kind: "device", MTU: 1500, Up: true, Addresses: []netip.Prefix{netip.MustParsePrefix("198.18.3.200/24")}}
	m.Uplinks = []string{"up0", "up1"}
	step("an uplink in whose subnet the addresses lie", full, other)
	step("the addresses are unassigned: they go before their rules", without, other)
	step("egress ends", testNetwork(1, 2, 3))
	golden(t, "floating", b.String())
}

func TestAnAddressThatSomebodyElsePutOnAnUplinkStaysTheirs(t *testing.T) {
	m, n := newMachine(), floatingNetwork(1)
	theirs := netip.MustParsePrefix("198.18.3.1/24")
	m.change("up0", func(l *Link) { l.Addresses = []netip.Prefix{theirs} })
	finish(t, m, []fabric.Network{n})
	if elements := m.Rules[InetTable].Sets["floating_in"]; len(elements) > 0 {
		t.Errorf("packets to an address of the node are translated: %v", elements)
	}
	if why := Unplaced([]fabric.Network{n}, m.Observed); len(why) != 1 || !strings.Contains(why[0], "198.18.3.1: somebody else put it on up0") {
		t.Errorf("the reason is %q", why)
	}
	finish(t, m, []fabric.Network{withFloating(n)})
	if !bears(m.Observed, "up0", theirs.Addr()) {
		t.Error("an address of somebody else was removed")
	}
}

func TestANodeWithoutAnUplinkHasNoFloatingAddress(t *testing.T) {
	m, n := newMachine(), floatingNetwork(1)
	m.Uplinks = nil
	finish(t, m, []fabric.Network{n})
	if why := Unplaced([]fabric.Network{n}, m.Observed); len(why) != 2 || len(m.Rules[InetTable].Sets["floating"]) > 0 {
		t.Errorf("the reasons are %q, and the rules have %v", why, m.Rules[InetTable].Sets["floating"])
	}
}

// TestAFloatingAddressIsOnAnUplinkOnlyWhileItsRulesAreInForce breaks plans off after each operation.
func TestAFloatingAddressIsOnAnUplinkOnlyWhileItsRulesAreInForce(t *testing.T) {
	full := floatingNetwork(1)
	steps := [][]fabric.Network{{full}, {withFloating(full)}, {full}, {}, {full}, {testNetwork(1, 2, 3)}}
	for stop := range 40 {
		m, done := newMachine(), 0
		check := func(op Operation) {
			for _, p := range m.Links["up0"].Addresses {
				sets := m.Rules[InetTable].Sets
				if !slices.Contains(sets["floating"], p.Addr().String()) || !slices.Contains(sets["announced"], fmt.Sprintf("%q . %s", "up0", p.Addr())) {
					t.Fatalf("after %d operations, the last of which is %v, address %v is on the uplink without its rules: %v", done, op, p, sets)
				}
			}
		}
		for _, networks := range steps {
			ops, err := Compute(planConfig, networks, m.Observed)
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range ops {
				if done++; done == stop { // the agent ends here, and another one starts
					break
				}
				m.execute(op)
				check(op)
			}
			finish(t, m, networks)
		}
	}
}

// TestConnectionsOfAFormerMemberAreForgottenWhereverTheAgentEnds breaks the plan that gives an address to another member off after each operation.
func TestConnectionsOfAFormerMemberAreForgottenWhereverTheAgentEnds(t *testing.T) {
	full := floatingNetwork(1)
	address := full.Floating[0].Address
	next := withFloating(full, fabric.Floating{Address: address, Port: full.Ports[1].ID}, full.Floating[1])
	for stop := range 5 {
		m := newMachine()
		finish(t, m, []fabric.Network{full})
		m.connections[address] = true
		ops, err := Compute(planConfig, []fabric.Network{next}, m.Observed)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range ops[:min(stop, len(ops))] {
			m.execute(op)
		}
		finish(t, m, []fabric.Network{next})
		if m.connections[address] || len(m.Rules[InetTable].Sets["leaving"]) > 0 {
			t.Errorf("broken off after %d of %d operations: the connections of the former member stay: %v", stop, len(ops), m.Rules[InetTable].Sets["leaving"])
		}
	}
}

func TestAProjectHasTheLowestLimitThatItsNetworksSay(t *testing.T) {
	var networks []fabric.Network
	for i, limit := range []int{300, 200, 400} {
		n := testNetwork(i+1, 2)
		n.Egress, n.Project, n.Connections = true, "physics", limit
		networks = append(networks, n)
	}
	m := newMachine()
	finish(t, m, networks)
	chain := m.Rules[InetTable].Parts["chain "+boundName("physics")]
	if !strings.Contains(chain, "ct count over 200 ") || len(m.Rules[InetTable].Parts) != 1 {
		t.Errorf("the limits are %v, want one of 200 connections", m.Rules[InetTable].Parts)
	}
}
