package node

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// guardOff makes the node take frames of all kinds out of tunnels, from anybody, and send them to anybody.
const guardOff = "nft flush chain inet nm input; nft flush chain bridge nm prerouting; nft flush chain bridge nm leaving; nft insert rule bridge nm leaving accept"

// newPinsLab is newUnderlayLab with one more node, the stranger of newUnderlayLab, as a peer, on which tests send what they like. On each node are
// two members.
func newPinsLab(t *testing.T, egress, bridged bool) underlayLab {
	t.Helper()
	lab := newUnderlayLab(t, egress)
	lab.members = nil
	for i := range lab.nodes {
		if bridged {
			lab.nodes[i].fabric = newFabric(t, lab.nodes[i].namespace, Config{NoShortcuts: true, Config: plan.Config{Underlay: underlayAddress(i)}})
		}
		n := &lab.networks[i]
		n.Ports = []fabric.Port{testPort(*n, 2+i), testPort(*n, 12+i)}
		n.Remotes = slices.Concat(behind(*n, underlayAddress(1-i), 3-i, 13-i), behind(*n, underlayAddress(2), 4, 14))
		apply(t, lab.nodes[i].fabric, *n)
		for j := range n.Ports {
			lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, *n, j))
		}
	}
	return lab
}

// inject sends a frame into the tunnel of the first node.
func (n namespace) inject(t *testing.T, frame []byte) {
	t.Helper()
	n.injectInto(t, 3, frame)
}

