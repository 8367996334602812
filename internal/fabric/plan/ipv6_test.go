package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// withIPv6 gives a network an IPv6 subnet.
func withIPv6(n fabric.Network) fabric.Network {
	n.Prefix6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x12, 0x34, 0x56, 0x78, 0x9a, byte(n.Index >> 8), byte(n.Index)}), 64)
	return n
}

func TestRulesForIPv6AreWrittenAsPlanned(t *testing.T) {
	four := testNetwork(1, 2)
	bare := withIPv6(testNetwork(2, 2, 3))
	spread := bare
	spread.Remotes = []fabric.Remote{{Peer: netip.MustParseAddr("198.18.0.2"), Address: testPort(bare, 9).Address, MAC: testPort(bare, 9).MAC}}
	guarded := withGroup(t, spread, "web", []int{0}, "in tcp 80 from fd00::/8", "in icmp6 128 from ::/0", "in any from group web", "in udp 53 from 10.0.0.0/8")
	m := newMachine()
	m.IPv6 = true
	var b strings.Builder
	step := func(why string, networks ...fabric.Network) {
		fmt.Fprintf(&b, "=== %s\n%s", why, scriptFor(t, m, networks...))
	}
	step("a network without IPv6", four)
	step("beside it, one with IPv6", four, bare)
	step("nothing to do", four, bare)
	step("a member on another node", four, spread)
	step("a port gets a group", four, guarded)
	step("the network with IPv6 is gone", four)
	golden(t, "ipv6", b.String())
}

// Whatever runs on a node without such a network stays as it was.
func TestNetworksWithoutIPv6HaveTheRulesThatTheyHad(t *testing.T) {
	n := testNetwork(1, 2, 3)
	rules := desiredRules(planConfig, []fabric.Network{n}, newMachine().Observed)
	if rules[bridgeTable].Text != skeleton(bridgeRules) || slices.ContainsFunc(sortedKeys(rules[bridgeTable].Sets), func(set string) bool { return strings.Contains(set, "6") }) {
		t.Errorf("got %s", rules[bridgeTable].Text)
	}
}

func TestABridgeAsksForGroupsOfIPv6WhereItsKernelCan(t *testing.T) {
	for _, can := range []bool{false, true} {
		m := newMachine()
		m.IPv6 = can
		n := withIPv6(testNetwork(1, 2))
		finish(t, m, []fabric.Network{n})
		want := []netip.Prefix(nil)
		if can {
			want = []netip.Prefix{netip.PrefixFrom(fabric.LinkLocal(GatewayMAC(1)), 64)}
		}
		if got := m.Links["nmbr1"].Addresses; !slices.Equal(got, want) {
			t.Errorf("with IPv6 %t: got %v, want %v", can, got, want)
		}
	}
}
