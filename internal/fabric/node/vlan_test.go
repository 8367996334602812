package node

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const testVLAN = 120

// bridgeGuardOff makes the node take frames of all kinds from a trunk and from members, and send them to anybody.
const bridgeGuardOff = "nft flush chain bridge nm prerouting; nft flush chain bridge nm leaving; nft insert rule bridge nm leaving accept"

func needVLAN(t *testing.T) {
	t.Helper()
	needRoot(t)
	if err := CanTrunk(); errors.Is(err, ErrNoVLAN) {
		needs.Hardware(t, "%v (make test-network-guest has one)", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// newVLANLab has two nodes whose trunks are on one switch, two members of one network on a VLAN on each, and a stranger on the switch, on whom tests
// send what they like. The members with the numbers 4 and 14 should live on a third node, which is the stranger.
func newVLANLab(t *testing.T) underlayLab {
	t.Helper()
	needVLAN(t)
	lab := underlayLab{sw: newSpace(t)}
	lab.sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, lab.sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, vlanConfig(i))})
		n := testNetwork(3, 2+i, 12+i)
		n.Technology, n.VLAN = api.TechnologyVLAN, testVLAN
		n.Remotes = slices.Concat(behind(n, underlayAddress(1-i), 3-i, 13-i), behind(n, underlayAddress(2), 4, 14))
		lab.networks = append(lab.networks, n)
	}
	lab.stranger = newSpace(t)
	plugIn(t, lab.sw, lab.stranger, 2, underlayMTUInTests)
	for i, n := range lab.networks {
		apply(t, lab.nodes[i].fabric, n)
		for j := range n.Ports {
			lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, n, j))
		}
	}
	return lab
}

func vlanConfig(i int) Config {
	return Config{Config: plan.Config{Underlay: underlayAddress(i), Trunk: "under0"}}
}

// onVLAN puts a tag of IEEE 802.1Q into a frame.
func onVLAN(vid uint16, frame []byte) []byte {
	b := tagged(0x8100, frame)
	binary.BigEndian.PutUint16(b[14:], vid)
	return b
}

func TestANetworkOnAVLANSpansNodesAtTheTrunksMTU(t *testing.T) {
	lab := newVLANLab(t)
	a, b := lab.members[0], lab.members[2]
	mustReach(t, a.namespace, "a member on another node", b.address())
	mustReach(t, a.namespace, "a member on this node", lab.members[1].address())
	if got := mtuOf(t, a); got != underlayMTUInTests {
		t.Errorf("MTU of a member: got %d, want the trunk's %d", got, underlayMTUInTests)
	}
	text := token()
	big := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), append(make([]byte, underlayMTUInTests-28-len(text)), text...))
	mustArrive(t, a, b, "the biggest packet", ethernetFrame(b.mac(), a.mac(), etherIPv4, big), text)
	text = token()
	packet := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(netip.MustParseAddr("239.255.0.1"), 7400), []byte(text))
	mustArrive(t, a, b, "a multicast packet", ethernetFrame(net.HardwareAddr{0x01, 0x00, 0x5e, 0x7f, 0x00, 0x01}, a.mac(), etherIPv4, packet), text)
	if links := lab.nodes[0].run(t, "ip -o link show type vxlan"); links != "" {
		t.Errorf("a network on a VLAN has a tunnel: %s", links)
	}
	met, err := lab.nodes[0].fabric.Meet(t.Context(), 3, 1)
	if err != nil || len(met) != 0 {
		t.Errorf("a meeting over a VLAN: got %v, %v; want that nobody was probed", met, err)
	}
}

