package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// underlayLab is a switch with nodes on it, and a stranger who is no node of the network.
type underlayLab struct {
	sw       namespace
	nodes    []node
	stranger namespace
	networks []fabric.Network // the same network, as each node has it
	members  []member         // one on each node
}

const underlayMTUInTests = 9000

func underlayAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, byte(1 + i)}) }

// plugIn joins a namespace to the switch.
func plugIn(t testing.TB, sw, space namespace, i, mtu int) {
	t.Helper()
	name := fmt.Sprintf("p%d", i)
	sw.run(t, fmt.Sprintf("ip link add %s mtu %d type veth peer name under0 mtu %d netns %s; ip link set %s master sw up",
		name, mtu, mtu, space.Path(), name))
	space.run(t, fmt.Sprintf("ip link set lo up; ip link set under0 up; ip address add %s/24 dev under0", underlayAddress(i)))
}

func newUnderlayLab(t *testing.T, egress bool) underlayLab {
	t.Helper()
	needRoot(t)
	sw := newSpace(t)
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	lab := underlayLab{sw: sw}
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(i)}})})
		n := testNetwork(3)
		n.Egress = egress
		n.Remotes = behind(n, underlayAddress(1-i), 3-i)
		n.Ports = []fabric.Port{testPort(n, 2+i)}
		lab.networks = append(lab.networks, n)
	}
	lab.stranger = newSpace(t)
	plugIn(t, sw, lab.stranger, 2, underlayMTUInTests)
	for i := range lab.nodes {
		apply(t, lab.nodes[i].fabric, lab.networks[i])
		lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, lab.networks[i], 0))
	}
	return lab
}

// withAndWithoutEgress runs a test under either set of rules.
func withAndWithoutEgress(t *testing.T, test func(t *testing.T, lab underlayLab)) {
	t.Helper()
	t.Run("without egress", func(t *testing.T) { test(t, newUnderlayLab(t, false)) })
	t.Run("with egress", func(t *testing.T) { test(t, newUnderlayLab(t, true)) })
}

func TestANetworkSpansNodes(t *testing.T) { withAndWithoutEgress(t, testANetworkSpansNodes) }

func testANetworkSpansNodes(t *testing.T, lab underlayLab) {
	a, b := lab.members[0], lab.members[1]
	mustReach(t, a.namespace, "a member on another node", b.address())
	if got := mtuOf(t, a); got != underlayMTUInTests-vxlanOverhead {
		t.Errorf("MTU of a member: got %d, want the underlay's %d less %d", got, underlayMTUInTests, vxlanOverhead)
	}
	text := token()
	packet := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(netip.MustParseAddr("239.255.0.1"), 7400), []byte(text))
	group := net.HardwareAddr{0x01, 0x00, 0x5e, 0x7f, 0x00, 0x01}
	mustArrive(t, a, b, "a multicast packet", ethernetFrame(group, a.mac(), etherIPv4, packet), text)
	bigFrame := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), append(make([]byte, 8900), "the end"...))
	mustArrive(t, a, b, "the biggest packet", ethernetFrame(b.mac(), a.mac(), etherIPv4, bigFrame), "the end")
}