// injectInto sends a frame into the tunnel of a network on the first node.
func (n namespace) injectInto(t *testing.T, vni uint32, frame []byte) {
	t.Helper()
	header := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, vni<<8) // RFC 7348, section 5: the flag I, and the identifier
	if err := n.Do(func() error {
		conn, err := net.Dial("udp4", netip.AddrPortFrom(underlayAddress(0), vxlanPort).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(append(header, frame...))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// withAndWithoutShortcuts runs a test on both ways, and under either set of rules.
func withAndWithoutShortcuts(t *testing.T, test func(t *testing.T, lab underlayLab)) {
	t.Helper()
	t.Run("by shortcuts", func(t *testing.T) { test(t, newPinsLab(t, false, false)) })
	t.Run("by bridges, with egress", func(t *testing.T) { test(t, newPinsLab(t, true, true)) })
}

func TestAPeerCannotSendUnderAnotherIdentity(t *testing.T) {
	withAndWithoutShortcuts(t, testAPeerCannotSend)
}

func testAPeerCannotSend(t *testing.T, lab underlayLab) {
	a, b := lab.members[0], lab.members[2]
	n := lab.networks[0]
	own := func(host int) (net.HardwareAddr, netip.Addr) {
		p := testPort(n, host)
		mac, err := net.ParseMAC(p.MAC)
		if err != nil {
			t.Fatal(err)
		}
		return mac, p.Address
	}
	mac, address := own(3)
	besideMAC, beside := own(13)
	awayMAC, away := own(4)
	nobodyMAC, nobody := own(99)
	packet := func(from netip.Addr, port uint16, text string) []byte {
		return udpPacket(netip.AddrPortFrom(from, port), netip.AddrPortFrom(a.port.Address, 9), []byte(text))
	}
	ip := func(mac net.HardwareAddr, from netip.Addr, text string) []byte {
		return ethernetFrame(a.mac(), mac, etherIPv4, packet(from, 9, text))
	}
	arp := func(mac, sender net.HardwareAddr, from netip.Addr, text string) []byte {
		return ethernetFrame(a.mac(), mac, etherARP, arpPacket(2, sender, from, a.mac(), a.port.Address, text))
	}
	odd := arp(mac, mac, address, "")
	odd[18], odd[19] = 4, 6 // as if the MAC had 4 bytes
	for _, tt := range []struct {
		what  string
		frame func(text string) []byte
	}{
		{"a packet from an address of a member behind another peer", func(text string) []byte { return ip(mac, away, text) }},
		{"a packet from the MAC of a member behind another peer", func(text string) []byte { return ip(awayMAC, address, text) }},
		{"a packet from a member behind another peer", func(text string) []byte { return ip(awayMAC, away, text) }},
		{"a packet from the address of another member behind the peer", func(text string) []byte { return ip(mac, beside, text) }},
		{"a packet from the MAC of another member behind the peer", func(text string) []byte { return ip(besideMAC, address, text) }},
		{"a packet from a member of nobody", func(text string) []byte { return ip(nobodyMAC, nobody, text) }},
		{"a packet from an address of the receiver's node", func(text string) []byte { return ip(lab.members[1].mac(), lab.members[1].port.Address, text) }},
		{"a packet from the gateway", func(text string) []byte { return ip(mac, n.Gateway, text) }},
		{"ARP for an address of a member behind another peer", func(text string) []byte { return arp(mac, mac, away, text) }},
		{"ARP for an address with another MAC", func(text string) []byte { return arp(mac, awayMAC, address, text) }},
		{"ARP from another MAC", func(text string) []byte { return arp(awayMAC, mac, address, text) }},
		{"ARP for the gateway", func(text string) []byte { return arp(mac, mac, n.Gateway, text) }},
		{"ARP with other lengths", func(text string) []byte { return append(slices.Clone(odd), text...) }},
		{"an answer of a DHCP server", func(text string) []byte { return ethernetFrame(a.mac(), mac, etherIPv4, packet(address, 67, text)) }},
		{"a frame with a VLAN tag", func(text string) []byte { return tagged(0x8100, ip(mac, address, text)) }},
		{"a frame with a tag of a service", func(text string) []byte { return tagged(0x88a8, ip(mac, address, text)) }},
		{"IPv6", func(text string) []byte { return ethernetFrame(a.mac(), mac, etherIPv6, ipv6Packet(text)) }},
	} {
		lab.nodes[0].run(t, guardOff)
		l := a.listen(t, memberLink)
		text := token()
		lab.nodes[1].inject(t, tt.frame(text))
		if _, ok := l.until(text, markerTimeout); !ok {
			t.Errorf("%s does not arrive with the guard off, so the test shows nothing", tt.what)
		}
		apply(t, lab.nodes[0].fabric, n)
		for range 2 { // the way of the second may be another
			lab.nodes[1].inject(t, tt.frame(text))
		}
		l = a.listen(t, memberLink)
		lab.nodes[1].inject(t, tt.frame(text))
		permitted, end := b.marker(a)
		b.send(t, memberLink, permitted)
		frames, ok := l.until(end, markerTimeout)
		if !ok {
			t.Fatalf("a permitted frame behind %s did not arrive", tt.what)
		}
		if contains(frames, text) {
			t.Errorf("%s arrived, but must not", tt.what)
		}
	}
	if drifts, err := lab.nodes[0].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
}

// ipv6Packet is an IPv6 packet (RFC 8200) between link-local addresses, with no header behind the first.
func ipv6Packet(text string) []byte {
	const noNext = 59
	b := []byte{0x60, 0, 0, 0, 0, byte(len(text)), noNext, 64}
	for last := range 2 {
		address := netip.MustParseAddr("fe80::1").As16()
		address[15] += byte(last)
		b = append(b, address[:]...)
	}
	return append(b, text...)
}

// TestFramesOutOfATunnelPassAsTheirMembersLive compares what arrives of frames drawn at random with a model: the pins by peer, in words.
func TestFramesOutOfATunnelPassAsTheirMembersLive(t *testing.T) {
	for _, bridged := range []bool{false, true} {
		lab := newPinsLab(t, false, bridged)
		a, n := lab.members[0], lab.networks[0]
		random := rand.New(rand.NewPCG(1, uint64(len(n.Remotes))))
		peers := map[int]namespace{1: lab.nodes[1].namespace, 2: lab.stranger}
		var identities []fabric.Port
		for _, host := range []int{2, 3, 13, 4, 14, 99} {
			identities = append(identities, testPort(n, host))
		}
		drawn := func() (net.HardwareAddr, netip.Addr) {
			p := identities[random.IntN(len(identities))]
			mac, err := net.ParseMAC(p.MAC)
			if err != nil {
				t.Fatal(err)
			}
			return mac, p.Address
		}
		lives := func(peer int, mac net.HardwareAddr, address netip.Addr) bool {
			return slices.Contains(n.Remotes, fabric.Remote{Peer: underlayAddress(peer), Address: address, MAC: mac.String()})
		}
		l := a.listen(t, memberLink)
		want, passing := map[string]bool{}, 0
		for range 600 {
			mac, address := drawn()
			if random.IntN(2) == 0 { // or hardly any would pass
				mac, _ = drawn()
			}
			text, peer := token(), 1+random.IntN(2)
			sender := mac
			frame := ethernetFrame(a.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(address, 9), netip.AddrPortFrom(a.port.Address, 9), []byte(text)))
			if random.IntN(2) == 0 {
				if random.IntN(2) == 0 {
					sender, _ = drawn()
				}
				frame = ethernetFrame(a.mac(), mac, etherARP, arpPacket(2, sender, address, a.mac(), a.port.Address, text))
			}
			want[text] = lives(peer, mac, address) && lives(peer, sender, address)
			if want[text] {
				passing++
			}
			peers[peer].inject(t, frame)
		}
		if passing < 20 {
			t.Fatalf("only %d of the frames drawn may pass", passing)
		}
		var got [][]byte
		for peer, host := range map[int]int{1: 3, 2: 4} {
			mac, err := net.ParseMAC(testPort(n, host).MAC)
			if err != nil {
				t.Fatal(err)
			}
			end := token()
			from := netip.AddrPortFrom(testPort(n, host).Address, 9)
			peers[peer].inject(t, ethernetFrame(a.mac(), mac, etherIPv4, udpPacket(from, netip.AddrPortFrom(a.port.Address, 9), []byte(end))))
			frames, ok := l.until(end, markerTimeout)
			if !ok && !contains(got, end) {
				t.Fatalf("the last frame of peer %d did not arrive", peer)
			}
			got = append(got, frames...)
		}
		for text, arrives := range want {
			if contains(got, text) != arrives {
				t.Errorf("bridged %t: frame %s arrived: %t, want %t", bridged, text, !arrives, arrives)
			}
		}
	}
}

func TestALostMemberIsNeitherHeardNorReachedThoughItsNodeStaysAPeer(t *testing.T) {
	withAndWithoutShortcuts(t, testALostMember)
}

func testALostMember(t *testing.T, lab underlayLab) {
	a, besideA, lost, stays := lab.members[0], lab.members[1], lab.members[2], lab.members[3]
	exchange := func(one, other member) {
		t.Helper()
		for range 2 { // the way of the second may be another
			for _, way := range [][2]member{{one, other}, {other, one}} {
				frame, text := way[0].marker(way[1])
				mustArrive(t, way[0], way[1], "a frame between members of two nodes", frame, text)
			}
		}
	}
	exchange(a, lost)
	exchange(a, stays)
	n := lab.networks[0]
	n.Remotes = slices.DeleteFunc(slices.Clone(n.Remotes), func(r fabric.Remote) bool { return r.Address == lost.port.Address })
	apply(t, lab.nodes[0].fabric, n) // and the lost member's node knows nothing of it
	if drifts, err := lab.nodes[0].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
	for _, way := range []struct {
		what           string
		from, to, last member
	}{
		{"to a lost member", a, lost, stays}, {"from a lost member", lost, a, besideA},
	} {
		heard := way.to.listen(t, memberLink)
		texts := []string{}
		for range 3 {
			frame, text := way.from.marker(way.to)
			way.from.send(t, memberLink, frame)
			texts = append(texts, text)
		}
		// Behind it on the way between the nodes come frames between members that stay, then one from next door.
		exchange(a, stays)
		frame, end := way.last.marker(way.to)
		way.last.send(t, memberLink, frame)
		frames, ok := heard.until(end, markerTimeout)
		if !ok {
			t.Fatal("a frame of the member next door did not arrive")
		}
		for _, text := range texts {
			if contains(frames, text) {
				t.Errorf("a frame %s arrived", way.what)
			}
		}
	}
	lab.nodes[0].run(t, guardOff)
	for _, way := range [][2]member{{a, lost}, {lost, a}} {
		frame, text := way[0].marker(way[1])
		mustArrive(t, way[0], way[1], "a frame to or from a lost member, with the guard off,", frame, text)
	}
	apply(t, lab.nodes[0].fabric, lab.networks[0])
	exchange(a, lost)
}

func TestAMemberThatIsHeardWhileItIsCutOffIsForgotten(t *testing.T) {
	lab := newUnderlayLab(t, false)
	f, n := lab.nodes[0].fabric, lab.networks[0]
	lost := n.Remotes[0]
	n.Remotes = behind(n, lost.Peer, 13)
	_, ops, err := f.plan(t.Context(), wanted{networks: []fabric.Network{n}})
	if err != nil {
		t.Fatal(err)
	}
	lab.nodes[0].run(t, "bridge fdb replace "+lost.MAC+" dev nmvx3 dst "+lost.Peer.String()+" self dynamic")
	ops = slices.DeleteFunc(ops, func(op plan.Operation) bool { _, forget := op.(plan.ForgetMember); return forget }) // as if it was heard later
	_, rest, err := f.carryOut(t.Context(), wanted{networks: []fabric.Network{n}}, ops)
	if err != nil || !heard(rest) {
		t.Fatalf("got %v, %v; want that the member alone is to be forgotten", rest, err)
	}
	if _, rest, err = f.carryOut(t.Context(), wanted{networks: []fabric.Network{n}}, rest); err != nil || len(rest) > 0 {
		t.Errorf("got %v, %v; want nothing left to do", rest, err)
	}
}
