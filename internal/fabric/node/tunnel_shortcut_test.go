package node

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// newTunnelShortcutLab is newUnderlayLab with a counter of the UDP and TCP frames that pass the bridges, after each member has heard the other.
func newTunnelShortcutLab(t *testing.T) underlayLab {
	t.Helper()
	lab := newUnderlayLab(t, false)
	needShortcuts(t, lab.nodes[0].fabric)
	a, b := lab.members[0], lab.members[1]
	for range 2 {
		for _, way := range [][2]member{{a, b}, {b, a}} {
			frame, text := way[0].marker(way[1])
			mustArrive(t, way[0], way[1], "a first frame", frame, text)
		}
	}
	for _, n := range lab.nodes {
		n.run(t, `nft 'table bridge watch { counter seen { }; chain forward { type filter hook forward priority 0; ip protocol { tcp, udp } counter name seen; }; }'`)
	}
	return lab
}

var packetsSeen = regexp.MustCompile(`packets (\d+)`)

// crossing returns how many frames passed the bridge of each node while f ran.
func (l underlayLab) crossing(t *testing.T, f func()) [2]int {
	t.Helper()
	count := func() (counts [2]int) {
		for i, n := range l.nodes {
			out := n.run(t, "nft list counter bridge watch seen")
			m := packetsSeen.FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("no count in %s", out)
			}
			counts[i], _ = strconv.Atoi(m[1])
		}
		return counts
	}
	before := count()
	f()
	after := count()
	return [2]int{after[0] - before[0], after[1] - before[1]}
}

func TestFramesBetweenMembersOfTwoNodesPassByBothBridges(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	for what, f := range map[string]func(){
		"a datagram": func() {
			frame, text := a.marker(b)
			mustArrive(t, a, b, "a datagram", frame, text)
		},
		"a stream": func() { stream(t, a, b, bytes.Repeat([]byte("nearmetal "), 1<<20)) },
	} {
		if got := lab.crossing(t, f); got != [2]int{} {
			t.Errorf("%s: %v frames passed the bridges, want none", what, got)
		}
	}
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
		if drifts, err := lab.nodes[i].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("audit of node %d: %v, %v", i, drifts, err)
		}
	}
}

func TestOneNodeWithShortcutsTalksToOneWithout(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	old := newFabric(t, lab.nodes[1].namespace, Config{NoShortcuts: true, Config: plan.Config{Underlay: underlayAddress(1)}})
	apply(t, old, lab.networks[1])
	sent := bytes.Repeat([]byte("nearmetal "), 1<<20)
	for _, way := range [][2]member{{a, b}, {b, a}} {
		got := lab.crossing(t, func() { stream(t, way[0], way[1], sent) })
		if got[0] > 0 || got[1] == 0 {
			t.Errorf("%v frames passed the bridges; want none on the node with shortcuts", got)
		}
	}
}

func TestAMemberWithAnAddressHeardFromElsewhereIsReached(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	if err := lab.nodes[1].fabric.Detach(t.Context(), b.port.ID); err != nil {
		t.Fatal(err)
	}
	// The address is given to a port of the first node, one without a shortcut.
	n := lab.networks[0]
	n.Ports = append([]fabric.Port{}, n.Ports...)
	moved := b.port
	moved.ID, moved.Interface = "uid3.c-9.1", "here0"
	n.Ports = append(n.Ports, moved)
	lab.nodes[0].run(t, "nft delete table bridge watch")
	apply(t, lab.nodes[0].fabric, n)
	here := member{lab.nodes[0].namespace, moved}
	if err := lab.nodes[0].fabric.Attach(t.Context(), moved, here.place()); err != nil {
		t.Fatal(err)
	}
	heard := here.listen(t, "here0")
	frame, text := a.marker(here)
	a.send(t, memberLink, frame)
	if _, ok := heard.until(text, markerTimeout); !ok {
		t.Error("a frame to an address that was on another node before did not arrive")
	}
}

func TestAMemberThatMovesToAThirdNodeIsReachedThere(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	a, b := lab.members[0], lab.members[1]
	third := node{lab.stranger, newFabric(t, lab.stranger, Config{Config: plan.Config{Underlay: underlayAddress(2)}})}
	all := lab.networks[0]
	for i, n := range []node{lab.nodes[0], lab.nodes[1], third} {
		if i < 2 {
			n.run(t, "nft delete table bridge watch")
		}
		network := all
		network.Peers, network.Ports = nil, nil
		for j := range 3 {
			if j != i {
				network.Peers = append(network.Peers, underlayAddress(j))
			}
		}
		if i == 0 {
			network.Ports = lab.networks[0].Ports
		}
		if i == 2 {
			network.Ports = lab.networks[1].Ports
		}
		apply(t, n.fabric, network)
		if i == 2 {
			b = attach(t, n.fabric, network, 0)
		}
	}
	for range 3 {
		frame, text := a.marker(b)
		mustArrive(t, a, b, "a frame to a member that moved", frame, text)
		frame, text = b.marker(a)
		mustArrive(t, b, a, "a frame from a member that moved", frame, text)
	}
}

func TestAFrameOutOfATunnelTakesTheShortcutOnlyIntoItsNetwork(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	out := testNetwork(4, 2)
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
	}
	apply(t, lab.nodes[1].fabric, lab.networks[1], out)
	other := attach(t, lab.nodes[1].fabric, out, 0)
	a, b := lab.members[0], lab.members[1]
	heard := other.listen(t, memberLink)
	frame, text := a.marker(other)
	a.send(t, memberLink, frame)
	permitted, end := a.marker(b)
	mustArrive(t, a, b, "a frame behind it", permitted, end)
	own, last := other.marker(other)
	lab.nodes[1].send(t, plan.PortName(other.port.ID), own)
	frames, ok := heard.until(last, markerTimeout)
	if !ok {
		t.Fatal("a frame that the node sent did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame from another node arrived in another network")
	}
}

func TestShortcutsThroughTunnelsAreMendedAndReplaced(t *testing.T) {
	lab := newTunnelShortcutLab(t)
	n := lab.nodes[0]
	n.run(t, "nft delete table bridge watch")
	tunnel := plan.TunnelName(3)
	for what, meddling := range map[string]string{
		"its program is removed": "tc filter delete dev " + tunnel + " ingress",
		"it is deleted":          "ip link delete " + tunnel,
	} {
		n.run(t, meddling)
		drifts, err := n.fabric.Audit(t.Context())
		if err != nil || len(drifts) == 0 {
			t.Errorf("%s: the audit does not see it: %v, %v", what, drifts, err)
		}
		apply(t, n.fabric, lab.networks[0])
		if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("%s: after mending: %v, %v", what, drifts, err)
		}
	}
	before := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel))
	successor := newFabric(t, n.namespace, Config{Config: plan.Config{Underlay: underlayAddress(0)}})
	apply(t, successor, lab.networks[0])
	if after := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel)); after == before || after == "" {
		t.Errorf("the next agent left the program of the one before:\n%s", after)
	}
	apply(t, newFabric(t, n.namespace, Config{NoShortcuts: true, Config: plan.Config{Underlay: underlayAddress(0)}}), lab.networks[0])
	if out := n.run(t, fmt.Sprintf("tc filter show dev %s ingress", tunnel)); out != "" {
		t.Errorf("left under an agent that makes no shortcuts:\n%s", out)
	}
}
