package node

import (
	"net"
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// pair is two members of one network on one node, and one of another network.
type pairLab struct {
	node      node
	a, b, out member
	network   fabric.Network
}

func newPairLab(t *testing.T) pairLab {
	t.Helper()
	needRoot(t)
	n := newNode(t, Config{})
	// An address the node has for itself, which members must not find.
	n.run(t, "ip link add own0 type bridge; ip link set own0 up; ip address add 192.0.2.1/24 dev own0")
	one, two := testNetwork(1, 2, 3), testNetwork(2, 2)
	apply(t, n.fabric, one, two)
	return pairLab{
		node: n, network: one,
		a: attach(t, n.fabric, one, 0), b: attach(t, n.fabric, one, 1), out: attach(t, n.fabric, two, 0),
	}
}

func TestMembersOfANetworkReachEachOther(t *testing.T) {
	lab := newPairLab(t)
	mustReach(t, lab.a.namespace, "another member", lab.b.address())
	mustReach(t, lab.b.namespace, "another member", lab.a.address())
	text := token()
	packet := udpPacket(netip.AddrPortFrom(lab.a.port.Address, 9), netip.AddrPortFrom(netip.MustParseAddr("239.1.2.3"), 9), []byte(text))
	multicast := net.HardwareAddr{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}
	mustArrive(t, lab.a, lab.b, "a multicast packet", ethernetFrame(multicast, lab.a.mac(), etherIPv4, packet), text)
}

func TestMembersOfANetworkReachEachOtherWhenBridgedPacketsPassTheRulesOfIP(t *testing.T) {
	for _, egress := range []bool{false, true} {
		needRoot(t)
		n := newNode(t, Config{})
		if _, err := n.try("echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
			needs.Hardware(t, "the kernel has no br_netfilter, which passes bridged packets to the rules of IP")
		}
		network := testNetwork(1, 2, 3)
		network.Egress = egress
		apply(t, n.fabric, network)
		a, b := attach(t, n.fabric, network, 0), attach(t, n.fabric, network, 1)
		mustReach(t, a.namespace, "another member", b.address())
	}
}

func TestAMemberCannotSendUnderAnotherIdentity(t *testing.T) {
	lab := newPairLab(t)
	a, b := lab.a, lab.b
	stranger := net.HardwareAddr{0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}
	foreign := lab.network.Prefix.Addr().Next().Next().Next().Next().Next() // nobody's
	to := netip.AddrPortFrom(b.port.Address, 9)
	own := netip.AddrPortFrom(a.port.Address, 9)
	for what, make := range map[string]func(text string) []byte{
		"a packet from another IP address": func(text string) []byte {
			return ethernetFrame(b.mac(), a.mac(), etherIPv4, udpPacket(netip.AddrPortFrom(foreign, 9), to, []byte(text)))
		},
		"a packet from another MAC address": func(text string) []byte {
			return ethernetFrame(b.mac(), stranger, etherIPv4, udpPacket(own, to, []byte(text)))
		},
		"an ARP reply for another IP address": func(text string) []byte {
			return ethernetFrame(b.mac(), a.mac(), etherARP, arpPacket(2, a.mac(), foreign, b.mac(), b.port.Address, text))
		},
		"an ARP reply with another MAC address": func(text string) []byte {
			return ethernetFrame(b.mac(), a.mac(), etherARP, arpPacket(2, stranger, a.port.Address, b.mac(), b.port.Address, text))
		},
		"an ARP request in a frame from another MAC address": func(text string) []byte {
			return ethernetFrame(broadcast, stranger, etherARP, arpPacket(1, a.mac(), a.port.Address, make6(), b.port.Address, text))
		},
		"an ARP announcement of another IP address": func(text string) []byte {
			return ethernetFrame(broadcast, a.mac(), etherARP, arpPacket(1, a.mac(), foreign, make6(), foreign, text))
		},
	} {
		text := token()
		mustNotArrive(t, a, b, what, make(text), text)
	}
	text := token()
	mustArrive(t, a, b, "an ARP request of its own", ethernetFrame(broadcast, a.mac(), etherARP,
		arpPacket(1, a.mac(), a.port.Address, make6(), b.port.Address, text)), text)
}

func make6() net.HardwareAddr { return make(net.HardwareAddr, 6) }

func TestAMemberCannotSendWhatIsNotIPv4OrARP(t *testing.T) {
	lab := newPairLab(t)
	a, b := lab.a, lab.b
	text := token()
	ipv6 := append([]byte{0x60, 0, 0, 0, 0, byte(len(text)), 59, 1}, make([]byte, 32)...)
	mustNotArrive(t, a, b, "an IPv6 packet", ethernetFrame(b.mac(), a.mac(), etherIPv6, append(ipv6, text...)), text)
	mustNotArrive(t, a, b, "a frame of an unknown protocol", ethernetFrame(b.mac(), a.mac(), 0x88b5, []byte(text)), text)
}

func TestAMemberCannotSendTaggedFrames(t *testing.T) {
	lab := newPairLab(t)
	for what, tag := range map[string]uint16{"an IEEE 802.1Q frame": 0x8100, "an IEEE 802.1ad frame": 0x88a8} {
		frame, text := lab.a.marker(lab.b)
		mustNotArrive(t, lab.a, lab.b, what, tagged(tag, frame), text)
		text = token()
		request := arpPacket(1, lab.a.mac(), lab.a.port.Address, make6(), lab.b.port.Address, text)
		mustNotArrive(t, lab.a, lab.b, what+" with a request of ARP", tagged(tag, ethernetFrame(lab.b.mac(), lab.a.mac(), etherARP, request)), text)
		discover := func(text string) []byte {
			packet := udpPacket(netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), []byte(text))
			return ethernetFrame(broadcast, lab.a.mac(), etherIPv4, packet)
		}
		node, end := lab.node.listen(t, plan.BridgeName(1)), token()
		lab.a.send(t, memberLink, tagged(tag, discover(text)))
		lab.a.send(t, memberLink, discover(end))
		if frames, ok := node.until(end, markerTimeout); !ok || contains(frames, text) {
			t.Errorf("%s with a message of a DHCP client reached the node, or %v: one without a tag did not", what, !ok)
		}
	}
}

