package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// newShortcutLab is newPairLab on a kernel that can make shortcuts.
func newShortcutLab(t *testing.T) pairLab {
	t.Helper()
	lab := newPairLab(t)
	needShortcuts(t, lab.node.fabric)
	return lab
}

func needShortcuts(t testing.TB, f *Fabric) {
	t.Helper()
	if !f.shortcutting {
		needs.Hardware(t, "the kernel can't make shortcuts, or NEARMETAL_TEST_NO_SHORTCUTS is set")
	}
}

// statistics returns the counters of the node's end of a member's port.
func (n node) statistics(t testing.TB, m member) *netlink.LinkStatistics {
	t.Helper()
	var counters *netlink.LinkStatistics
	err := n.Do(func() error {
		link, err := netlink.LinkByName(plan.PortName(m.port.ID))
		if err == nil {
			counters = link.Attrs().Statistics
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return counters
}

// bridged returns how many frames the bridge gave a member while f ran.
func (n node) bridged(t testing.TB, m member, f func()) uint64 {
	t.Helper()
	before := n.statistics(t, m).TxPackets
	f()
	return n.statistics(t, m).TxPackets - before
}

// mustPassBy sends a permitted frame and requires that it does not pass the bridge. Other frames may: once, such as reports of IPv6 groups
// from elsewhere on the underlay, but not each time.
func mustPassBy(t *testing.T, n node, from, to member, what string) {
	t.Helper()
	mustBeQuiet(t, n, to, what, func() {
		frame, text := from.marker(to)
		mustArrive(t, from, to, what, frame, text)
	})
}

// mustBeQuiet requires that the bridge gives a member nothing while f runs, once in five times.
func mustBeQuiet(t *testing.T, n node, to member, what string, f func()) {
	t.Helper()
	var got uint64
	for range 5 {
		if got = n.bridged(t, to, f); got == 0 {
			return
		}
	}
	t.Errorf("%s: %d frames passed the bridge, want none", what, got)
}

// mustBeBridged sends a permitted frame several times and requires that it passes the bridge each time. Other frames may, too: once, such as
// the bridge's question for groups.
func mustBeBridged(t *testing.T, n node, from, to member, what string) {
	t.Helper()
	for range 3 {
		frame, text := from.marker(to)
		if got := n.bridged(t, to, func() { mustArrive(t, from, to, what, frame, text) }); got == 0 {
			t.Errorf("%s: it did not pass the bridge", what)
		}
	}
}

func TestFramesBetweenMembersOfANodePassByTheBridge(t *testing.T) {
	lab := newShortcutLab(t)
	mustPassBy(t, lab.node, lab.a, lab.b, "a datagram")
	mustPassBy(t, lab.node, lab.b, lab.a, "a datagram back")
	sent := bytes.Repeat([]byte("nearmetal "), 1<<20)
	for _, m := range []member{lab.a, lab.b} {
		mustBeQuiet(t, lab.node, m, "a TCP stream", func() { stream(t, lab.a, lab.b, sent) })
	}
}

// stream sends bytes from one member to another by TCP.
func stream(t *testing.T, from, to member, sent []byte) {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp4", to.address()+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	errs := make(chan error, 1)
	go func() {
		errs <- from.Do(func() error {
			conn, err := net.DialTimeout("tcp4", l.Addr().String(), markerTimeout)
			if err != nil {
				return err
			}
			_, err = conn.Write(sent)
			return errors.Join(err, conn.Close())
		})
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err := errors.Join(err, <-errs); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes, want %d; %v", len(got), len(sent), err)
	}
}

func TestWhatTheShortcutDoesNotKnowTakesTheBridge(t *testing.T) {
	lab := newShortcutLab(t)
	a, b := lab.a, lab.b
	own, to := netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9)
	for what, make := range map[string]func(text string) []byte{
		"a broadcast": func(text string) []byte {
			return ethernetFrame(broadcast, a.mac(), etherIPv4, udpPacket(own, to, []byte(text)))
		},
		"a first fragment": func(text string) []byte {
			return ethernetFrame(b.mac(), a.mac(), etherIPv4, fragment(udpPacket(own, to, []byte(text)), 0x2000))
		},
		"a later fragment": func(text string) []byte {
			return ethernetFrame(b.mac(), a.mac(), etherIPv4, fragment(udpPacket(own, to, []byte(text)), 4))
		},
		"a packet to another address at the same MAC": func(text string) []byte {
			nobody := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.77"), 9)
			return ethernetFrame(b.mac(), a.mac(), etherIPv4, udpPacket(own, nobody, []byte(text)))
		},
		"an ARP request": func(text string) []byte {
			return ethernetFrame(broadcast, a.mac(), etherARP, arpPacket(1, a.mac(), a.port.Address, make6(), b.port.Address, text))
		},
	} {
		text := token()
		got := lab.node.bridged(t, b, func() { mustArrive(t, a, b, what, make(text), text) })
		if got == 0 {
			t.Errorf("%s passed by the bridge", what)
		}
	}
}

// fragment sets the flags and the fragment offset of an IPv4 packet (RFC 791).
func fragment(packet []byte, bits uint16) []byte {
	binary.BigEndian.PutUint16(packet[6:], bits)
	packet[10], packet[11] = 0, 0
	binary.BigEndian.PutUint16(packet[10:], checksum(packet[:20]))
	return packet
}

func TestTheShortcutLeadsToNoOtherNetwork(t *testing.T) {
	lab := newShortcutLab(t)
	text := token()
	packet := udpPacket(netip.AddrPortFrom(lab.a.port.Address, 9), netip.AddrPortFrom(lab.out.port.Address, 9), []byte(text))
	heard := lab.out.listen(t, memberLink)
	lab.a.send(t, memberLink, ethernetFrame(lab.out.mac(), lab.a.mac(), etherIPv4, packet))
	mustPassBy(t, lab.node, lab.a, lab.b, "a datagram behind it")
	own, end := lab.out.marker(lab.out)
	lab.node.send(t, plan.PortName(lab.out.port.ID), own) // out through the port, as if the bridge sent it
	frames, ok := heard.until(end, markerTimeout)
	if !ok {
		t.Fatal("a frame that the node sent did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame arrived in another network")
	}
}

func TestAFrameLongerThanTheNetworksMTUDoesNotArrive(t *testing.T) {
	lab := newUnderlayLab(t, false)
	needShortcuts(t, lab.nodes[0].fabric)
	n := &lab.networks[0]
	n.Ports = append(n.Ports, testPort(*n, 12))
	apply(t, lab.nodes[0].fabric, *n)
	a, b := lab.members[0], attach(t, lab.nodes[0].fabric, *n, 1)
	mustPassBy(t, lab.nodes[0], a, b, "a datagram in a network with a tunnel")
	a.run(t, "ip link set eth0 mtu 20000")
	text := token()
	packet := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), append([]byte(text), make([]byte, 10000)...))
	heard := b.listen(t, memberLink)
	if err := a.put(memberLink, ethernetFrame(b.mac(), a.mac(), etherIPv4, packet)); !errors.Is(err, unix.ENOBUFS) { // dropped
		t.Errorf("sending a frame longer than the network's MTU: %v", err)
	}
	frame, end := a.marker(b)
	a.send(t, memberLink, frame)
	if frames, ok := heard.until(end, markerTimeout); !ok || contains(frames, text) {
		t.Errorf("a frame longer than the network's MTU arrived, or the one behind it did not (%t)", ok)
	}
	a.run(t, fmt.Sprintf("ip link set eth0 mtu %d", underlayMTUInTests-vxlanOverhead))

	// What TCP leaves to the hardware to cut passes whole, by the shortcut as by the bridge.
	const size = 10 << 20
	before := lab.nodes[0].statistics(t, a).RxPackets
	stream(t, a, b, make([]byte, size))
	if got := lab.nodes[0].statistics(t, a).RxPackets - before; got > size/underlayMTUInTests/2 {
		t.Errorf("%d bytes took %d frames: they were cut to the MTU", size, got)
	}
}

