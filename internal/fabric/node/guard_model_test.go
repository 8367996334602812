package node

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// policy is what security groups mean, stated by the history of packets alone. It knows no sets and no chains.
type policy struct {
	network fabric.Network
	// sent are the packets that members were allowed to send, as tuples; heard are addresses and protocols of packets that came to a member.
	sent  map[tuple]bool
	heard map[tuple]bool
}

// tuple names packets between a member and another by ports, or an echo by its identifier.
type tuple struct {
	member, other int
	protocol      uint8
	own, others   uint16
}

// allows reports whether a rule of the member's groups is about these packets.
func (w policy) allows(d securitygroup.Direction, member, other int, matches func(r securitygroup.Rule) bool) bool {
	address := w.network.Ports[other].Address
	for _, g := range w.network.GroupsOf(w.network.Ports[member].ID) {
		for _, r := range g.Rules {
			about := r.Group == "" && r.Prefix.Contains(address)
			for _, named := range w.network.Groups {
				about = about || r.Group == named.ID && slices.Contains(named.Members, address)
			}
			if r.Direction == d && about && matches(r) {
				return true
			}
		}
	}
	return false
}

func forAny(r securitygroup.Rule) bool { return r.Protocol == securitygroup.Any }

func forPort(protocol uint8, port uint16) func(r securitygroup.Rule) bool {
	return func(r securitygroup.Rule) bool {
		number, one := r.Protocol.Number()
		return r.Protocol == securitygroup.Any || one && number == protocol && r.Ports.First <= port && port <= r.Ports.Last
	}
}

func (w policy) guarded(member int) bool { return w.network.Guarded(w.network.Ports[member].ID) }

func (w policy) restricted(member int) bool {
	return slices.ContainsFunc(w.network.GroupsOf(w.network.Ports[member].ID), func(g fabric.Group) bool {
		return slices.ContainsFunc(g.Rules, func(r securitygroup.Rule) bool { return r.Direction == securitygroup.Out })
	})
}

// passes reports whether a packet arrives, and remembers it.
func (w policy) passes(p guardPacket) bool {
	may, begins := w.maySend(p)
	if !may {
		return false
	}
	known := slices.Contains([]uint8{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP}, p.protocol)
	if begins && known {
		w.sent[sentTuple(p)] = true
	}
	if known && (p.part == whole || !w.network.HasIPv6()) { // no fragment of IPv6 shows its protocol where rules look
		w.heard[tuple{member: p.to, other: p.from, protocol: p.protocol}] = true
	}
	return w.mayReceive(p)
}

func sentTuple(p guardPacket) tuple {
	if p.protocol == unix.IPPROTO_ICMP {
		if p.sport != 8 {
			return tuple{member: -1, protocol: p.protocol} // no reply is awaited
		}
		return tuple{p.from, p.to, p.protocol, p.dport, 0}
	}
	return tuple{p.from, p.to, p.protocol, p.sport, p.dport}
}

// maySend reports whether a packet leaves its sender, and whether replies to it are awaited.
func (w policy) maySend(p guardPacket) (may, begins bool) {
	const in, out = securitygroup.In, securitygroup.Out
	if !w.restricted(p.from) {
		return true, !p.options && (p.part == whole || p.part == firstFragment && !w.network.HasIPv6())
	}
	if p.options || p.part != whole {
		return w.allows(out, p.from, p.to, forAny), false
	}
	heard := func(protocol uint8) bool { return w.heard[tuple{member: p.from, other: p.to, protocol: protocol}] }
	if p.protocol == unix.IPPROTO_ICMP {
		begins = w.allows(out, p.from, p.to, forPort(p.protocol, p.sport))
		answers := p.sport == 0 && heard(unix.IPPROTO_ICMP) || p.sport == 3 && p.quoted != nil && heard(p.quoted.protocol)
		return begins || answers, begins
	}
	if w.sent[sentTuple(p)] || w.allows(out, p.from, p.to, forPort(p.protocol, p.dport)) {
		return true, true
	}
	opens := p.protocol == unix.IPPROTO_TCP && p.flags&(flagSYN|flagACK) == flagSYN
	return !opens && heard(p.protocol) && w.allows(in, p.from, p.to, forPort(p.protocol, p.sport)), false
}

func (w policy) mayReceive(p guardPacket) bool {
	const in = securitygroup.In
	if !w.guarded(p.to) || w.allows(in, p.to, p.from, forAny) {
		return true
	}
	if p.options || p.part != whole {
		return false
	}
	if p.protocol != unix.IPPROTO_ICMP {
		return w.sent[tuple{p.to, p.from, p.protocol, p.dport, p.sport}] || w.allows(in, p.to, p.from, forPort(p.protocol, p.dport))
	}
	if w.allows(in, p.to, p.from, forPort(p.protocol, p.sport)) || p.sport == 0 && w.sent[tuple{p.to, p.from, p.protocol, p.dport, 0}] {
		return true
	}
	q := p.quoted
	if q == nil || q.from != p.to || !slices.Contains([]uint16{3, 11, 12}, p.sport) {
		return false
	}
	if q.protocol == unix.IPPROTO_ICMP {
		return q.sport == 8 && w.sent[sentTuple(*q)] || w.allows(in, q.from, q.to, forAny)
	}
	return w.sent[sentTuple(*q)] || w.allows(in, q.from, q.to, forPort(q.protocol, q.sport))
}

// dice draws policies and packets.
type dice struct{ *rand.Rand }

func pick[T any](d dice, list ...T) T { return list[d.IntN(len(list))] }

