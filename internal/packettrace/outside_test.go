package packettrace

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

var floatingAddress = netip.MustParseAddr("198.51.100.7")

// outsidePair is a pair on a network with egress. The first member has a floating address, with these forwarded ports.
func outsidePair(t *testing.T, web, ops []string, forwards ...fabric.Forward) (one, two End) {
	t.Helper()
	one, two = pair(t, web, ops)
	for _, e := range []*End{&one, &two} {
		e.Network.Egress, e.Network.FloatingPool = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/28")}
		e.Network.Open = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("169.254.0.0/16")}
	}
	one.Network.Floating = []fabric.Floating{{Address: floatingAddress, Port: one.Port.ID, Forwards: forwards}}
	return one, two
}

func TestEgressNamesTheRangeThatStopsOrPasses(t *testing.T) {
	for to, want := range map[string]struct {
		passes bool
		detail string
	}{
		"203.0.113.5":     {true, "203.0.113.5 is outside of the site"},
		"198.51.100.9":    {true, "198.51.100.9 is in the site's floating pool, 198.51.100.0/28"},
		"10.20.3.4":       {true, "10.20.3.4 is in 10.20.0.0/16, which the site opened (--egress-open)"},
		"10.21.3.4":       {false, "10.21.3.4 is in the private range 10.0.0.0/8, which the site has not opened (--egress-open)"},
		"192.168.77.1":    {false, "192.168.77.1 is in the private range 192.168.0.0/16"},
		"169.254.169.254": {false, "169.254.169.254 is in 169.254.0.0/16, which egress never leads to"},
		"10.64.77.1":      {false, "10.64.77.1 is in 10.64.0.0/10, which egress never leads to"},
		"198.18.0.2":      {false, "198.18.0.2 is an address of the node"},
	} {
		_, two := outsidePair(t, nil, nil)
		path := FollowOut(two, netip.MustParseAddr(to), ssh)
		at := path.Request[4]
		if at.Place != Egress || at.Passes != want.passes || !strings.Contains(at.Detail, want.detail) || Passes(path.Request) != want.passes || Passes(path.Reply) != want.passes {
			t.Errorf("to %s: got %+v, want %+v", to, path, want)
		}
	}
}

func TestAMemberWithAFloatingAddressHasItOutside(t *testing.T) {
	one, two := outsidePair(t, nil, []string{})
	for _, tt := range []struct {
		from End
		want string
	}{{one, "the source becomes 198.51.100.7, the floating address of one-0"}, {two, "the source becomes that of the node on its uplink"}} {
		path := FollowOut(tt.from, netip.MustParseAddr("203.0.113.5"), ssh)
		if got := path.Request[5]; got.Place != Translation || !strings.Contains(got.Detail, tt.want) {
			t.Errorf("got %+v, want %q", got, tt.want)
		}
		const back = "address translation, security groups (in), receiver's port"
		if got := strings.ReplaceAll(places(path.Reply), tt.from.Node+" ", ""); got != back || !Passes(path.Reply) {
			t.Errorf("the answer passes %s, want %s", got, back)
		}
	}
	forwarded, _ := outsidePair(t, nil, nil, fabric.Forward{Protocol: "tcp", Port: 2222, MemberPort: 22})
	if got := FollowOut(forwarded, netip.MustParseAddr("203.0.113.5"), ssh).Request[5]; !strings.Contains(got.Detail, "that of the node") {
		t.Errorf("with forwarded ports only: got %+v, want the node's address", got)
	}
}