func mtuOf(t *testing.T, m member) int {
	t.Helper()
	mtu := 0
	if err := m.Do(func() error {
		link, err := net.InterfaceByName(memberLink)
		if err == nil {
			mtu = link.MTU
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mtu
}

func TestAStreamCrossesNodes(t *testing.T) {
	lab := newUnderlayLab(t, false)
	a, b := lab.members[0], lab.members[1]
	var l net.Listener
	if err := b.Do(func() (err error) {
		l, err = net.Listen("tcp4", b.address()+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := bytes.Repeat([]byte("nearmetal "), 1<<20)
	errs := make(chan error, 1)
	go func() {
		errs <- a.Do(func() error {
			conn, err := net.DialTimeout("tcp4", l.Addr().String(), markerTimeout)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(sent)
			return err
		})
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := io.ReadAll(conn)
	if err != nil || <-errs != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes, want %d; %v", len(got), len(sent), err)
	}
}

func TestTunnelsAreNotTracked(t *testing.T) {
	lab := newUnderlayLab(t, true)
	mustReach(t, lab.members[0].namespace, "a member on another node", lab.members[1].address())
	out, err := lab.nodes[0].try("cat /proc/net/nf_conntrack")
	if err != nil {
		needs.Hardware(t, "the kernel has no /proc/net/nf_conntrack")
	}
	if strings.Contains(out, "dport=4789") {
		t.Errorf("tunnel packets take the time of connection tracking:\n%s", out)
	}
}

func TestOnlyPeersCanSendIntoATunnel(t *testing.T) { withAndWithoutEgress(t, testOnlyPeersCanSend) }

func testOnlyPeersCanSend(t *testing.T, lab underlayLab) {
	a, b := lab.members[0], lab.members[1]
	inner, text := b.marker(a)
	header := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, 3<<8) // RFC 7348, section 5: the flag I, and the identifier
	l := a.listen(t, memberLink)
	if err := lab.stranger.Do(func() error {
		conn, err := net.Dial("udp4", netip.AddrPortFrom(underlayAddress(0), vxlanPort).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(append(header, inner...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// Behind it on the stranger's way to the node comes a ping; then one from the peer.
	mustReach(t, lab.stranger, "the node", underlayAddress(0).String())
	permitted, end := b.marker(a)
	b.send(t, memberLink, permitted)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a frame of the peer did not arrive")
	}
	if contains(frames, text) {
		t.Error("a frame that a stranger put into the tunnel arrived")
	}
}

func TestAMemberDoesNotReachOtherNodes(t *testing.T) {
	lab := newUnderlayLab(t, false)
	a, b := lab.members[0], lab.members[1]
	for i := range lab.nodes {
		if asksFor(t, a, b, underlayAddress(i)) {
			t.Errorf("node %d answered an ARP request for its underlay address", i)
		}
	}
}

func TestAMemberCannotThrowPacketsAtNodes(t *testing.T) {
	lab := newUnderlayLab(t, false)
	a := lab.members[0]
	for i, n := range lab.nodes {
		to := netip.AddrPortFrom(underlayAddress(i), 7777)
		var socket net.PacketConn
		if err := n.Do(func() (err error) {
			socket, err = net.ListenPacket("udp4", to.String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		// To everybody on the link, so that every bridge takes it up to its node.
		text, end := token(), token()
		a.send(t, memberLink, ethernetFrame(broadcast, a.mac(), etherIPv4, udpPacket(netip.AddrPortFrom(a.port.Address, 7777), to, []byte(text))))
		mustReach(t, a.namespace, "a member on another node", lab.members[1].address())
		if err := lab.stranger.Do(func() error {
			conn, err := net.Dial("udp4", to.String())
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte(end))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 1500)
		if err := socket.SetDeadline(time.Now().Add(markerTimeout)); err != nil {
			t.Fatal(err)
		}
		for got := ""; got != end; {
			count, _, err := socket.ReadFrom(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if got = string(buffer[:count]); got == text {
				t.Errorf("a member's packet reached node %d", i)
			}
		}
	}
}

func TestEachNodeIsTheGatewayOfItsOwnMembersOnly(t *testing.T) {
	lab := newUnderlayLab(t, true)
	a, b := lab.members[0], lab.members[1]
	gateway := lab.networks[0].Gateway
	l := b.listen(t, memberLink)
	text := token()
	a.send(t, memberLink, ethernetFrame(broadcast, a.mac(), etherARP, arpPacket(1, a.mac(), a.port.Address, make6(), gateway, text)))
	mustReach(t, a.namespace, "a member on another node", b.address())
	// The node looks for its member by ARP when it has something for it.
	lab.nodes[0].run(t, "ip neigh flush dev nmbr3")
	ask := "nodeasks"
	wire := lab.nodes[1].listen(t, "under0") // what arrives there, pins keep from members
	router, err := net.ParseMAC(plan.GatewayMAC(3))
	if err != nil {
		t.Fatal(err)
	}
	lab.nodes[0].send(t, "nmbr3", ethernetFrame(broadcast, router, etherARP, arpPacket(1, router, gateway, make6(), a.port.Address, ask)))
	frame, end := a.marker(b)
	a.send(t, memberLink, frame)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame did not arrive")
	}
	if contains(frames, text) {
		t.Error("a member's request for its gateway left the node")
	}
	packets, ok := wire.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame was not seen on the underlay")
	}
	if contains(packets, ask) {
		t.Error("a node's request for its member left the node")
	}
	if !asksFor(t, a, b, gateway) {
		t.Error("the gateway did not answer its own member")
	}
}

func TestAMembersMTUFollowsWhenItsNetworkStartsToSpanNodes(t *testing.T) {
	lab := newUnderlayLab(t, false)
	alone := lab.networks[0]
	alone.Index, alone.Remotes = 4, nil
	alone.Network.Prefix, alone.Gateway = testNetwork(4).Prefix, testNetwork(4).Gateway
	alone.Ports = []fabric.Port{testPort(alone, 2)}
	f := lab.nodes[0].fabric
	apply(t, f, lab.networks[0], alone)
	m := attach(t, f, alone, 0)
	if got := mtuOf(t, m); got != localMTU {
		t.Errorf("on one node: MTU %d, want %d", got, localMTU)
	}
	alone.Remotes = behind(alone, underlayAddress(1), 3)
	apply(t, f, lab.networks[0], alone)
	if got := mtuOf(t, m); got != underlayMTUInTests-vxlanOverhead {
		t.Errorf("on two nodes: MTU %d, want %d", got, underlayMTUInTests-vxlanOverhead)
	}
	// An agent that was started anew finds the member by its process.
	stay := exec.Command("cat")
	stdin, err := stay.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Do(stay.Start); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); _ = stay.Wait() }()
	alone.Remotes = nil
	f = newFabric(t, lab.nodes[0].namespace, Config{Config: plan.Config{Underlay: underlayAddress(0)}})
	apply(t, f, lab.networks[0], alone)
	if got := mtuOf(t, m); got != localMTU {
		t.Errorf("on one node again, after a restart of the agent: MTU %d, want %d", got, localMTU)
	}
	drifts, err := f.Audit(context.Background())
	if err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
}