func (d dice) rule(groups int, network fabric.Network) securitygroup.Rule {
	r := securitygroup.Rule{
		Direction: pick(d, securitygroup.In, securitygroup.In, securitygroup.In, securitygroup.Out),
		Protocol:  pick(d, securitygroup.TCP, securitygroup.UDP, securitygroup.ICMP, securitygroup.Any),
		Ports:     securitygroup.Range{Last: 65535},
	}
	switch r.Protocol {
	case securitygroup.ICMP:
		r.Ports = pick(d, securitygroup.Range{Last: 255}, securitygroup.Range{First: 8, Last: 8})
	case securitygroup.TCP, securitygroup.UDP:
		first := uint16(1000 + d.IntN(4))
		r.Ports = pick(d, r.Ports, securitygroup.Range{First: first, Last: first}, securitygroup.Range{First: first, Last: 1003})
	}
	if d.IntN(2) == 0 {
		r.Group = groupID(d.IntN(groups))
		return r
	}
	address := network.Ports[d.IntN(len(network.Ports))].Address
	prefix := netip.PrefixFrom(address, pick(d, 32, 32, 31, 30, 20))
	r.Prefix = prefix.Masked()
	return r
}

func groupID(i int) string { return fmt.Sprintf("group-%d", i) }

func (d dice) groups(t *testing.T, lab *guardLab) []fabric.Group {
	t.Helper()
	const count = 3
	var groups []fabric.Group
	for i := range count {
		var members []int
		for m := range lab.members {
			if d.IntN(3) == 0 {
				members = append(members, m)
			}
		}
		g := lab.group(t, groupID(i), members)
		for range d.IntN(5) {
			r := d.rule(count, lab.network)
			if r.Direction == securitygroup.Out && i != 0 {
				r.Direction = securitygroup.In // so that some ports may send anything
			}
			if securitygroup.Validate(append(slices.Clone(g.Rules), r)) == nil {
				g.Rules = append(g.Rules, r)
			}
		}
		groups = append(groups, g)
	}
	return groups
}

// packet draws a packet, often the answer to an earlier one, or an error about that.
func (d dice) packet(lab *guardLab, earlier []guardPacket) guardPacket {
	if len(earlier) > 0 && d.IntN(3) > 0 {
		e := earlier[max(0, len(earlier)-1-d.IntN(20))]
		if e.quoted == nil && e.part == whole && !e.options {
			return d.answer(e)
		}
	}
	members := d.Perm(len(lab.members))
	p := guardPacket{from: members[0], to: members[1], protocol: pick[uint8](d, 6, 6, 17, 17, 1, 47)}
	p.sport, p.dport = uint16(1000+d.IntN(4)), uint16(1000+d.IntN(4))
	p.flags = pick[byte](d, flagSYN, flagACK, flagSYN|flagACK, flagFIN|flagACK, flagRST)
	p.part = pick(d, whole, whole, whole, whole, whole, firstFragment, laterFragment)
	p.options = d.IntN(12) == 0
	if p.protocol == unix.IPPROTO_ICMP {
		p.sport = pick[uint16](d, 8, 8, 8, 0, 5, 13)
	}
	return p
}

func (d dice) answer(e guardPacket) guardPacket {
	p := guardPacket{from: e.to, to: e.from, protocol: e.protocol, sport: e.dport, dport: e.sport, flags: pick[byte](d, flagACK, flagSYN|flagACK, flagSYN)}
	if e.protocol == unix.IPPROTO_ICMP {
		p.sport, p.dport = 0, e.dport
	}
	if d.IntN(4) == 0 {
		p.protocol, p.sport, p.quoted = unix.IPPROTO_ICMP, pick[uint16](d, 3, 3, 11, 12, 5), &e
	}
	return p
}

func TestPacketsPassAsThePolicySays(t *testing.T) {
	lab := newGuardLab(t, 5)
	testPolicies(t, lab, 12, func(g fabric.Group) fabric.Group { return g }, func(p guardPacket) guardPacket { return p })
}

// testPolicies compares what passes with the model. The groups that the node has are made of the model's, and so are the packets.
func testPolicies(t *testing.T, lab *guardLab, policies int, group func(fabric.Group) fabric.Group, packet func(guardPacket) guardPacket) {
	t.Helper()
	const packets = 400
	seed := rand.Uint64()
	for i := range uint64(policies) {
		d := dice{rand.New(rand.NewPCG(seed, i))}
		lab.guard(t) // forgets what ports sent
		groups := d.groups(t, lab)
		model := lab.network
		model.Groups = groups
		var real []fabric.Group
		for _, g := range groups {
			real = append(real, group(g))
		}
		lab.guard(t, real...)
		w := policy{network: model, sent: map[tuple]bool{}, heard: map[tuple]bool{}}
		var sent []guardPacket
		var want []bool
		for range packets {
			p := packet(d.packet(lab, sent))
			sent = append(sent, p)
			want = append(want, w.passes(p))
		}
		passed := 0
		for n, got := range lab.send(t, sent...) {
			if got {
				passed++
			}
			if got != want[n] {
				t.Errorf("seed %d, policy %d, packet %d: %v: arrived %t, want %t", seed, i, n, sent[n], got, want[n])
			}
		}
		if t.Failed() {
			for _, g := range groups {
				t.Logf("%s: ports %v, rules %v", g.ID, g.Ports, g.Rules)
			}
			t.FailNow()
		}
		t.Logf("policy %d: %d of %d packets passed", i, passed, packets)
	}
}