func TestAVLANCarriesItsMembersFramesOnly(t *testing.T) {
	lab := newVLANLab(t)
	a, n := lab.members[0], lab.networks[0]
	own := func(host int) (net.HardwareAddr, netip.Addr) {
		p := testPort(n, host)
		mac, err := net.ParseMAC(p.MAC)
		if err != nil {
			t.Fatal(err)
		}
		return mac, p.Address
	}
	mac, address := own(4)
	besideMAC, beside := own(14)
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
	ours := func(frame []byte) []byte { return onVLAN(testVLAN, frame) }
	for _, tt := range []struct {
		what  string
		frame func(text string) []byte
	}{
		{"a packet with the address of another member", func(text string) []byte { return ours(ip(mac, beside, text)) }},
		{"a packet with the MAC of another member", func(text string) []byte { return ours(ip(besideMAC, address, text)) }},
		{"a packet from a member of nobody", func(text string) []byte { return ours(ip(nobodyMAC, nobody, text)) }},
		{"a packet from a member of the receiver's node", func(text string) []byte { return ours(ip(lab.members[1].mac(), lab.members[1].port.Address, text)) }},
		{"a packet from the gateway", func(text string) []byte { return ours(ip(mac, n.Gateway, text)) }},
		{"ARP for the address of another member", func(text string) []byte { return ours(arp(mac, mac, beside, text)) }},
		{"ARP for an address with another MAC", func(text string) []byte { return ours(arp(mac, besideMAC, address, text)) }},
		{"ARP from another MAC", func(text string) []byte { return ours(arp(besideMAC, mac, address, text)) }},
		{"ARP for the gateway", func(text string) []byte { return ours(arp(mac, mac, n.Gateway, text)) }},
		{"an answer of a DHCP server", func(text string) []byte {
			return ours(ethernetFrame(a.mac(), mac, etherIPv4, packet(address, 67, text)))
		}},
		{"a frame with two tags", func(text string) []byte { return ours(onVLAN(7, ip(mac, address, text))) }},
		{"a frame with two tags of the VLAN", func(text string) []byte { return ours(ours(ip(mac, address, text))) }},
		{"a frame with a tag of a service inside", func(text string) []byte { return ours(tagged(0x88a8, ip(mac, address, text))) }},
		{"IPv6", func(text string) []byte { return ours(ethernetFrame(a.mac(), mac, etherIPv6, ipv6Packet(text))) }},
	} {
		lab.nodes[0].run(t, bridgeGuardOff)
		l := a.listen(t, memberLink)
		text := token()
		lab.stranger.send(t, "under0", tt.frame(text))
		if _, ok := l.until(text, markerTimeout); !ok {
			t.Errorf("%s does not arrive with the guard off, so the test shows nothing", tt.what)
		}
		apply(t, lab.nodes[0].fabric, n)
		mustNotComeByTrunk(t, lab, tt.what, tt.frame, func(text string) []byte { return ours(ip(mac, address, text)) })
	}
	for _, tt := range []struct {
		what string
		vid  uint16
	}{{"a frame with another tag", testVLAN + 1}, {"a frame with the tag of a priority alone", 0}} {
		mustNotComeByTrunk(t, lab, tt.what, func(text string) []byte { return onVLAN(tt.vid, ip(mac, address, text)) }, func(text string) []byte { return ours(ip(mac, address, text)) })
	}
	mustNotComeByTrunk(t, lab, "a frame without a tag", func(text string) []byte { return ip(mac, address, text) }, func(text string) []byte { return ours(ip(mac, address, text)) })
	if drifts, err := lab.nodes[0].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
}

// mustNotComeByTrunk sends forbidden frames from the stranger, and a permitted one behind them: when that arrives, the others would have arrived, too.
func mustNotComeByTrunk(t *testing.T, lab underlayLab, what string, forbidden, permitted func(text string) []byte) {
	t.Helper()
	text, end := token(), token()
	l := lab.members[0].listen(t, memberLink)
	lab.stranger.send(t, "under0", forbidden(text))
	lab.stranger.send(t, "under0", permitted(end))
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatalf("a permitted frame behind %s did not arrive", what)
	}
	if contains(frames, text) {
		t.Errorf("%s arrived, but must not", what)
	}
}

func TestMembersPutNothingButTheirOwnFramesOnATrunk(t *testing.T) {
	lab := newVLANLab(t)
	a, b := lab.members[0], lab.members[2]
	stray, err := net.ParseMAC(testPort(lab.networks[0], 99).MAC)
	if err != nil {
		t.Fatal(err)
	}
	plain := func(to net.HardwareAddr, text string) []byte {
		return ethernetFrame(to, a.mac(), etherIPv4, udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), []byte(text)))
	}
	for _, tt := range []struct {
		what  string
		frame func(text string) []byte
	}{
		{"a frame with a tag of another VLAN", func(text string) []byte { return onVLAN(7, plain(b.mac(), text)) }},
		{"a frame with a tag of its own VLAN", func(text string) []byte { return onVLAN(testVLAN, plain(b.mac(), text)) }},
		{"a frame with two tags", func(text string) []byte { return onVLAN(testVLAN, onVLAN(7, plain(b.mac(), text))) }},
		{"a frame with a tag of a service", func(text string) []byte { return tagged(0x88a8, plain(b.mac(), text)) }},
		{"a frame to nobody", func(text string) []byte { return plain(stray, text) }},
		{"ARP for the gateway", func(text string) []byte {
			return ethernetFrame(broadcast, a.mac(), etherARP, arpPacket(1, a.mac(), a.port.Address, make(net.HardwareAddr, 6), lab.networks[0].Gateway, text))
		}},
	} {
		send := func(guarded bool) bool {
			l := lab.sw.listen(t, "p0")
			text, end := token(), token()
			a.send(t, memberLink, tt.frame(text))
			a.send(t, memberLink, plain(b.mac(), end))
			frames, ok := l.until(end, markerTimeout)
			if !ok {
				t.Fatalf("guarded %t: a permitted frame behind %s is not on the trunk", guarded, tt.what)
			}
			return contains(frames, text)
		}
		lab.nodes[0].run(t, bridgeGuardOff)
		if !send(false) {
			t.Errorf("%s is not on the trunk with the guard off, so the test shows nothing", tt.what)
		}
		apply(t, lab.nodes[0].fabric, lab.networks[0])
		if send(true) {
			t.Errorf("%s is on the trunk, but must not be", tt.what)
		}
	}
}

