package packettrace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// routedPair is a pair whose second member is on another routed network of the project, 10.64.129.0/24.
func routedPair(t *testing.T, web, ops []string) (one, two End) {
	t.Helper()
	one, two = pair(t, web, ops)
	for _, e := range []*End{&one, &two} {
		e.Network.Routed, e.Network.Project, e.Network.Pool = true, "lab", netip.MustParsePrefix("10.64.0.0/10")
	}
	address := netip.MustParseAddr("10.64.129.3")
	move := func(groups []fabric.Group) []fabric.Group {
		groups = slices.Clone(groups)
		for i := range groups {
			if slices.Contains(groups[i].Ports, two.Port.ID) {
				groups[i].Members = []netip.Addr{address}
			}
		}
		return groups
	}
	here, there := one.Network, two.Network
	here.Groups, there.Groups = move(here.Groups), move(there.Groups)
	there.Index, there.Prefix, there.Gateway = 8, netip.MustParsePrefix("10.64.129.0/24"), netip.MustParseAddr("10.64.129.1")
	two.Port.Address = address
	hereOnTwo, thereOnOne := here, there
	here.Remotes, hereOnTwo.Ports = nil, nil
	hereOnTwo.Remotes = []fabric.Remote{{Peer: peerOne, Address: one.Port.Address, MAC: one.Port.MAC}}
	there.Ports, there.Remotes, thereOnOne.Ports = []fabric.Port{two.Port}, nil, nil
	thereOnOne.Remotes = []fabric.Remote{{Peer: peerTwo, Address: address, MAC: two.Port.MAC}}
	one.Network, one.Beyond, two.Network, two.Beyond = here, thereOnOne, there, hereOnTwo
	return one, two
}

// together puts the members of a routed pair on one node.
func together(one, two *End) {
	two.Node, two.Underlay = one.Node, one.Underlay
	one.Beyond, two.Beyond = two.Network, one.Network
}

func TestARoutedPacketIsRoutedByTheSendersNode(t *testing.T) {
	one, two := routedPair(t, nil, nil)
	const there = "n1 sender's port, n1 pins, n1 security groups (out), n1 bridge, n1 routing, n1 tunnel, n2 pins of the tunnel, n2 security groups (in), n2 receiver's port"
	const back = "n2 sender's port, n2 pins, n2 security groups (out), n2 bridge, n2 routing, n2 tunnel, n1 pins of the tunnel, n1 security groups (in), n1 receiver's port"
	path := Follow(one, two, ssh)
	if got := places(path.Request); got != there || !Passes(path.Request) {
		t.Errorf("request: got %s\nwant %s", got, there)
	}
	if got := places(path.Reply); got != back || !Passes(path.Reply) {
		t.Errorf("reply: got %s\nwant %s", got, back)
	}
	for i, want := range map[int]string{
		4: "from subnet 10.64.128.0/24 to 10.64.129.0/24, where two-0 is on node n2", 5: "VXLAN 8 from 198.18.0.1 to 198.18.0.2",
		6: "one-0 behind n1: source 10.64.128.2 and 0a:6e:c6:12:00:01, the router of 198.18.0.1",
	} {
		if got := path.Request[i].Detail; got != want {
			t.Errorf("hop %d: got %q, want %q", i+1, got, want)
		}
	}
	if got, want := path.Reply[5].Detail, "VXLAN 7 from 198.18.0.2 to 198.18.0.1"; got != want {
		t.Errorf("the answer takes %q, want %q", got, want)
	}
}

func TestARoutedPacketOnOneNodePassesNoTunnel(t *testing.T) {
	one, two := routedPair(t, nil, nil)
	together(&one, &two)
	const want = "n1 sender's port, n1 pins, n1 security groups (out), n1 bridge, n1 routing, n1 security groups (in), n1 receiver's port"
	if path := Follow(one, two, ssh); places(path.Request) != want || !Passes(path.Request) || !Passes(path.Reply) {
		t.Errorf("got %s\nwant %s", places(path.Request), want)
	}
}

