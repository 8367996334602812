package node

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// What members try against the security groups of others. In these tests member 0 has a group, and member 1 is hostile.

func tcp(from, to int, sport, dport uint16, flags byte) guardPacket {
	return guardPacket{from: from, to: to, protocol: unix.IPPROTO_TCP, sport: sport, dport: dport, flags: flags}
}

func udp(from, to int, sport, dport uint16) guardPacket {
	return guardPacket{from: from, to: to, protocol: unix.IPPROTO_UDP, sport: sport, dport: dport}
}

func icmp(from, to int, kind, identifier uint16) guardPacket {
	return guardPacket{from: from, to: to, protocol: unix.IPPROTO_ICMP, sport: kind, dport: identifier}
}

func unreachable(from, to int, quoted guardPacket) guardPacket {
	p := icmp(from, to, 3, 0)
	p.quoted = &quoted
	return p
}

func TestAPortWithASecurityGroupTakesNothingUnasked(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.mustPass(t, "a packet to a port without security groups", udp(1, 0, 9, 9))
	lab.guard(t, lab.group(t, "web", []int{0}, "in tcp 80 from 0.0.0.0/0"))
	lab.mustPass(t, "a packet that a rule allows", tcp(1, 0, 999, 80, flagSYN))
	for _, flags := range []byte{flagSYN, flagACK, flagSYN | flagACK, flagFIN, flagRST, 0} {
		lab.mustStop(t, "a scan of a closed port", tcp(1, 0, 999, 81, flags))
		lab.mustStop(t, "a scan from an open port's number", tcp(1, 0, 80, 81, flags))
	}
	lab.mustStop(t, "a datagram that looks like an answer of a name server", udp(1, 0, 53, 999))
	lab.mustStop(t, "an echo request", icmp(1, 0, 8, 7))
	lab.mustStop(t, "an echo reply that nobody asked for", icmp(1, 0, 0, 7))
	lab.mustStop(t, "a redirect", icmp(1, 0, 5, 7))
	lab.mustStop(t, "a packet of another protocol", guardPacket{from: 1, to: 0, protocol: unix.IPPROTO_GRE, dport: 80})
	lab.mustPass(t, "a packet between ports without security groups", udp(1, 2, 9, 9))
	lab.mustPass(t, "a packet from a port with security groups", udp(0, 1, 9, 9))
}

func TestAPortWithASecurityGroupGetsRepliesToWhatItSent(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "client", []int{0}))
	lab.mustStop(t, "a packet before any request", tcp(1, 0, 80, 999, flagSYN|flagACK))
	lab.mustPass(t, "a request", tcp(0, 1, 999, 80, flagSYN))
	lab.mustPass(t, "its reply", tcp(1, 0, 80, 999, flagSYN|flagACK))
	lab.mustStop(t, "a reply from another port", tcp(1, 0, 81, 999, flagSYN|flagACK))
	lab.mustStop(t, "a reply to another port", tcp(1, 0, 80, 998, flagSYN|flagACK))
	lab.mustStop(t, "a reply from another member", tcp(2, 0, 80, 999, flagSYN|flagACK))
	lab.mustStop(t, "a reply by another protocol", udp(1, 0, 80, 999))
	elsewhere := tcp(1, 0, 80, 999, flagACK)
	elsewhere.target = lab.network.Ports[2].Address
	lab.mustStop(t, "a reply that is addressed to another member", elsewhere)
	lab.mustPass(t, "an echo request", icmp(0, 1, 8, 7))
	lab.mustPass(t, "its reply", icmp(1, 0, 0, 7))
	lab.mustStop(t, "an echo request with the identifier of one sent", icmp(1, 0, 8, 7))
	lab.mustStop(t, "an echo reply with another identifier", icmp(1, 0, 0, 8))
}

func TestAnICMPErrorPassesOnlyIfItQuotesAPacketOfThePort(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "client", []int{0}, "in tcp 80 from 0.0.0.0/0"))
	sent := udp(0, 1, 999, 53)
	lab.mustStop(t, "an error about a packet that was not sent", unreachable(1, 0, sent))
	lab.mustPass(t, "a request", sent)
	lab.mustPass(t, "an error about it", unreachable(1, 0, sent))
	lab.mustPass(t, "an error about it from a router", unreachable(2, 0, sent))
	redirect := icmp(1, 0, 5, 0)
	redirect.quoted = &sent
	lab.mustStop(t, "a redirect that quotes it", redirect)
	other := udp(2, 1, 999, 53)
	lab.mustStop(t, "an error that quotes a packet of another member", unreachable(1, 0, other))
	lab.mustPass(t, "an error about an answer that rules allow", unreachable(1, 0, tcp(0, 1, 80, 999, flagACK)))
	lab.mustStop(t, "an error about an answer that rules don't allow", unreachable(1, 0, tcp(0, 1, 81, 999, flagACK)))
}