func TestAVLANIsRepairedAndLeavesNothing(t *testing.T) {
	needVLAN(t)
	sw, space := newSpace(t), newSpace(t)
	space.run(t, "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	plugIn(t, sw, space, 0, underlayMTUInTests)
	f := newFabric(t, space, vlanConfig(0))
	apply(t, f)
	const snapshot = "ip -d -o link; ip -o address; bridge fdb; nft list ruleset; tc qdisc show" // all of /proc/sys would take minutes in a guest
	before := space.run(t, snapshot)
	n := testNetwork(3)
	n.Technology, n.VLAN = api.TechnologyVLAN, testVLAN
	n.Remotes = behind(n, underlayAddress(1), 3)
	apply(t, f, n)
	for _, meddle := range []string{
		"ip link delete nmvl3",
		"ip link delete nmvl3; ip link add link under0 name nmvl3 type vlan id 120", // as a process leaves it that dies there
		"ip link set nmvl3 nomaster",
		"ip link set nmvl3 down",
		"ip link set nmvl3 mtu 1400",
		"bridge link set dev nmvl3 mcast_router 1",
		"ip link delete nmvl3; ip link add link under0 name nmvl3 type vlan id 121",
		"ip link delete nmvl3; ip link add nmvl3 type bridge",
		"ip link add link under0 name nmvl9 type vlan id 121",
		"nft flush chain bridge nm trunk",
	} {
		space.run(t, meddle)
		if drifts, err := f.Audit(t.Context()); err != nil || len(drifts) == 0 {
			t.Errorf("%s: the audit found %v, %v", meddle, drifts, err)
		}
		apply(t, f, n)
		if drifts, err := f.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("%s: after the repair: %v, %v", meddle, drifts, err)
		}
	}
	apply(t, f)
	if after := space.run(t, snapshot); after != before {
		t.Errorf("something is left; before:\n%s\nafter:\n%s", before, after)
	}
	space.run(t, "ip link add link under0 name other type vlan id 120")
	if err := f.Apply(t.Context(), []fabric.Network{n}); err == nil || !strings.Contains(err.Error(), "another link has VLAN 120 of under0") {
		t.Errorf("a VLAN that another link has: got %v", err)
	}
	space.run(t, "ip link delete other; ip link set under0 down")
	if err := f.Apply(t.Context(), []fabric.Network{n}); err == nil || !strings.Contains(err.Error(), "trunk under0 is down") {
		t.Errorf("a trunk that is down: got %v", err)
	}
}

// TestAGatewayJoinsAVLANToANetworkOfTunnels has two nodes with a tunnel between them. The first joins a VLAN, on which the stranger is a machine.
func TestAGatewayJoinsAVLANToANetworkOfTunnels(t *testing.T) {
	needVLAN(t)
	lab := underlayLab{sw: newSpace(t)}
	lab.sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	var machine fabric.Port
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, lab.sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, vlanConfig(i))})
		n := testNetwork(3, 2+i)
		n.Technology, machine = api.TechnologyVXLAN, testPort(n, 9)
		n.Remotes = behind(n, underlayAddress(1-i), 3-i)
		if i == 0 {
			n.Side = fabric.VLANSide{VID: testVLAN, Machines: []fabric.VLANMember{{Address: machine.Address, MAC: machine.MAC}}}
		} else {
			n.Remotes = append(n.Remotes, behind(n, underlayAddress(0), 9)...)
		}
		lab.networks = append(lab.networks, n)
		apply(t, lab.nodes[i].fabric, n)
		lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, n, 0))
	}
	lab.stranger = newSpace(t)
	plugIn(t, lab.sw, lab.stranger, 2, underlayMTUInTests)
	lab.stranger.run(t, "ip link add link under0 name v120 address "+machine.MAC+" mtu 8950 type vlan id 120; ip link set v120 up; ip address add "+machine.Address.String()+"/20 dev v120")
	for i, m := range lab.members {
		mustReach(t, lab.stranger, "a member, from a machine on the VLAN", m.address())
		mustReach(t, m.namespace, "a machine on the VLAN", machine.Address.String())
		mustReach(t, m.namespace, "another member", lab.members[1-i].address())
	}
	lab.stranger.run(t, "ip address add 10.64.48.10/20 dev v120; ip address delete "+machine.Address.String()+"/20 dev v120; ip address add 10.64.48.77/20 dev v120")
	mustNotReach(t, lab.stranger, "a member, from an address that is not registered", lab.members[0].address())
	lab.stranger.run(t, "ip address flush dev v120; ip address add "+machine.Address.String()+"/20 dev v120")
	mustReach(t, lab.stranger, "a member, from the registered address again", lab.members[1].address())
	closed := lab.networks[0]
	closed.Side = fabric.VLANSide{}
	apply(t, lab.nodes[0].fabric, closed)
	mustNotReach(t, lab.stranger, "a member, once the gateway is gone", lab.members[0].address())
	if drifts, err := lab.nodes[0].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
}