func TestARoutedPacketThatIsStoppedNamesTheReason(t *testing.T) {
	for name, tt := range map[string]struct {
		web, ops []string
		change   func(one, two *End)
		where    Place
		want     string
	}{
		"no rule of the receiver names the sender's subnet": {
			ops: []string{"in tcp 22 from 10.64.129.0/24"}, where: GroupsIn, want: "allows tcp 22 from 10.64.128.2; rules: in tcp 22 from 10.64.129.0/24",
		},
		"the sender's network is not routed": {
			change: func(one, _ *End) { one.Network.Routed = false }, where: Bridge, want: "10.64.129.3 is outside of subnet 10.64.128.0/24, and the network is not routed",
		},
		"the receiver's network is of another project": {
			change: func(one, _ *End) { one.Beyond.Project = "class" }, where: Routing, want: "both have to be routed networks of one project",
		},
		"the sender's node does not have the receiver's network": {
			change: func(one, _ *End) { one.Beyond = fabric.Network{} }, where: Routing, want: "this node is not to have the network of two-0 now",
		},
		"the sender's node does not know the receiver": {
			change: func(one, _ *End) { one.Beyond.Remotes = nil }, where: Routing, want: "knows no member with 10.64.129.3, so it refuses the packet (host unreachable)",
		},
		"the receiver is behind another peer": {
			change: func(one, _ *End) { one.Beyond.Remotes[0].Peer = netip.MustParseAddr("198.18.0.9") }, where: Tunnel, want: "n2 (198.18.0.2) is not a peer of this node",
		},
		"the receiver's node does not know the sender": {
			change: func(_, two *End) { two.Beyond.Remotes = nil }, where: TunnelPins, want: "does not know one-0 behind n1",
		},
		"the receiver's node knows the sender behind another peer": {
			change: func(_, two *End) { two.Beyond.Remotes[0].Peer = netip.MustParseAddr("198.18.0.9") }, where: TunnelPins, want: "does not know one-0 behind n1",
		},
		"the receiver on the same node is gone": {
			change: func(one, two *End) { together(one, two); one.Beyond.Ports = nil }, where: Routing, want: "node n1 is not to have the port of two-0 now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := routedPair(t, tt.web, tt.ops)
			if tt.change != nil {
				tt.change(&one, &two)
			}
			path := Follow(one, two, ssh)
			if last := path.Request[len(path.Request)-1]; last.Passes || last.Place != tt.where || !strings.Contains(last.Detail, tt.want) || path.Reply != nil {
				t.Errorf("got %+v, reply %v; want the packet stopped at %q with %q", last, path.Reply, tt.where, tt.want)
			}
		})
	}
}

func TestRulesByGroupAreAboutMembersOfOtherRoutedNetworks(t *testing.T) {
	one, two := routedPair(t, []string{"out tcp 22 to group ops"}, []string{"in tcp 22 from group web"})
	if path := Follow(one, two, ssh); !Passes(path.Request) || !Passes(path.Reply) {
		t.Errorf("got %+v", path)
	}
	if path := Follow(two, one, ssh); Passes(path.Request) {
		t.Errorf("the other way: got %+v, want it stopped", path)
	}
}

func TestAPacketToNobodyOnARoutedNetworkIsRefused(t *testing.T) {
	for to, want := range map[string]string{
		"10.64.129.77": "no member of subnet 10.64.129.0/24 has 10.64.129.77, so the node refuses the packet (host unreachable)",
		"10.65.0.9":    "no member on a routed network of the project has 10.65.0.9",
		"192.0.2.1":    "192.0.2.1 is outside of subnet 10.64.128.0/24, and the network has no egress",
	} {
		one, _ := routedPair(t, nil, nil)
		path := FollowOut(one, netip.MustParseAddr(to), ssh)
		if last := path.Request[len(path.Request)-1]; last.Passes || last.Detail != want {
			t.Errorf("to %s: got %+v, want %q", to, last, want)
		}
	}
}
