package node

import (
	"context"
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// TestANodeThatIsNoLongerAPeerReachesNoMember is what a fenced node meets: its agent is not heard of, so it goes on sending as it
// did, and the other nodes have to drop that by themselves.
func TestANodeThatIsNoLongerAPeerReachesNoMember(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others bool
		egress bool
	}{
		{name: "others stay", others: true},
		{name: "others stay, with egress", others: true, egress: true},
		{name: "it was the last"},
		{name: "it was the last, with egress", egress: true},
	} {
		t.Run(tt.name, func(t *testing.T) { testFenced(t, newUnderlayLab(t, tt.egress), tt.others) })
	}
}

func testFenced(t *testing.T, lab underlayLab, others bool) {
	a, b := lab.members[0], lab.members[1]
	// A second member beside either, whose frames tell when those before them would have come.
	for i := range lab.nodes {
		n := &lab.networks[i]
		n.Ports = append(n.Ports, testPort(*n, 12+i))
		n.Remotes = append(n.Remotes, behind(*n, underlayAddress(1-i), 13-i)...)
		apply(t, lab.nodes[i].fabric, *n)
		lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, *n, 1))
	}
	besideA, besideB := lab.members[2], lab.members[3]
	mustReach(t, a.namespace, "a member on another node", b.address())
	mustReach(t, b.namespace, "a member on another node", a.address())

	fenced := lab.networks[0]
	fenced.Remotes = nil
	if others {
		fenced.Remotes = behind(fenced, underlayAddress(2), 20)
	}
	apply(t, lab.nodes[0].fabric, fenced)

	mustNotReach(t, b.namespace, "a member whose node has fenced this one off", a.address())
	for _, way := range []struct {
		what             string
		from, to, beside member
	}{
		{"to the fenced node", a, b, besideB},
		{"from the fenced node", b, a, besideA},
	} {
		heard := way.to.listen(t, memberLink)
		frame, text := way.from.marker(way.to) // straight to its address: both know it well
		way.from.send(t, memberLink, frame)
		to := netip.AddrPortFrom(netip.MustParseAddr("255.255.255.255"), 9)
		all := ethernetFrame(broadcast, way.from.mac(), etherIPv4, udpPacket(netip.AddrPortFrom(way.from.port.Address, 9), to, []byte(text)))
		way.from.send(t, memberLink, all)
		// Behind it on the way between the nodes comes a ping, then one from next door.
		mustReach(t, lab.nodes[0].namespace, "the other node", underlayAddress(1).String())
		last, end := way.beside.marker(way.to)
		way.beside.send(t, memberLink, last)
		frames, ok := heard.until(end, markerTimeout)
		if !ok {
			t.Fatal("a frame of the member next door did not arrive")
		}
		if contains(frames, text) {
			t.Errorf("a frame %s arrived", way.what)
		}
	}
	if drifts, err := lab.nodes[0].fabric.Audit(context.Background()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}

	// Cleaned and taken in again, it is a peer like any other.
	apply(t, lab.nodes[0].fabric, lab.networks[0])
	mustReach(t, b.namespace, "a member, as a peer again", a.address())
}

func TestAProbeTellsWhatIsWrongWithAPort(t *testing.T) {
	lab := newPairLab(t)
	id := lab.a.port.ID
	for _, tt := range []struct{ meddling, want string }{
		{"true", ""},
		{"ip link set " + plan.PortName(id) + " down", "its network port is down"},
		{"ip link set " + plan.PortName(id) + " nomaster", "its network port is not on its network's bridge"},
		{"ip link set nmbr1 down", "its network's bridge is down"},
		{"ip link delete " + plan.PortName(id), "its network port is gone"},
	} {
		lab.node.run(t, tt.meddling)
		wrong, err := lab.node.fabric.Probe(t.Context())
		if err != nil || wrong[id] != tt.want {
			t.Errorf("after %q: got %q, %v; want %q", tt.meddling, wrong[id], err, tt.want)
		}
		apply(t, lab.node.fabric, lab.network)
		if err := lab.node.fabric.Attach(t.Context(), lab.a.port, lab.a.place()); err != nil {
			t.Fatal(err)
		}
		if wrong, err := lab.node.fabric.Probe(t.Context()); err != nil || wrong[id] != "" {
			t.Errorf("attached again after %q: got %q, %v", tt.meddling, wrong[id], err)
		}
		mustReach(t, lab.a.namespace, "another member", lab.b.address())
	}
}
