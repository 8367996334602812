package node

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// address6 is the member's own IPv6 address.
func (m member) address6(n fabric.Network) netip.Addr { return n.Address6(m.port.Address) }

// packet6 is an IPv6 packet (RFC 8200).
func packet6(from, to netip.Addr, next byte, payload []byte) []byte {
	b := []byte{0x60, 0, 0, 0, 0, 0, next, 255}
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return slices.Concat(b, from.AsSlice(), to.AsSlice(), payload)
}

// checked6 fills in the checksum of an upper-layer message, which is at offset at.
func checked6(from, to netip.Addr, protocol byte, at int, message []byte) []byte {
	message = slices.Clone(message)
	length := len(message)
	pseudo := slices.Concat(from.AsSlice(), to.AsSlice(), []byte{0, 0, byte(length >> 8), byte(length), 0, 0, 0, protocol}, message)
	binary.BigEndian.PutUint16(message[at:], internetChecksum(pseudo))
	return message
}

func icmp6Packet(from, to netip.Addr, message []byte) []byte {
	return packet6(from, to, unix.IPPROTO_ICMPV6, checked6(from, to, unix.IPPROTO_ICMPV6, 2, message))
}

func udp6Message(from, to netip.AddrPort, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return checked6(from.Addr(), to.Addr(), unix.IPPROTO_UDP, 6, append(append(b, 0, 0), data...))
}

func udp6Packet(from, to netip.AddrPort, data []byte) []byte {
	return packet6(from.Addr(), to.Addr(), unix.IPPROTO_UDP, udp6Message(from, to, data))
}

// fragment6 is a fragment of a packet with this payload (RFC 8200, section 4.5).
func fragment6(from, to netip.Addr, next byte, offset uint16, more bool, payload []byte) []byte {
	header := []byte{next, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(header[2:], offset)
	if more {
		header[3] |= 1
	}
	return packet6(from, to, unix.IPPROTO_FRAGMENT, append(header, payload...))
}

// discovery is a message of neighbour discovery (RFC 4861, section 4): its type, flags, target and options.
func discovery(kind, flags byte, target netip.Addr, options ...byte) []byte {
	return slices.Concat([]byte{kind, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice(), options)
}

const (
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighbourSolicitation = 135
	neighbourAdvertise    = 136
	redirect              = 137
	echoRequest6          = 128
)

// linkLayer is an option with a link-layer address.
func linkLayer(kind byte, mac net.HardwareAddr) []byte { return append([]byte{kind, 1}, mac...) }

// reaches6 reports whether an ICMPv6 echo request is answered within the time.
func (n namespace) reaches6(address netip.Addr, zone string, wait time.Duration) bool {
	answered := false
	_ = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet6{Addr: address.As16()}
		if zone != "" {
			link, err := net.InterfaceByName(zone)
			if err != nil {
				return err
			}
			to.ZoneId = uint32(link.Index)
		}
		packet := make([]byte, 2048)
		for deadline := time.Now().Add(wait); !answered && time.Now().Before(deadline); {
			if err := unix.Sendto(fd, []byte{echoRequest6, 0, 0, 0, 'n', 'm', 0, 1}, 0, &to); err != nil {
				return err
			}
			timeout := unix.NsecToTimeval(int64(200 * time.Millisecond))
			if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
				return err
			}
			for !answered {
				count, sender, err := unix.Recvfrom(fd, packet, 0)
				if err != nil {
					break
				}
				s, ok := sender.(*unix.SockaddrInet6)
				answered = ok && s.Addr == to.Addr && count >= 8 && packet[0] == 129
			}
		}
		return nil
	})
	return answered
}

// mustExchange6 has two members reach each other over IPv6: echoes, a stream and a datagram in fragments, both ways.
func mustExchange6(t *testing.T, n fabric.Network, a, b member) {
	t.Helper()
	for _, way := range [][2]member{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		if !from.reaches6(to.address6(n), "", markerTimeout) {
			t.Errorf("%v does not answer %v", to.address6(n), from.address6(n))
		}
		if !from.reaches6(fabric.LinkLocal(to.port.MAC), memberLink, markerTimeout) {
			t.Errorf("the link-local address of %v does not answer", to.address6(n))
		}
		mustStream6(t, n, from, to)
		mustSend6(t, n, from, to, 30_000)
	}
}

// mustStream6 sends a stream over TCP.
func mustStream6(t *testing.T, n fabric.Network, from, to member) {
	t.Helper()
	var l net.Listener
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp6", net.JoinHostPort(to.address6(n).String(), "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := bytes.Repeat([]byte("nearmetal "), 1<<17)
	errs := make(chan error, 1)
	go func() {
		errs <- from.Do(func() error {
			conn, err := net.DialTimeout("tcp6", l.Addr().String(), markerTimeout)
			if err != nil {
				l.Close() // nobody will come
				return err
			}
			defer conn.Close()
			_, err = conn.Write(sent)
			return err
		})
	}()
	var got []byte
	conn, err := l.Accept()
	if err == nil {
		defer conn.Close()
		got, err = io.ReadAll(conn)
	}
	if sending := <-errs; err != nil || sending != nil || !bytes.Equal(got, sent) {
		t.Errorf("a stream from %v: got %d bytes, want %d; %v, %v", from.address6(n), len(got), len(sent), err, sending)
	}
}