func TestAMemberCannotPlayDHCPServer(t *testing.T) {
	lab := newPairLab(t)
	text := token()
	offer := udpPacket(netip.AddrPortFrom(lab.a.port.Address, 67), netip.AddrPortFrom(lab.b.port.Address, 68), []byte(text))
	mustNotArrive(t, lab.a, lab.b, "a DHCP offer", ethernetFrame(lab.b.mac(), lab.a.mac(), etherIPv4, offer), text)
}

func TestAMemberDoesNotReachTheNodeNorOtherNetworks(t *testing.T) {
	lab := newPairLab(t)
	// As the tenant's root would: routes to everywhere over the own link, and the bridge's address as a neighbour.
	lab.a.run(t, "ip route add default dev eth0")
	if got := asksFor(t, lab.a, lab.b, netip.MustParseAddr("192.0.2.1")); got {
		t.Error("the node answered an ARP request for its own address")
	}
	gateway := plan.GatewayMAC(1)
	for what, address := range map[string]string{
		"the node's own address": "192.0.2.1", "the gateway's address": lab.network.Gateway.String(), "another network's member": lab.out.address(),
	} {
		lab.a.run(t, "ip neigh replace "+address+" lladdr "+gateway+" nud permanent dev eth0")
		mustNotReach(t, lab.a.namespace, what, address)
	}
}

func TestANetworkWithoutEgressGivesTheNodeNoAddress(t *testing.T) {
	lab := newPairLab(t)
	if out := lab.node.run(t, "ip -o address show dev nmbr1"); out != "" {
		t.Errorf("got %s", out)
	}
	if out := lab.a.run(t, "ip route show default"); out != "" {
		t.Errorf("the member has a default route: %s", out)
	}
}

// asksFor tells whether a gets an answer to an ARP request for target by the time that b has answered a ping.
func asksFor(t *testing.T, a, b member, target netip.Addr) bool {
	t.Helper()
	l := a.listen(t, memberLink)
	a.send(t, memberLink, ethernetFrame(broadcast, a.mac(), etherARP, arpPacket(1, a.mac(), a.port.Address, make6(), target, "")))
	mustReach(t, a.namespace, "another member", b.address())
	frame, end := b.marker(a)
	b.send(t, memberLink, frame)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame did not arrive")
	}
	for _, f := range frames {
		if len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 2 && netip.AddrFrom4([4]byte(f[28:32])) == target {
			return true
		}
	}
	return false
}
