package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// routedLab is two nodes, and a stranger as a third. Networks 1 and 2 are routed, 4 is not, all of one project. Network 3 is a routed one of another
// project. Network 2 is on the second node alone; on all others, each node has a member.
type routedLab struct {
	nodes    []node
	stranger namespace
	networks [][]fabric.Network // by node
	members  map[string]member  // by network and node, such as "1 on 0"
}

func newRoutedLab(t *testing.T, change func(*fabric.Network)) routedLab {
	t.Helper()
	needRoot(t)
	sw := newSpace(t)
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	lab := routedLab{members: map[string]member{}, networks: make([][]fabric.Network, 2)}
	for i := range 2 {
		space := newSpace(t)
		plugIn(t, sw, space, i, underlayMTUInTests)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(i)}})})
	}
	lab.stranger = newSpace(t)
	plugIn(t, sw, lab.stranger, 2, underlayMTUInTests)
	for i := range lab.nodes {
		for index := 1; index <= 4; index++ {
			n := testNetwork(index)
			n.Project, n.Routed, n.Pool = "lab", index != 4, netip.MustParsePrefix("10.64.0.0/10")
			if index == 3 {
				n.Project = "class"
			}
			if index != 2 || i == 1 {
				n.Ports = []fabric.Port{testPort(n, 2+i)}
			}
			if index != 2 || i == 0 {
				n.Remotes = behind(n, underlayAddress(1-i), 3-i)
			}
			n.Remotes = append(n.Remotes, behind(n, underlayAddress(2), 9)...)
			if change != nil {
				change(&n)
			}
			lab.networks[i] = append(lab.networks[i], n)
		}
		apply(t, lab.nodes[i].fabric, lab.networks[i]...)
		for _, n := range lab.networks[i] {
			for j := range n.Ports {
				lab.members[fmt.Sprintf("%d on %d", n.Index, i)] = attach(t, lab.nodes[i].fabric, n, j)
			}
		}
	}
	return lab
}

func (l routedLab) mustBeAsWanted(t *testing.T) {
	t.Helper()
	for i := range l.nodes {
		if drifts, err := l.nodes[i].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("audit of node %d: %v, %v", i, drifts, err)
		}
	}
}

func TestRoutedNetworksOfAProjectReachEachOtherOnEveryNode(t *testing.T) {
	for _, egress := range []bool{false, true} {
		t.Run(fmt.Sprintf("egress %t", egress), func(t *testing.T) {
			lab := newRoutedLab(t, func(n *fabric.Network) { n.Egress = egress && n.Index == 1 })
			a, b, beside := lab.members["1 on 0"], lab.members["2 on 1"], lab.members["1 on 1"]
			for _, way := range [][2]member{{a, b}, {b, a}, {beside, b}, {b, beside}} {
				mustReach(t, way[0].namespace, "a member on another routed network", way[1].address())
				if t.Failed() {
					return
				}
				stream(t, way[0], way[1], bytes.Repeat([]byte("nearmetal "), 1<<17))
			}
			if got := a.run(t, "ip -o route get "+b.address()); !strings.Contains(got, "via 10.64.16.1 ") {
				t.Errorf("the member's route is %q", got)
			}
			// The node's stack has no business with other pairs.
			for _, other := range []string{"3 on 0", "3 on 1", "4 on 0", "4 on 1"} {
				mustNotReach(t, a.namespace, "a member of network "+other, lab.members[other].address())
				mustNotReach(t, lab.members[other].namespace, "from network "+other+", a member", a.address())
			}
			lab.members["4 on 1"].run(t, "ip route add 10.64.0.0/10 via 10.64.64.1 dev eth0")
			mustNotReach(t, lab.members["4 on 1"].namespace, "by force, from a network that is not routed, a member", b.address())
			lab.mustBeAsWanted(t)
			if heard := lab.nodes[0].run(t, "cat /proc/net/nf_conntrack 2>/dev/null || true"); strings.Contains(heard, b.address()) {
				t.Errorf("connections between members are tracked:\n%s", heard)
			}
		})
	}
}