// mustSend6 sends a datagram that may have to be cut into fragments.
func mustSend6(t *testing.T, n fabric.Network, from, to member, size int) {
	t.Helper()
	var conn net.PacketConn
	if err := to.Do(func() (err error) {
		conn, err = net.ListenPacket("udp6", net.JoinHostPort(to.address6(n).String(), "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := from.Do(func() error {
		out, err := net.Dial("udp6", conn.LocalAddr().String())
		if err != nil {
			return err
		}
		defer out.Close()
		_, err = out.Write(make([]byte, size))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(markerTimeout))
	if count, _, err := conn.ReadFrom(make([]byte, 1<<16)); err != nil || count != size {
		t.Errorf("a datagram from %v: got %d bytes, want %d; %v", from.address6(n), count, size, err)
	}
}

// newPairLab6 is two members of a network with IPv6 on one node.
func newPairLab6(t *testing.T) pairLab {
	t.Helper()
	needRoot(t)
	n := newNode(t, Config{})
	network := testNetwork6(1, 2, 3)
	apply(t, n.fabric, network)
	return pairLab{node: n, network: network, a: attach(t, n.fabric, network, 0), b: attach(t, n.fabric, network, 1)}
}

func TestMembersReachEachOtherOverIPv6(t *testing.T) {
	lab := newPairLab6(t)
	mustExchange6(t, lab.network, lab.a, lab.b)
	mustReach(t, lab.a.namespace, "another member over IPv4", lab.b.address())
	// As if the members had not been introduced: their questions for each other pass.
	for _, m := range []member{lab.a, lab.b} {
		m.run(t, "ip -6 neigh flush nud permanent dev eth0")
	}
	mustExchange6(t, lab.network, lab.a, lab.b)
	mustAudit(t, lab.node)
}

// mustAudit wants the kernel as it should be.
func mustAudit(t *testing.T, n node) {
	t.Helper()
	if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
}

func TestAMemberHasItsIPv6AddressesAndNoOthers(t *testing.T) {
	lab := newPairLab6(t)
	out := lab.a.run(t, "ip -6 -o address show dev eth0; cat /proc/sys/net/ipv6/conf/eth0/accept_ra; ip -6 route show default")
	if want := lab.a.address6(lab.network).String() + "/64 scope global nodad"; !strings.Contains(out, want) {
		t.Errorf("got %s\nwant %s", out, want)
	}
	if want := fabric.LinkLocal(lab.a.port.MAC).String() + "/64 scope link nodad"; !strings.Contains(out, want) || strings.Count(out, "inet6") != 2 {
		t.Errorf("got %s\nwant %s and one more address", out, want)
	}
	if !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("routers' advertisements are taken, or there is a default route: %s", out)
	}
}

// newPinsLab6 is newPinsLab with IPv6.
func newPinsLab6(t *testing.T, egress, bridged bool) underlayLab {
	t.Helper()
	lab := newPinsLab(t, egress, bridged)
	for i := range lab.nodes {
		n := &lab.networks[i]
		n.Prefix6 = testNetwork6(n.Index).Prefix6
		apply(t, lab.nodes[i].fabric, *n)
	}
	for i := range lab.members { // two on each node
		if err := lab.nodes[i/2].fabric.Attach(t.Context(), lab.members[i].port, lab.members[i].place()); err != nil {
			t.Fatal(err)
		}
	}
	return lab
}

func TestMembersOfTwoNodesReachEachOtherOverIPv6(t *testing.T) {
	for name, bridged := range map[string]bool{"beside shortcuts": false, "by bridges, with egress": true} {
		t.Run(name, func(t *testing.T) {
			lab := newPinsLab6(t, bridged, bridged)
			for i, m := range lab.members[1:] {
				mustExchange6(t, lab.networks[0], lab.members[0], m)
				if t.Failed() {
					t.Fatalf("with member %d", i+1)
				}
			}
			mustReach(t, lab.members[0].namespace, "a member on another node over IPv4", lab.members[2].address())
			for i := range lab.nodes {
				mustAudit(t, lab.nodes[i])
			}
		})
	}
}

func TestANodeGoesBackToRulesWithoutIPv6WithItsLastSuchNetwork(t *testing.T) {
	needRoot(t)
	n := newNode(t, Config{})
	four, six := testNetwork(1, 2), testNetwork6(2, 2)
	apply(t, n.fabric, four)
	attach(t, n.fabric, four, 0)
	before := n.run(t, "nft -y list ruleset; ip -o link show; ip -6 -o address")
	apply(t, n.fabric, four, six)
	if during := n.run(t, "nft -y list ruleset"); !strings.Contains(during, "chain member6") {
		t.Error("there are no rules for IPv6")
	}
	apply(t, n.fabric, four)
	if after := n.run(t, "nft -y list ruleset; ip -o link show; ip -6 -o address"); after != before {
		t.Errorf("got %s\nwant %s", after, before)
	}
}

// A network without IPv6 beside one with it carries none.
func TestANetworkWithoutIPv6BesideOneWithItCarriesNone(t *testing.T) {
	needRoot(t)
	node := newNode(t, Config{})
	four, six := testNetwork(1, 2, 3), testNetwork6(2, 2)
	apply(t, node.fabric, four, six)
	a, b := attach(t, node.fabric, four, 0), attach(t, node.fabric, four, 1)
	if out := a.run(t, "ip -6 -o address show dev eth0"); out != "" {
		t.Errorf("got %s", out)
	}
	text := token()
	mustNotArrive(t, a, b, "IPv6", ethernetFrame(b.mac(), a.mac(), etherIPv6, ipv6Packet(text)), text)
	from, to := netip.AddrPortFrom(fabric.LinkLocal(a.port.MAC), 9), netip.AddrPortFrom(fabric.LinkLocal(b.port.MAC), 9)
	mustNotArrive(t, a, b, "IPv6 from the link-local address", ethernetFrame(b.mac(), a.mac(), etherIPv6, udp6Packet(from, to, []byte(text))), text)
}
