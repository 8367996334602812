package node

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// label6 is text that is in no other frame: how an IPv6 packet begins, with a flow label of its own. Bridges cut off what is behind a packet.
func label6() string {
	number := tokens.Add(1)
	return string([]byte{0x86, 0xdd, 0x60, byte(number >> 16 & 0xf), byte(number >> 8), byte(number)})
}

// stamped writes such a beginning into a frame.
func stamped(frame []byte, label string) []byte {
	copy(frame[12:], label)
	return frame
}

// hostileFrame is a frame that a member must not send, with text to know it by.
type hostileFrame struct {
	what  string
	frame func(text string) []byte
}

// hostile6 are frames to a member, from somebody who has mac and the addresses that follow from own, and who speaks for others. Neighbour is
// another member.
func hostile6(n fabric.Network, to member, mac net.HardwareAddr, own netip.Addr, neighbour fabric.Port) []hostileFrame {
	six, linkLocal, target := n.Address6(own), fabric.LinkLocal(mac.String()), to.address6(n)
	other, otherMAC := n.Address6(neighbour.Address), must(net.ParseMAC(neighbour.MAC))
	nobody := n.Prefix6.Addr().Next().Next()
	for range 200 {
		nobody = nobody.Next()
	}
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	ether := func(packet []byte, text string) []byte {
		return stamped(ethernetFrame(to.mac(), mac, etherIPv6, packet), text)
	}
	datagram := func(from netip.Addr) func(string) []byte {
		return func(text string) []byte { return ether(udp6Packet(at(from, 9), at(target, 9), nil), text) }
	}
	message := func(from, to netip.Addr, message []byte) func(string) []byte {
		return func(text string) []byte { return ether(icmp6Packet(from, to, message), text) }
	}
	behind := func(next byte, header ...byte) func(string) []byte {
		return func(text string) []byte {
			advertised := checked6(six, target, unix.IPPROTO_ICMPV6, 2, discovery(neighbourAdvertise, 0x60, other, linkLayer(2, mac)...))
			return ether(packet6(six, target, next, append(header, advertised...)), text)
		}
	}
	claim := discovery(neighbourAdvertise, 0x60, other, linkLayer(2, mac)...)
	unspecified := netip.IPv6Unspecified()
	return []hostileFrame{
		{"a packet from an address of nobody", datagram(nobody)},
		{"a packet from another member's address", datagram(other)},
		{"a packet from another member's link-local address", datagram(fabric.LinkLocal(neighbour.MAC))},
		{"a packet from no address", datagram(unspecified)},
		{"a packet from an IPv4 address in IPv6", datagram(netip.MustParseAddr("::ffff:10.0.0.1"))},
		{"a packet from another MAC address", func(text string) []byte {
			return stamped(ethernetFrame(to.mac(), net.HardwareAddr{2, 9, 9, 9, 9, 9}, etherIPv6, udp6Packet(at(six, 9), at(target, 9), nil)), text)
		}},
		{"an advertisement for another member", message(six, target, claim)},
		{"an advertisement for another member from its address", message(other, target, claim)},
		{"an advertisement with another MAC address", message(six, target, discovery(neighbourAdvertise, 0x60, six, linkLayer(2, otherMAC)...))},
		{"an advertisement of a router", message(six, target, discovery(neighbourAdvertise, 0xe0, six, linkLayer(2, mac)...))},
		{"an advertisement with two options", message(six, target, discovery(neighbourAdvertise, 0x60, six, append(linkLayer(2, mac), linkLayer(2, otherMAC)...)...))},
		{"a question with another MAC address", message(six, target, discovery(neighbourSolicitation, 0, target, linkLayer(1, otherMAC)...))},
		{"a question from another member", message(other, target, discovery(neighbourSolicitation, 0, target, linkLayer(1, mac)...))},
		{"a question from another member without its MAC address", message(other, target, discovery(neighbourSolicitation, 0, target))},
		{"an advertisement for oneself from another member's address", message(other, target, discovery(neighbourAdvertise, 0x60, six, linkLayer(2, mac)...))},
		{"a test whether another member's address is taken", message(unspecified, solicited(other), discovery(neighbourSolicitation, 0, other))},
		{"an advertisement of a router's", message(linkLocal, target, []byte{routerAdvertisement, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0})},
		{"a question for routers", message(linkLocal, target, []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0})},
		{"a redirect", message(linkLocal, target, append(discovery(redirect, 0, six), other.AsSlice()...))},
		{"a question for multicast groups", func(text string) []byte {
			query := checked6(linkLocal, allNodes, unix.IPPROTO_ICMPV6, 2, slices.Concat([]byte{130, 0, 0, 0, 0, 10, 0, 0}, make([]byte, 20)))
			return ether(packet6(linkLocal, allNodes, 0, append([]byte{58, 0, 5, 2, 0, 0, 1, 0}, query...)), text)
		}},
		{"an advertisement in one fragment", behind(44, 58, 0, 0, 0, 0, 0, 0, 1)},
		{"an advertisement in a first fragment", behind(44, 58, 0, 0, 1, 0, 0, 0, 1)},
		{"an advertisement behind hop-by-hop options", behind(0, 58, 0, 1, 4, 0, 0, 0, 0)},
		{"an advertisement behind options for the receiver", behind(60, 58, 0, 1, 4, 0, 0, 0, 0)},
		{"an advertisement behind a routing header", behind(43, 58, 0, 0, 0, 0, 0, 0, 0)},
		{"an advertisement behind options in a fragment", behind(44, 60, 0, 0, 1, 0, 0, 0, 1, 58, 0, 1, 4, 0, 0, 0, 0)},
		{"a first fragment too short for ports", func(text string) []byte { return ether(fragment6(six, target, 17, 0, true, nil), text) }},
		{"an answer of a DHCP server", func(text string) []byte { return ether(udp6Packet(at(six, 547), at(target, 546), nil), text) }},
		{"an answer of a DHCP server in a fragment", func(text string) []byte {
			return ether(fragment6(six, target, 17, 0, true, udp6Message(at(six, 547), at(target, 546), nil)), text)
		}},
		{"a frame with a VLAN tag", func(text string) []byte { return tagged(0x8100, datagram(six)(text)) }},
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// permitted6 are frames that may pass, which the rules are close to dropping.
func permitted6(n fabric.Network, to member, mac net.HardwareAddr, own netip.Addr) []hostileFrame {
	six, linkLocal, target := n.Address6(own), fabric.LinkLocal(mac.String()), to.address6(n)
	ether := func(packet []byte, text string) []byte {
		return stamped(ethernetFrame(to.mac(), mac, etherIPv6, packet), text)
	}
	message := func(from, to netip.Addr, message []byte) func(string) []byte {
		return func(text string) []byte { return ether(icmp6Packet(from, to, message), text) }
	}
	return []hostileFrame{
		{"a packet from the link-local address", func(text string) []byte {
			return ether(udp6Packet(netip.AddrPortFrom(linkLocal, 9), netip.AddrPortFrom(target, 9), nil), text)
		}},
		{"an advertisement for oneself", message(six, target, discovery(neighbourAdvertise, 0x60, six, linkLayer(2, mac)...))},
		{"an advertisement for oneself without option", message(linkLocal, target, discovery(neighbourAdvertise, 0x60, linkLocal))},
		{"a question with the own MAC address", message(six, target, discovery(neighbourSolicitation, 0, target, linkLayer(1, mac)...))},
		{"a test whether the own address is taken", message(netip.IPv6Unspecified(), solicited(six), discovery(neighbourSolicitation, 0, six))},
		{"the same with a nonce", message(netip.IPv6Unspecified(), solicited(six), discovery(neighbourSolicitation, 0, six, 14, 1, 1, 2, 3, 4, 5, 6))},
		{"a later fragment", func(text string) []byte { return ether(fragment6(six, target, 17, 8, false, make([]byte, 16)), text) }},
		{"a first fragment of an echo", func(text string) []byte {
			return ether(fragment6(six, target, 58, 0, true, []byte{echoRequest6, 0, 0, 0, 0, 0, 0, 0}), text)
		}},
		{"a packet that is too big", message(six, target, slices.Concat([]byte{2, 0, 0, 0, 0, 0, 5, 0}, make([]byte, 48)))},
	}
}

// arrivals sends frames one behind the other, and then frames that may pass, and reports which of the former arrived at a member.
func arrivals(t *testing.T, to member, frames []hostileFrame, send func([]byte), ends ...func() ([]byte, string)) map[string]bool {
	t.Helper()
	l, labels := to.listen(t, memberLink), make([]string, len(frames))
	for i, f := range frames {
		labels[i] = label6()
		send(f.frame(labels[i]))
	}
	var got [][]byte
	for _, end := range ends {
		frame, text := end()
		send(frame)
		some, ok := l.until(text, markerTimeout)
		if got = append(got, some...); !ok {
			t.Fatal("a permitted frame behind them did not arrive")
		}
	}
	arrived := map[string]bool{}
	for i, f := range frames {
		arrived[f.what] = contains(got, labels[i])
	}
	return arrived
}

// mustStop6 wants that permitted frames arrive and hostile ones don't, and that all arrive once guards are off.
func mustStop6(t *testing.T, permitted, hostile []hostileFrame, arrivals func([]hostileFrame) map[string]bool, off func()) {
	t.Helper()
	for what, arrived := range arrivals(permitted) {
		if !arrived {
			t.Errorf("%s did not arrive", what)
		}
	}
	for what, arrived := range arrivals(hostile) {
		if arrived {
			t.Errorf("%s arrived, but must not", what)
		}
	}
	off()
	for what, arrived := range arrivals(hostile) {
		if !arrived {
			t.Errorf("%s does not arrive with the guard off, so the test shows nothing", what)
		}
	}
}

func TestAMemberCannotSendIPv6UnderAnotherIdentity(t *testing.T) {
	lab := newPairLab6(t)
	neighbour := testPort(lab.network, 9)
	lab.network.Ports = append(lab.network.Ports, neighbour)
	apply(t, lab.node.fabric, lab.network)
	mustStop6(t, permitted6(lab.network, lab.b, lab.a.mac(), lab.a.port.Address), hostile6(lab.network, lab.b, lab.a.mac(), lab.a.port.Address, neighbour),
		func(frames []hostileFrame) map[string]bool {
			return arrivals(t, lab.b, frames, func(frame []byte) { lab.a.send(t, memberLink, frame) }, func() ([]byte, string) { return lab.a.marker(lab.b) })
		},
		func() { lab.node.run(t, "nft flush chain bridge nm prerouting") })
	apply(t, lab.node.fabric, lab.network)
	mustAudit(t, lab.node)
}

func TestAPeerCannotSendIPv6UnderAnotherIdentity(t *testing.T) {
	for name, bridged := range map[string]bool{"beside shortcuts": false, "by bridges, with egress": true} {
		t.Run(name, func(t *testing.T) { testAPeerCannotSend6(t, newPinsLab6(t, bridged, bridged), bridged) })
	}
}

func testAPeerCannotSend6(t *testing.T, lab underlayLab, egress bool) {
	n, a, b := lab.networks[0], lab.members[0], lab.members[2]
	away := testPort(n, 4) // behind another peer
	permitted, hostile := permitted6(n, a, b.mac(), b.port.Address), hostile6(n, a, b.mac(), b.port.Address, away)
	for _, f := range hostile6(n, a, b.mac(), b.port.Address, testPort(n, 13)) { // behind the same peer
		f.what += " (behind the same peer)"
		hostile = append(hostile, f)
	}
	hostile = append(hostile, hostileFrame{"a packet from a member behind another peer", func(text string) []byte {
		from := netip.AddrPortFrom(n.Address6(away.Address), 9)
		return stamped(ethernetFrame(a.mac(), must(net.ParseMAC(away.MAC)), etherIPv6, udp6Packet(from, netip.AddrPortFrom(a.address6(n), 9), nil)), text)
	}})
	if egress {
		// Where connections are tracked and bridged packets pass the rules of IP, the kernel holds fragments back until all have come.
		piece := func(f hostileFrame) bool { return strings.Contains(f.what, "fragment") }
		permitted, hostile = slices.DeleteFunc(permitted, piece), slices.DeleteFunc(hostile, piece)
	}
	mustStop6(t, permitted, hostile, func(frames []hostileFrame) map[string]bool {
		// The marker of a shortcut may overtake frames that pass the tunnel's device; ARP does not.
		return arrivals(t, a, frames, func(frame []byte) { lab.nodes[1].inject(t, frame) },
			func() ([]byte, string) { return b.marker(a) },
			func() ([]byte, string) {
				text := token()
				return ethernetFrame(a.mac(), b.mac(), etherARP, arpPacket(2, b.mac(), b.port.Address, a.mac(), a.port.Address, text)), text
			})
	}, func() { lab.nodes[0].run(t, guardOff) })
	apply(t, lab.nodes[0].fabric, n)
	mustAudit(t, lab.nodes[0])
}
