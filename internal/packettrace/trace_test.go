package packettrace

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

var (
	peerOne, peerTwo = netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2")
	ssh              = Packet{securitygroup.TCP, 22}
	ping             = Packet{securitygroup.ICMP, 8}
)

// pair is a network with one member on each of two nodes. The rules are those of the groups "web" on the first and "ops" on the second.
func pair(t *testing.T, web, ops []string) (one, two End) {
	t.Helper()
	n := fabric.Network{Network: api.Network{Index: 7, Prefix: netip.MustParsePrefix("10.64.128.0/24"), Gateway: netip.MustParseAddr("10.64.128.1")}}
	port := func(id, address, mac string) fabric.Port {
		return fabric.Port{ID: id, Address: netip.MustParseAddr(address), MAC: mac}
	}
	one = End{Member: "one-0", Port: port("a", "10.64.128.2", "02:6E:00:01:00:02"), Node: "n1", Underlay: peerOne, Network: n}
	two = End{Member: "two-0", Port: port("b", "10.64.128.3", "02:6e:00:01:00:03"), Node: "n2", Underlay: peerTwo, Network: n}
	var groups []fabric.Group
	for _, g := range []struct {
		id    string
		end   End
		rules []string
	}{{"web", one, web}, {"ops", two, ops}} {
		if g.rules == nil {
			continue
		}
		group := fabric.Group{ID: g.id, Members: []netip.Addr{g.end.Port.Address}, Ports: []string{g.end.Port.ID}}
		for _, text := range g.rules {
			r, err := securitygroup.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			group.Rules = append(group.Rules, r)
		}
		groups = append(groups, group)
	}
	remote := func(e End) []fabric.Remote {
		return []fabric.Remote{{Peer: e.Underlay, Address: e.Port.Address, MAC: e.Port.MAC}}
	}
	one.Network.Ports, one.Network.Remotes, one.Network.Groups = []fabric.Port{one.Port}, remote(two), groups
	two.Network.Ports, two.Network.Remotes, two.Network.Groups = []fabric.Port{two.Port}, remote(one), groups
	return one, two
}

func places(hops []Hop) string {
	var all []string
	for _, h := range hops {
		all = append(all, h.Node+" "+string(h.Place))
	}
	return strings.Join(all, ", ")
}

func TestAPacketToAnotherNodePassesAllPlaces(t *testing.T) {
	one, two := pair(t, nil, nil)
	path := Follow(one, two, ssh)
	const there = "n1 sender's port, n1 pins, n1 security groups (out), n1 bridge, n1 tunnel, n2 pins of the tunnel, n2 security groups (in), n2 receiver's port"
	const back = "n2 sender's port, n2 pins, n2 security groups (out), n2 bridge, n2 tunnel, n1 pins of the tunnel, n1 security groups (in), n1 receiver's port"
	if got := places(path.Request); got != there || !Passes(path.Request) {
		t.Errorf("request: got %s\nwant %s", got, there)
	}
	if got := places(path.Reply); got != back || !Passes(path.Reply) {
		t.Errorf("reply: got %s\nwant %s", got, back)
	}
}

func TestAPacketOnAVLANGoesByTrunks(t *testing.T) {
	one, two := pair(t, nil, nil)
	for _, e := range []*End{&one, &two} {
		e.Network.Technology, e.Network.VLAN = api.TechnologyVLAN, 120
	}
	path := Follow(one, two, ssh)
	if got := path.Request[4]; got.Detail != "VLAN 120, by the trunks of n1 and n2" || !Passes(path.Request) {
		t.Errorf("got %+v", got)
	}
}

func TestAPacketOnOneNodePassesNoTunnel(t *testing.T) {
	one, two := pair(t, nil, nil)
	one.Network.Ports, two.Node, two.Underlay = append(one.Network.Ports, two.Port), "n1", peerOne
	two.Network = one.Network
	const want = "n1 sender's port, n1 pins, n1 security groups (out), n1 bridge, n1 security groups (in), n1 receiver's port"
	if path := Follow(one, two, ssh); places(path.Request) != want || !Passes(path.Request) || !Passes(path.Reply) {
		t.Errorf("got %s\nwant %s", places(path.Request), want)
	}
}