func TestShortcutsOutliveTheirProcessAndAreReplaced(t *testing.T) {
	lab := newShortcutLab(t)
	if err := lab.node.fabric.Close(); err != nil {
		t.Fatal(err)
	}
	mustPassBy(t, lab.node, lab.a, lab.b, "a datagram without an agent")
	successor := node{lab.node.namespace, newFabric(t, lab.node.namespace, Config{})}
	apply(t, successor.fabric, lab.network, testNetwork(2, 2))
	mustPassBy(t, successor, lab.a, lab.b, "a datagram under the next agent")
	if drifts, err := successor.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
	if err := successor.fabric.Detach(t.Context(), lab.b.port.ID); err != nil {
		t.Fatal(err)
	}
	last := newFabric(t, lab.node.namespace, Config{NoShortcuts: true})
	apply(t, last, lab.network, testNetwork(2, 2))
	b := attach(t, last, lab.network, 1)
	mustBeBridged(t, lab.node, lab.a, b, "a datagram under an agent that makes no shortcuts")
	if out := lab.node.run(t, "tc filter show dev "+plan.PortName(lab.a.port.ID)+" ingress"); out != "" {
		t.Errorf("left of the agent before: %s", out)
	}
}

func TestAPortThatLeftIsInNoTable(t *testing.T) {
	lab := newShortcutLab(t)
	f := lab.node.fabric
	table := func() string {
		open, err := f.shortcuts.table.Read(nil)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(open)
	}
	if got := table(); !strings.Contains(got, lab.b.address()) {
		t.Fatalf("the table lacks a port that is there: %s", got)
	}
	lab.node.run(t, "ip link delete "+plan.PortName(lab.b.port.ID)) // as when its last process ends
	if err := f.Detach(t.Context(), lab.b.port.ID); err != nil {
		t.Fatal(err)
	}
	if got := table(); strings.Contains(got, lab.b.address()) {
		t.Errorf("the table still has a port that was detached: %s", got)
	}
	lab.node.run(t, "ip link delete "+plan.PortName(lab.out.port.ID))
	apply(t, f, lab.network)
	if got := table(); strings.Contains(got, lab.out.address()) {
		t.Errorf("the table still has a port that is no longer wanted: %s", got)
	}
}