func TestFragmentsAndOptionsDoNotCarryPacketsPastTheRules(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "server", []int{0}, "in udp 80 from 0.0.0.0/0", "in udp 256-257 from 0.0.0.0/0", "in any from 10.64.16.4/32"))
	first, later := udp(1, 0, 999, 80), udp(1, 0, 0, 0)
	first.part, later.part, later.data = firstFragment, laterFragment, "\x00\x01\x00\x5012345678"
	lab.mustStop(t, "a first fragment to an open port", first)
	lab.mustStop(t, "a later fragment with an open port's number in place of a port", later)
	options := udp(1, 0, 999, 81)
	options.options = true // RFC 791: "no operation" and "end of list", which lie where the port would be
	lab.mustStop(t, "a packet to a closed port, with IP options that look like an open port's number", options)
	first.from, later.from, options.from = 2, 2, 2
	lab.mustPass(t, "a first fragment that a rule for any protocol allows", first)
	lab.mustPass(t, "a later fragment that a rule for any protocol allows", later)
	lab.mustPass(t, "a packet with options that a rule for any protocol allows", options)
}

func TestASpoofedSourceOpensNothing(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t,
		lab.group(t, "server", []int{0}, "in tcp 22 from group admin", "in udp 53 from 10.64.16.4/32"),
		lab.group(t, "admin", []int{2}))
	lab.mustPass(t, "a packet from a member of the group", tcp(2, 0, 999, 22, flagSYN))
	lab.mustStop(t, "a packet from another member", tcp(1, 0, 999, 22, flagSYN))
	friend := lab.network.Ports[2].Address
	lying, datagram := tcp(1, 0, 999, 22, flagSYN), udp(1, 0, 999, 53)
	lying.source, datagram.source = friend, friend
	lab.mustStop(t, "a packet under the address of a member of the group", lying)
	lab.mustStop(t, "a datagram under an allowed address", datagram)
	// A packet that was dropped must not count as one that was sent.
	own := udp(0, 1, 999, 7)
	own.source = friend
	lab.mustStop(t, "a packet of the port under another address", own)
	lab.mustStop(t, "a reply to it", udp(1, 0, 7, 999))
}

// opened counts the elements of a port's own set.
func (lab *guardLab) opened(t testing.TB, set string, member int) int {
	t.Helper()
	out := lab.node.run(t, fmt.Sprintf("nft list set bridge nm %s_%s", set, plan.PortName(lab.network.Ports[member].ID)))
	return strings.Count(out, " expires ")
}

// flood makes packets to or from many ports.
func flood(count int, make func(port uint16) guardPacket) []guardPacket {
	var packets []guardPacket
	for i := range count {
		packets = append(packets, make(uint16(1024+i)))
	}
	return packets
}

func TestAPortThatFloodsFillsItsOwnShareOnly(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "client", []int{0, 1}))
	lab.mustPass(t, "a request before the flood", udp(0, 2, 999, 53))
	const share = 2048
	lab.send(t, flood(share+500, func(port uint16) guardPacket { return udp(1, 2, 7, port) })...)
	if got := lab.opened(t, "flows", 1); got != share {
		t.Errorf("the hostile port holds %d elements, want its share of %d", got, share)
	}
	lab.mustPass(t, "one more packet of the hostile port", udp(1, 2, 6, 53))
	lab.mustStop(t, "the reply to it, for which there is no place", udp(2, 1, 53, 6))
	lab.mustPass(t, "a reply to the request before the flood", udp(2, 0, 53, 999))
	lab.mustPass(t, "a request after the flood", udp(0, 2, 998, 53))
	lab.mustPass(t, "its reply", udp(2, 0, 53, 998))
}