func TestARoutedPacketIsOneHopOlderAndAsLargeAsAnyOther(t *testing.T) {
	lab := newRoutedLab(t, nil)
	a, b := lab.members["1 on 0"], lab.members["2 on 1"]
	gateway, err := net.ParseMAC(plan.GatewayMAC(1))
	if err != nil {
		t.Fatal(err)
	}
	text := token()
	size := mtuOf(t, a) - 28 // headers of IPv4 and UDP
	packet := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), append(make([]byte, size-len(text)), text...))
	packet[6] = 0x40 // "don't fragment"
	packet[10], packet[11] = 0, 0
	sum := checksum(packet[:20])
	packet[10], packet[11] = byte(sum>>8), byte(sum)
	l := b.listen(t, memberLink)
	a.send(t, memberLink, ethernetFrame(gateway, a.mac(), etherIPv4, packet))
	frames, ok := l.until(text, markerTimeout)
	if !ok {
		t.Fatal("the largest packet that must not be fragmented does not arrive")
	}
	i := slices.IndexFunc(frames, func(f []byte) bool { return bytes.Contains(f, []byte(text)) })
	if got, want := net.HardwareAddr(frames[i][6:12]).String(), fabric.RouterMAC(underlayAddress(0)); got != want {
		t.Errorf("it comes from %s, want %s", got, want)
	}
	if ttl := frames[i][14+8]; ttl != 63 {
		t.Errorf("its time to live is %d, want 63", ttl)
	}
}