func TestALinkWithTheIndexOfAPortThatIsGoneGetsNoFrames(t *testing.T) {
	lab := newShortcutLab(t)
	name := plan.PortName(lab.b.port.ID)
	other := newSpace(t)
	lab.node.run(t, fmt.Sprintf(`i=$(ip -o link show %[1]s | cut -d: -f1); ip link delete %[1]s
		ip link add other0 index $i type veth peer name eth0 netns %[2]s; ip link set other0 up`, name, other.Path()))
	other.run(t, "ip link set eth0 up")
	heard := other.listen(t, memberLink)
	frame, text := lab.a.marker(lab.b)
	lab.a.send(t, memberLink, frame)
	end := token()
	lab.node.send(t, "other0", ethernetFrame(broadcast, lab.a.mac(), 0x88b5, []byte(end)))
	frames, ok := heard.until(end, markerTimeout)
	if !ok {
		t.Fatal("a frame that the node sent did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame to a port that is gone arrived behind a link that has its index")
	}
}

func TestFramesUnderAFormerIdentityAreRefusedAtOnce(t *testing.T) {
	lab := newShortcutLab(t)
	former, text := lab.a.marker(lab.b)
	network := lab.network
	network.Ports = append([]fabric.Port{}, network.Ports...)
	network.Ports[0].Address = testPort(network, 9).Address
	apply(t, lab.node.fabric, network, testNetwork(2, 2))
	lab.a.port = network.Ports[0]
	mustNotArrive(t, lab.a, lab.b, "a frame under the former address", former, text)
	mustPassBy(t, lab.node, lab.a, lab.b, "a frame under the new address")
}