func TestAConnectionThatAPortClosesMakesRoom(t *testing.T) {
	lab := newGuardLab(t, 2)
	lab.guard(t, lab.group(t, "client", []int{0}))
	lab.mustPass(t, "a request", tcp(0, 1, 999, 80, flagSYN))
	lab.mustPass(t, "a packet of the connection", tcp(0, 1, 999, 80, flagACK))
	if got := lab.opened(t, "flows", 0); got != 1 {
		t.Errorf("an open connection takes %d places, want 1", got)
	}
	lab.mustPass(t, "the packet that closes it", tcp(0, 1, 999, 80, flagFIN|flagACK))
	lab.mustPass(t, "the answer", tcp(1, 0, 80, 999, flagFIN|flagACK))
	lab.mustPass(t, "the last packet", tcp(0, 1, 999, 80, flagACK))
	if flows, closing := lab.opened(t, "flows", 0), lab.opened(t, "closing", 0); flows != 0 || closing != 1 {
		t.Errorf("a closed connection takes %d places of open ones and %d of closed ones, want 0 and 1", flows, closing)
	}
	lab.mustPass(t, "a new connection of the same ports", tcp(0, 1, 999, 80, flagSYN))
	lab.mustPass(t, "its reply", tcp(1, 0, 80, 999, flagSYN|flagACK))
	lab.mustPass(t, "its next packet", tcp(0, 1, 999, 80, flagACK))
	if got := lab.opened(t, "flows", 0); got != 1 {
		t.Errorf("a new connection takes %d places, want 1", got)
	}
}

func TestPacketsThatRulesAllowTakeNoPlaceOfThePort(t *testing.T) {
	lab := newGuardLab(t, 2)
	lab.guard(t, lab.group(t, "server", []int{0}, "in tcp 80 from 0.0.0.0/0", "in icmp 8 from 0.0.0.0/0"))
	const count = 1300 // more than are noted as admitted
	lab.send(t, flood(count, func(port uint16) guardPacket { return tcp(1, 0, port, 80, flagSYN) })...)
	lab.send(t, flood(count, func(port uint16) guardPacket { return tcp(0, 1, 80, port, flagSYN|flagACK) })...)
	lab.send(t, flood(count, func(port uint16) guardPacket { return icmp(1, 0, 8, port) })...)
	lab.send(t, flood(count, func(port uint16) guardPacket { return icmp(0, 1, 0, port) })...)
	if flows, echoes := lab.opened(t, "flows", 0), lab.opened(t, "echoes", 0); flows+echoes > 0 {
		t.Errorf("strangers filled %d and %d places of the port, want none", flows, echoes)
	}
	lab.mustPass(t, "a request of the port's own", udp(0, 1, 999, 53))
	lab.mustPass(t, "its reply", udp(1, 0, 53, 999))
}

func TestARestrictedPortSendsWhatRulesAllowAndReplies(t *testing.T) {
	lab := newGuardLab(t, 3)
	lab.guard(t, lab.group(t, "server", []int{0}, "in tcp 80 from 0.0.0.0/0", "in udp 80 from 0.0.0.0/0", "in icmp 8 from 0.0.0.0/0", "out udp 53 to 10.64.16.4/32"))
	lab.mustStop(t, "a request that no rule allows", udp(0, 1, 999, 53))
	lab.mustStop(t, "an echo request that no rule allows", icmp(0, 1, 8, 7))
	lab.mustStop(t, "an unasked answer from an open port", udp(0, 1, 80, 999))
	lab.mustPass(t, "a request that a rule allows", udp(0, 2, 999, 53))
	lab.mustPass(t, "its reply", udp(2, 0, 53, 999))
	lab.mustPass(t, "a request to an open port", tcp(1, 0, 999, 80, flagSYN))
	lab.mustPass(t, "the answer", tcp(0, 1, 80, 999, flagSYN|flagACK))
	lab.mustStop(t, "a connection that begins at an open port", tcp(0, 1, 80, 999, flagSYN))
	lab.mustStop(t, "an answer from another port", tcp(0, 1, 81, 999, flagSYN|flagACK))
	lab.mustStop(t, "an answer to a member that did not ask", tcp(0, 2, 80, 999, flagSYN|flagACK))
	fragment := tcp(0, 1, 80, 999, flagACK)
	fragment.part = laterFragment
	lab.mustStop(t, "a fragment", fragment)
	lab.mustPass(t, "an echo request from outside", icmp(1, 0, 8, 7))
	lab.mustPass(t, "the echo reply", icmp(0, 1, 0, 7))
	const count = 300
	lab.send(t, flood(count, func(port uint16) guardPacket { return tcp(1, 0, port, 80, flagSYN) })...)
	if got := lab.opened(t, "askers", 0); got > 3 {
		t.Errorf("two members that asked by two protocols take %d places, want 3 at most", got)
	}
}