func TestAFloatingAddressLeadsInToItsMember(t *testing.T) {
	forward := fabric.Forward{Protocol: "tcp", Port: 2222, MemberPort: 22}
	for name, tt := range map[string]struct {
		from     string
		rules    []string
		forwards []fabric.Forward
		packet   Packet
		change   func(one *End)
		passes   bool
		where    Place
		want     string
	}{
		"one to one": {from: "203.0.113.5", packet: ssh, passes: true, where: ReceiverPort, want: "one-0"},
		"the rules see the address outside": {
			from: "203.0.113.5", rules: []string{"in tcp 22 from 203.0.113.0/24"}, packet: ssh, passes: true, where: ReceiverPort, want: "one-0",
		},
		"no rule allows the address outside": {
			from: "203.0.113.5", rules: []string{"in tcp 22 from 10.0.0.0/8"}, packet: ssh, where: GroupsIn, want: "allows tcp 22 from 203.0.113.5; rules: in tcp 22 from 10.0.0.0/8",
		},
		"the rules see the forwarded port": {
			from: "203.0.113.5", rules: []string{"in tcp 22 from 0.0.0.0/0"}, forwards: []fabric.Forward{forward}, packet: Packet{"tcp", 2222}, passes: true, where: ReceiverPort, want: "one-0",
		},
		"the port is not forwarded": {
			from: "203.0.113.5", forwards: []fabric.Forward{forward}, packet: ssh, where: Translation, want: "198.51.100.7 leads to one-0 by these ports only: tcp/2222=22",
		},
		"echoes are no forwarded port": {from: "203.0.113.5", forwards: []fabric.Forward{forward}, packet: ping, where: Translation, want: "by these ports only"},
		"somebody outside bears an address of members": {
			from: "10.70.0.1", packet: ssh, where: Routing, want: "nobody outside bears an address of members, and 10.70.0.1 is in 10.64.0.0/10",
		},
		"the node is not to have the address": {
			from: "203.0.113.5", packet: ssh, change: func(one *End) { one.Network.Floating = nil }, where: Uplink, want: "node n1 is not to have 198.51.100.7 for one-0 now",
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, _ := outsidePair(t, tt.rules, nil, tt.forwards...)
			if tt.change != nil {
				tt.change(&one)
			}
			path := FollowIn(netip.MustParseAddr(tt.from), one, floatingAddress, tt.packet)
			last := path.Request[len(path.Request)-1]
			if last.Passes != tt.passes || last.Place != tt.where || !strings.Contains(last.Detail, tt.want) || Passes(path.Reply) != tt.passes {
				t.Errorf("got %+v; want %q with %q", path, tt.where, tt.want)
			}
		})
	}
}

func TestAMemberCallsAFloatingAddressFromEverywhere(t *testing.T) {
	one, two := outsidePair(t, []string{"in tcp 22 from 198.18.0.2/32"}, nil)
	path := FollowFloating(two, one, floatingAddress, ssh)
	const there = "n2 sender's port, n2 pins, n2 security groups (out), n2 bridge, n2 egress, n2 address translation, " +
		"n1 uplink, n1 address translation, n1 routing, n1 security groups (in), n1 receiver's port"
	const back = "n1 sender's port, n1 pins, n1 security groups (out), n1 address translation, n2 address translation, n2 security groups (in), n2 receiver's port"
	if places(path.Request) != there || places(path.Reply) != back || !Passes(path.Request) || !Passes(path.Reply) {
		t.Errorf("from another node: got %s\nand %s\n%+v", places(path.Request), places(path.Reply), path)
	}
	one, two = outsidePair(t, []string{"in tcp 22 from 10.64.128.1/32"}, nil)
	two.Node, two.Underlay, two.Network = one.Node, one.Underlay, one.Network
	two.Network.Ports = append([]fabric.Port{two.Port}, one.Network.Ports...)
	one.Network.Ports = two.Network.Ports
	path = FollowFloating(two, one, floatingAddress, ssh)
	const here = "n1 sender's port, n1 pins, n1 security groups (out), n1 bridge, n1 address translation, n1 address translation, n1 security groups (in), n1 receiver's port"
	if places(path.Request) != here || !Passes(path.Request) || !Passes(path.Reply) {
		t.Errorf("on one node: got %s\n%+v", places(path.Request), path)
	}
	if path = FollowFloating(one, one, floatingAddress, ssh); Passes(path.Request) || !strings.Contains(path.Request[6].Detail, "allows tcp 22 from 198.51.100.7") {
		t.Errorf("the member itself: got %+v, want that its rules see its floating address", path)
	}
	two.Network.Egress = false
	if path = FollowFloating(two, one, floatingAddress, ssh); Passes(path.Request) || !strings.Contains(path.Request[3].Detail, "has no egress") {
		t.Errorf("from a network without egress: got %+v", path)
	}
}
