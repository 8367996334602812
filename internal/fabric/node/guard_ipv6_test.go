package node

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// newGuardLab6 is newGuardLab with a network that has IPv6, for packets of IPv6.
func newGuardLab6(t testing.TB, members int) *guardLab {
	t.Helper()
	lab := newGuardLab(t, 0)
	lab.six = true
	lab.network = testNetwork6(1)
	for i := range members {
		lab.network.Ports = append(lab.network.Ports, testPort(lab.network, i+2))
	}
	apply(t, lab.node.fabric, lab.network)
	for i := range members {
		lab.members = append(lab.members, lab.join(t, lab.node.fabric, lab.network, i))
	}
	return lab
}

// types6 are the types of ICMPv6 messages (RFC 4443) that mean what those of ICMP mean.
var types6 = map[uint16]byte{0: 129, 8: 128, 3: 1, 11: 3, 12: 4}

// bytes6 is the packet in IPv6, with what is behind its headers.
func (lab *guardLab) bytes6(p guardPacket, upper []byte) []byte {
	next := p.protocol
	if next == unix.IPPROTO_ICMP {
		next = unix.IPPROTO_ICMPV6
		if p.part != laterFragment {
			upper[0] = types6[p.sport]
		}
	}
	from, to := lab.network.Address6(lab.sourceOf(p)), lab.network.Address6(lab.network.Ports[p.to].Address)
	switch p.part {
	case firstFragment:
		for len(upper)%8 != 0 {
			upper = append(upper, 0)
		}
		return fragment6(from, to, next, 0, true, upper)
	case laterFragment:
		return fragment6(from, to, next, 800, false, upper)
	default:
		return packet6(from, to, next, upper)
	}
}

// group6 is a group whose rules mean the same hosts by their IPv6 addresses.
func (lab *guardLab) group6(g fabric.Group) fabric.Group {
	var rules []securitygroup.Rule
	for _, r := range g.Rules {
		if r.Protocol == securitygroup.ICMP {
			r.Protocol = securitygroup.ICMP6
			if r.Ports.First == 8 {
				r.Ports = securitygroup.Range{First: 128, Last: 128}
			}
		}
		if r.Group == "" {
			bits := 128 - (32 - r.Prefix.Bits())
			if r.Prefix.Bits() <= 20 {
				bits = 64
			}
			r.Prefix = netip.PrefixFrom(lab.network.Address6(r.Prefix.Addr()), bits).Masked()
		}
		rules = append(rules, r)
	}
	g.Rules = rules
	return g
}

// packet6 makes a packet one that the pins of IPv6 let through: they drop extension headers, fragments of other protocols, and most of ICMPv6.
func drawn6(p guardPacket) guardPacket {
	p.options = false
	if p.protocol == unix.IPPROTO_GRE {
		p.part = whole
	}
	if _, known := types6[p.sport]; p.protocol == unix.IPPROTO_ICMP && !known {
		p.sport = 8
		if p.quoted != nil {
			p.sport = 3
		}
	}
	return p
}

func TestPacketsOfIPv6PassAsThePolicySays(t *testing.T) {
	lab := newGuardLab6(t, 5)
	testPolicies(t, lab, 6, lab.group6, drawn6)
	mustAudit(t, lab.node)
}

// A rule for one family says nothing about the other.
func TestAPortWithSecurityGroupsTakesOfEachFamilyWhatRulesForItAllow(t *testing.T) {
	lab := newGuardLab6(t, 3)
	lab.guard(t, lab.group(t, "web", []int{0}, "in tcp 80 from 0.0.0.0/0", "in tcp 81 from ::/0", "in tcp 82 from group web", "in tcp 82 from group ops"),
		lab.group(t, "ops", []int{1}))
	for _, tt := range []struct {
		from      int
		port      uint16
		four, six bool
	}{
		{2, 80, true, false}, {2, 81, false, true}, {2, 82, false, false}, {1, 82, true, true}, {1, 83, false, false},
	} {
		for _, six := range []bool{false, true} {
			want := tt.four
			if six {
				want = tt.six
			}
			lab.six = six
			if got := lab.arrives(t, tcp(tt.from, 0, 999, tt.port, flagSYN)); got != want {
				t.Errorf("port %d from member %d, IPv6 %t: arrived %t, want %t", tt.port, tt.from, six, got, want)
			}
		}
	}
	lab.six = true
	// Neighbour discovery needs no rule, and its messages are no way in for others.
	a, b := lab.members[1], lab.members[0]
	own, target := lab.network.Address6(a.port.Address), lab.network.Address6(b.port.Address)
	l, label := listener{b.fd}, label6()
	question := icmp6Packet(own, solicited(target), discovery(neighbourSolicitation, 0, target, linkLayer(1, a.mac())...))
	a.send(t, memberLink, stamped(ethernetFrame(b.mac(), a.mac(), etherIPv6, question), label))
	if _, ok := l.until(label, markerTimeout); !ok {
		t.Error("a question of neighbour discovery did not arrive")
	}
	lab.mustStop(t, "an echo request", guardPacket{from: 1, to: 0, protocol: unix.IPPROTO_ICMP, sport: 8, dport: 1})
	// The member asks, so the answer comes.
	lab.mustPass(t, "a request", tcp(0, 2, 999, 443, flagSYN))
	lab.mustPass(t, "its answer", tcp(2, 0, 443, 999, flagSYN|flagACK))
	lab.mustStop(t, "an answer to nothing", tcp(2, 0, 444, 999, flagSYN|flagACK))
}