func TestAPacketToNobodyOnARoutedNetworkIsRefusedAtOnce(t *testing.T) {
	lab := newRoutedLab(t, nil)
	a := lab.members["1 on 0"]
	nobody := testPort(lab.networks[0][1], 77).Address
	err := a.Do(func() error {
		conn, err := net.DialTimeout("tcp4", netip.AddrPortFrom(nobody, 9).String(), markerTimeout)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	if !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("got %v, want that the host is unreachable", err)
	}
	if asked := lab.nodes[0].run(t, "ip neigh show dev nmbr2 nud incomplete nud failed nud probe"); asked != "" {
		t.Errorf("the node asks for a member that is not there:\n%s", asked)
	}
}

func TestAFrameThatAPeerRoutedIsPinnedToTheMembersBehindIt(t *testing.T) {
	lab := newRoutedLab(t, nil)
	a, apart, b := lab.members["1 on 0"], lab.members["4 on 0"], lab.members["2 on 1"]
	router := func(i int) net.HardwareAddr {
		mac, err := net.ParseMAC(fabric.RouterMAC(underlayAddress(i)))
		if err != nil {
			t.Fatal(err)
		}
		return mac
	}
	packet := func(to member, mac net.HardwareAddr, from netip.Addr, text string) []byte {
		return ethernetFrame(to.mac(), mac, etherIPv4, udpPacket(netip.AddrPortFrom(from, 9), netip.AddrPortFrom(to.port.Address, 9), []byte(text)))
	}
	away := testPort(lab.networks[0][1], 9).Address // behind the stranger
	foreign := lab.members["3 on 1"].port.Address
	peer := lab.nodes[1].namespace
	for _, tt := range []struct {
		what  string
		from  namespace
		to    member
		vni   uint32
		frame func(text string) []byte
	}{
		{"a packet from a member behind another peer", peer, a, 1, func(text string) []byte { return packet(a, router(1), away, text) }},
		{"a packet of a member from another peer", lab.stranger, a, 1, func(text string) []byte { return packet(a, router(2), b.port.Address, text) }},
		{"a packet under the router's address of another node", peer, a, 1, func(text string) []byte { return packet(a, router(2), b.port.Address, text) }},
		{"a packet under a member's MAC", peer, a, 1, func(text string) []byte { return packet(a, b.mac(), b.port.Address, text) }},
		{"a packet of a member of this network", peer, a, 1, func(text string) []byte { return packet(a, router(1), lab.members["1 on 1"].port.Address, text) }},
		{"a packet of a routed network of another project", peer, a, 1, func(text string) []byte { return packet(a, router(1), foreign, text) }},
		{"a packet from a member of nobody", peer, a, 1, func(text string) []byte { return packet(a, router(1), testPort(lab.networks[0][1], 99).Address, text) }},
		{"a packet into a network that is not routed", peer, apart, 4, func(text string) []byte { return packet(apart, router(1), b.port.Address, text) }},
		{"ARP of a router", peer, a, 1, func(text string) []byte {
			return ethernetFrame(a.mac(), router(1), etherARP, arpPacket(2, router(1), b.port.Address, a.mac(), a.port.Address, text))
		}},
	} {
		lab.nodes[0].run(t, guardOff)
		l := tt.to.listen(t, memberLink)
		text := token()
		tt.from.injectInto(t, tt.vni, tt.frame(text))
		if _, ok := l.until(text, markerTimeout); !ok {
			t.Errorf("%s does not arrive with the guard off, so the test shows nothing", tt.what)
		}
		apply(t, lab.nodes[0].fabric, lab.networks[0]...)
		l = tt.to.listen(t, memberLink)
		tt.from.injectInto(t, tt.vni, tt.frame(text))
		end := token()
		permitted := packet(a, router(1), b.port.Address, end)
		if tt.vni == 4 {
			other := lab.members["4 on 1"]
			permitted = packet(apart, other.mac(), other.port.Address, end)
		}
		// From the same place as the forbidden frame, as far as one may come from there.
		from, source := peer, permitted
		if tt.from.Path() == lab.stranger.Path() {
			from, source = lab.stranger, packet(a, router(2), away, end)
		}
		from.injectInto(t, tt.vni, source)
		frames, ok := l.until(end, markerTimeout)
		if !ok {
			t.Fatalf("a permitted frame behind %s did not arrive", tt.what)
		}
		if contains(frames, text) {
			t.Errorf("%s arrived, but must not", tt.what)
		}
	}
	mustReach(t, a.namespace, "a member on another routed network", b.address())
	lab.mustBeAsWanted(t)
}

func TestWhatSomebodyChangedOfRoutesIsFoundAndRepaired(t *testing.T) {
	lab := newRoutedLab(t, nil)
	a, b := lab.members["1 on 0"], lab.members["2 on 1"]
	f, mac := lab.nodes[0].fabric, lab.networks[0][1].Remotes[0].MAC
	for what, script := range map[string]string{
		"a neighbour is gone":                                "ip neigh delete " + b.address() + " dev nmbr2",
		"a neighbour has another MAC":                        "ip neigh replace " + b.address() + " lladdr 02:00:00:00:00:99 dev nmbr2 nud permanent",
		"a neighbour is nobody":                              "ip neigh replace 10.64.32.200 lladdr 02:00:00:00:00:99 dev nmbr2 nud permanent",
		"a member is placed in one table only":               "bridge fdb delete " + mac + " dev nmvx2 master",
		"a member is placed nowhere":                         "bridge fdb delete " + mac + " dev nmvx2 master; bridge fdb delete " + mac + " dev nmvx2 self",
		"a member is placed behind another":                  "bridge fdb replace " + mac + " dev nmvx2 dst 198.18.0.3 self permanent",
		"a bridge does not forward":                          "echo 0 > /proc/sys/net/ipv4/conf/nmbr1/forwarding",
		"a bridge has another address":                       "ip link set nmbr2 address 02:00:00:00:00:98",
		"a bridge with known neighbours has another address": "ip link set nmbr2 address 02:00:00:00:00:98; ip neigh replace " + b.address() + " lladdr " + mac + " dev nmbr2 nud permanent",
		"the map of routers is empty":                        "nft flush map bridge nm routers",
		"the set of routed networks is empty":                "nft flush set inet nm routes",
		"the pins of routed frames are missing":              "nft flush set inet nm routed",
	} {
		lab.nodes[0].run(t, script)
		if drifts, err := f.Audit(context.Background()); err != nil || len(drifts) == 0 {
			t.Errorf("%s: the audit finds %v, %v", what, drifts, err)
		}
		apply(t, f, lab.networks[0]...)
		mustReach(t, a.namespace, "when repaired after "+what+", a member", b.address())
		lab.mustBeAsWanted(t)
	}
}

func TestAMemberThatLeftIsRoutedToNoMore(t *testing.T) {
	lab := newRoutedLab(t, nil)
	a, b := lab.members["1 on 0"], lab.members["2 on 1"]
	mustReach(t, a.namespace, "a member on another routed network", b.address())
	without := slices.Clone(lab.networks[0])
	without[1].Remotes = slices.Clone(without[1].Remotes[1:])
	apply(t, lab.nodes[0].fabric, without...) // and its node knows nothing of it
	mustNotReach(t, a.namespace, "a lost member", b.address())
	mustNotReach(t, b.namespace, "from a lost member, a member", a.address())
	if left := lab.nodes[0].run(t, "ip neigh show dev nmbr2; bridge fdb show dev nmvx2"); strings.Contains(left, lab.networks[0][1].Remotes[0].MAC) {
		t.Errorf("the node still knows it:\n%s", left)
	}
	lab.nodes[0].run(t, guardOff)
	for range 2 {
		apply(t, lab.nodes[0].fabric, lab.networks[0]...)
	}
	mustReach(t, a.namespace, "the member that is back", b.address())
}