func TestAStoppedPacketEndsAtTheHopThatNamesTheReason(t *testing.T) {
	for name, tt := range map[string]struct {
		web, ops []string
		change   func(one, two *End)
		packet   Packet
		where    Place
		want     string
	}{
		"no rule of the receiver allows the packet": {
			ops: []string{"in icmp 8 from 0.0.0.0/0", "in tcp 22 from group ops"}, packet: ssh, where: GroupsIn,
			want: "stopped at the port of two-0: no rule of its security groups (ops) allows tcp 22 from 10.64.128.2; rules: in icmp 8 from 0.0.0.0/0; in tcp 22 from group ops",
		},
		"the receiver's group has no rules": {ops: []string{}, packet: ping, where: GroupsIn, want: "allows icmp 8 from 10.64.128.2; rules: there are none for this direction"},
		"no rule of the sender allows the packet": {
			web: []string{"out tcp 443 to 10.64.128.0/24"}, packet: ssh, where: GroupsOut,
			want: "stopped at the port of one-0: no rule of its security groups (web) allows tcp 22 to 10.64.128.3; rules: out tcp 443 to 10.64.128.0/24",
		},
		"the sender's node does not know the receiver": {
			change: func(one, _ *End) { one.Network.Remotes = nil }, packet: ssh, where: Bridge, want: "two-0 is neither on this node",
		},
		"the receiver is behind another peer": {
			change: func(one, _ *End) { one.Network.Remotes[0].Peer = netip.MustParseAddr("198.18.0.9") }, packet: ssh, where: Tunnel,
			want: "n2 (198.18.0.2) is not a peer of this node; its peers: [198.18.0.9]",
		},
		"the receiver's node pins the sender's address to another MAC address": {
			change: func(_, two *End) { two.Network.Remotes[0].MAC = "02:6e:00:01:00:99" }, packet: ssh, where: TunnelPins,
			want: "this node does not know one-0 behind n1: source 10.64.128.2 and 02:6e:00:01:00:02 from 198.18.0.1",
		},
		"the sender's node is not to have the port": {
			change: func(one, _ *End) { one.Network.Ports = nil }, packet: ssh, where: SenderPort, want: "node n1 is not to have the port of one-0 now",
		},
		"the receiver's node is not to have the port": {
			change: func(_, two *End) { two.Network.Ports = nil }, packet: ssh, where: ReceiverPort, want: "node n2 is not to have the port of two-0 now",
		},
		"the sender's port is pinned to another address": {
			change: func(one, _ *End) { one.Network.Ports[0].Address = netip.MustParseAddr("10.64.128.9") }, packet: ssh, where: SenderPort,
			want: "node n1 pins the port of one-0 to 10.64.128.9",
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := pair(t, tt.web, tt.ops)
			if tt.change != nil {
				tt.change(&one, &two)
			}
			path := Follow(one, two, tt.packet)
			last := path.Request[len(path.Request)-1]
			if last.Passes || last.Place != tt.where || !strings.Contains(last.Detail, tt.want) || path.Reply != nil {
				t.Errorf("got %+v, reply %v; want the packet stopped at %q with %q", last, path.Reply, tt.where, tt.want)
			}
		})
	}
}

func TestThePassingRuleIsNamed(t *testing.T) {
	one, two := pair(t, []string{"out tcp to group ops"}, []string{"in tcp 20-30 from group web", "out udp 53 to 10.0.0.0/8"})
	path := Follow(one, two, ssh)
	details := func(hops []Hop) (all string) {
		for _, h := range hops {
			all += string(h.Place) + ": " + h.Detail + "\n"
		}
		return all
	}
	for _, want := range []string{`security groups (out): rule "out tcp to group ops" of web`, `security groups (in): rule "in tcp 20-30 from group web" of ops`} {
		if !strings.Contains(details(path.Request), want) {
			t.Errorf("want %s in\n%s", want, details(path.Request))
		}
	}
	for _, want := range []string{`security groups (out): answer by rule "in tcp 20-30 from group web" of ops`, "security groups (in): answer to what one-0 sent"} {
		if !strings.Contains(details(path.Reply), want) {
			t.Errorf("want %s in\n%s", want, details(path.Reply))
		}
	}
}

func TestAMessageWithoutAnAnswerHasNoReply(t *testing.T) {
	one, two := pair(t, nil, nil)
	if path := Follow(one, two, Packet{securitygroup.ICMP, 13}); !Passes(path.Request) || path.Reply != nil {
		t.Errorf("got %+v", path)
	}
}

func TestAPacketToNoPortEndsWhereTheNodeTakesOrDropsIt(t *testing.T) {
	for _, tt := range []struct {
		to     string
		packet Packet
		egress bool
		rules  []string
		passes bool
		want   string
	}{
		{"10.64.128.77", ssh, false, nil, false, "no port of the network has 10.64.128.77"},
		{"10.64.128.1", ssh, true, nil, false, "the node answers nothing but DHCP and DNS"},
		{"10.64.128.1", Packet{securitygroup.UDP, 53}, false, nil, true, "the node answers DHCP and DNS"},
		{"10.64.128.1", Packet{securitygroup.UDP, 53}, false, []string{"out tcp 1 to 10.0.0.0/8"}, true, "the node answers DHCP and DNS"},
		{"192.0.2.1", ssh, false, nil, false, "the network has no egress"},
		{"192.0.2.1", ssh, true, nil, true, "the source becomes that of the node on its uplink"},
		{"192.0.2.1", ssh, true, []string{"out tcp 22 to 10.0.0.0/8"}, false, "allows tcp 22 to 192.0.2.1"},
	} {
		one, _ := pair(t, tt.rules, nil)
		one.Network.Egress = tt.egress
		path := FollowOut(one, netip.MustParseAddr(tt.to), tt.packet)
		last := path.Request[len(path.Request)-1]
		if Passes(path.Request) != tt.passes || !strings.Contains(last.Detail, tt.want) {
			t.Errorf("%v to %s, egress %t, rules %v: got %+v, want passes %t and %q", tt.packet, tt.to, tt.egress, tt.rules, last, tt.passes, tt.want)
		}
	}
}