func TestOthersRulesForBridgedFramesHold(t *testing.T) {
	lab := newShortcutLab(t)
	lab.node.run(t, `nft 'table bridge theirs { chain forward { type filter hook forward priority 0; ip daddr `+lab.b.address()+` drop; }; }'`)
	drifts, err := lab.node.fabric.Audit(t.Context())
	if err != nil || len(drifts) == 0 {
		t.Fatalf("the audit does not see them: %v, %v", drifts, err)
	}
	networks := []fabric.Network{lab.network, testNetwork(2, 2)}
	apply(t, lab.node.fabric, networks...)
	heard := lab.b.listen(t, memberLink)
	frame, text := lab.a.marker(lab.b)
	lab.a.send(t, memberLink, frame)
	end := token()
	lab.a.send(t, memberLink, ethernetFrame(broadcast, lab.a.mac(), etherARP, arpPacket(1, lab.a.mac(), lab.a.port.Address, make6(), lab.b.port.Address, end)))
	frames, ok := heard.until(end, markerTimeout)
	if !ok {
		t.Fatal("an ARP request did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame arrived that somebody else's rules drop")
	}
	lab.node.run(t, "nft delete table bridge theirs")
	apply(t, lab.node.fabric, networks...)
	mustPassBy(t, lab.node, lab.a, lab.b, "a datagram after the rules are gone")
}

func TestAPortInTheNodesOwnNamespaceIsReached(t *testing.T) {
	lab := newShortcutLab(t)
	network := lab.network
	network.Ports = append(append([]fabric.Port{}, network.Ports...), testPort(network, 4))
	network.Ports[2].Interface = "here0"
	apply(t, lab.node.fabric, network, testNetwork(2, 2))
	here := member{lab.node.namespace, network.Ports[2]}
	if err := lab.node.fabric.Attach(t.Context(), here.port, here.place()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as attached, and as the next plan leaves it
		heard := here.listen(t, "here0")
		frame, text := lab.a.marker(here)
		lab.a.send(t, memberLink, frame)
		if _, ok := heard.until(text, markerTimeout); !ok {
			t.Error("a frame to a port in the node's own namespace did not arrive")
		}
		apply(t, lab.node.fabric, network, testNetwork(2, 2))
	}
}

func TestTheBridgeKnowsForGoodWhoseFramesItDoesNotHear(t *testing.T) {
	lab := newShortcutLab(t)
	name := plan.PortName(lab.b.port.ID)
	known := func() bool {
		return strings.Contains(lab.node.run(t, "bridge fdb show dev "+name), lab.b.port.MAC+" master nmbr1 static")
	}
	if !known() {
		t.Error("after attaching: the bridge has no lasting entry")
	}
	lab.node.run(t, "ip link set "+name+" nomaster")
	apply(t, lab.node.fabric, lab.network, testNetwork(2, 2))
	if !known() {
		t.Error("after the port was put on its bridge again: the bridge has no lasting entry")
	}
}

func TestAShortcutThatCanNotBeOpenedLeavesTheBridge(t *testing.T) {
	lab := newShortcutLab(t)
	f := lab.node.fabric
	if err := f.shortcuts.table.Close(); err != nil { // what is opened from now on fails
		t.Fatal(err)
	}
	if err := f.Attach(t.Context(), lab.a.port, lab.a.place()); err != nil {
		t.Errorf("a port is not attached for want of a shortcut: %v", err)
	}
	mustReach(t, lab.a.namespace, "another member", lab.b.address())
}
