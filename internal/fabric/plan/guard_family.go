package plan

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// family says where packets of a version of IP have what security groups look at. Fields are raw offsets from the IP header, so that one set serves
// packets in both directions and packets quoted in ICMP errors. The offsets hold for headers without IPv4 options and without IPv6 extension
// headers; chains look for those, and for fragments, first.
type family struct {
	version securitygroup.Family
	// suffix ends the names of kinds of sets and chains.
	suffix string
	icmp   securitygroup.Protocol
	// number writes an address as nft(8) prints one of a raw field, and of returns the address of a member, which may have none.
	number func(netip.Addr) string
	of     func(n fabric.Network, four netip.Addr) netip.Addr

	source, destination, protocol, sourcePort, targetPort string
	// An ICMP error quotes a packet.
	quotedSource, quotedDestination string

	arriving, arrivingICMP, leaving, leavingICMP, answering, quotedAnswer view
	// Keys of a port's own sets, as packets that it sends have them, as replies have them, and as ICMP errors quote them.
	flowSent, flowReply, flowQuoted, echoSent, echoReply, echoQuoted, askerOf, askerReplied, askerQuoted string
	// Conditions of rules.
	hasOptions, isLater, isFragment, isICMP, isTCP, hasPorts, hasReplies, isToMany, isOpening, isPassing, isClosing string
	isEcho, isNoEcho, isEchoReply, isUnreached, isError, quotedStart, quotesICMP, quotesEcho                        string
}

// fields are where a packet has what keys are made of.
type fields struct {
	source, destination, protocol, sourcePort, targetPort, message, identifier string
	// Of the packet that an ICMP error quotes.
	quotedSource, quotedDestination, quotedProtocol, quotedSourcePort, quotedTargetPort, quotedIdentifier string
}

// complete adds what follows from the fields.
func (f family) complete(at fields) family {
	f.source, f.destination, f.protocol, f.sourcePort, f.targetPort = at.source, at.destination, at.protocol, at.sourcePort, at.targetPort
	f.quotedSource, f.quotedDestination = at.quotedSource, at.quotedDestination
	f.arriving, f.arrivingICMP = view{at.source, at.protocol, at.targetPort}, view{at.source, at.protocol, at.message}
	f.leaving, f.leavingICMP = view{at.destination, at.protocol, at.targetPort}, view{at.destination, at.protocol, at.message}
	f.answering = view{at.destination, at.protocol, at.sourcePort}
	f.quotedAnswer = view{at.quotedDestination, at.quotedProtocol, at.quotedSourcePort}
	const and = " . "
	f.flowSent = at.destination + and + at.protocol + and + at.targetPort + and + at.sourcePort
	f.flowReply = at.source + and + at.protocol + and + at.sourcePort + and + at.targetPort
	f.flowQuoted = at.quotedDestination + and + at.quotedProtocol + and + at.quotedTargetPort + and + at.quotedSourcePort
	f.echoSent, f.echoReply, f.echoQuoted = at.destination+and+at.identifier, at.source+and+at.identifier, at.quotedDestination+and+at.quotedIdentifier
	f.askerOf, f.askerReplied, f.askerQuoted = at.source+and+at.protocol, at.destination+and+at.protocol, at.destination+and+at.quotedProtocol
	return f
}

// ipv4 is by the numbers of RFC 791, 792 and 793. An ICMP error quotes the header and the first 8 bytes of a packet, 8 bytes into the message.
var ipv4 = family{
	version: securitygroup.IPv4, icmp: securitygroup.ICMP, number: number,
	of:          func(_ fabric.Network, four netip.Addr) netip.Addr { return four },
	hasOptions:  "@nh,0,8 != 0x45",
	isLater:     "@nh,48,16 & 0x1fff != 0x0", // a fragment without the ports
	isFragment:  "@nh,48,16 & 0x3fff != 0x0", // "more fragments", or an offset
	isICMP:      "@nh,72,8 0x1",
	isTCP:       "@nh,72,8 0x6",
	hasPorts:    "@nh,72,8 { 0x6, 0x11 }",
	hasReplies:  "@nh,72,8 { 0x1, 0x6, 0x11 }",
	isToMany:    "@nh,128,8 0xe0-0xff",                  // multicast and the broadcast address
	isOpening:   "@nh,72,8 0x6 @nh,264,8 & 0x12 == 0x2", // SYN without ACK
	isPassing:   "@nh,264,8 & 0x7 == 0x0",               // none of SYN, FIN and RST
	isClosing:   "@nh,264,8 & 0x5 != 0x0",               // FIN or RST
	isEcho:      "@nh,160,8 0x8",
	isNoEcho:    "@nh,160,8 != 0x8",
	isEchoReply: "@nh,160,8 0x0",
	isUnreached: "@nh,160,8 0x3",
	isError:     "@nh,160,8 { 0x3, 0xb, 0xc }", // destination unreachable, time exceeded, parameter problem
	quotedStart: "@nh,224,8 0x45",
	quotesICMP:  "@nh,296,8 0x1",
	quotesEcho:  "@nh,296,8 0x1 @nh,384,8 0x8",
}.complete(fields{
	source: "@nh,96,32", destination: "@nh,128,32", protocol: "@nh,72,8", sourcePort: "@nh,160,16", targetPort: "@nh,176,16",
	message: "@nh,160,16", identifier: "@nh,192,16", // type and code of a message, and the identifier of an echo
	quotedSource: "@nh,320,32", quotedDestination: "@nh,352,32", quotedProtocol: "@nh,296,8",
	quotedSourcePort: "@nh,384,16", quotedTargetPort: "@nh,400,16", quotedIdentifier: "@nh,416,16",
})

// ipv6 is by the numbers of RFC 8200 and 4443. The pins drop extension headers, but for that of fragments: it comes first, so no fragment shows ports
// where rules look, and all of them count as later ones.
var ipv6 = family{
	version: securitygroup.IPv6, suffix: "6", icmp: securitygroup.ICMP6, number: number6,
	of:          fabric.Network.Address6Of,
	hasOptions:  "@nh,48,8 { 0x0, 0x2b, 0x33, 0x3c, 0x87, 0x8b-0x8c }",
	isLater:     "@nh,48,8 0x2c",
	isFragment:  "@nh,48,8 0x2c",
	isICMP:      "@nh,48,8 0x3a",
	isTCP:       "@nh,48,8 0x6",
	hasPorts:    "@nh,48,8 { 0x6, 0x11 }",
	hasReplies:  "@nh,48,8 { 0x6, 0x11, 0x3a }",
	isToMany:    "@nh,192,8 0xff", // multicast (RFC 4291, section 2.7)
	isOpening:   "@nh,48,8 0x6 @nh,424,8 & 0x12 == 0x2",
	isPassing:   "@nh,424,8 & 0x7 == 0x0",
	isClosing:   "@nh,424,8 & 0x5 != 0x0",
	isEcho:      "@nh,320,8 0x80",
	isNoEcho:    "@nh,320,8 != 0x80",
	isEchoReply: "@nh,320,8 0x81",
	isUnreached: "@nh,320,8 0x1",
	isError:     "@nh,320,8 0x1-0x4", // unreachable, packet too big, time exceeded, parameter problem
	quotedStart: "@nh,384,8 & 0xf0 == 0x60",
	quotesICMP:  "@nh,432,8 0x3a",
	quotesEcho:  "@nh,432,8 0x3a @nh,704,8 0x80",
}.complete(fields{
	source: "@nh,64,128", destination: "@nh,192,128", protocol: "@nh,48,8", sourcePort: "@nh,320,16", targetPort: "@nh,336,16",
	message: "@nh,320,16", identifier: "@nh,352,16",
	quotedSource: "@nh,448,128", quotedDestination: "@nh,576,128", quotedProtocol: "@nh,432,8",
	quotedSourcePort: "@nh,704,16", quotedTargetPort: "@nh,720,16", quotedIdentifier: "@nh,736,16",
})

// familiesOf returns the families of a network's packets.
func familiesOf(n fabric.Network) []*family {
	if n.HasIPv6() {
		return []*family{&ipv4, &ipv6}
	}
	return []*family{&ipv4}
}

// tail ends the names of the port's sets and chains.
func (g guard) tail() string { return g.suffix + "_" + g.name }

// betweenAddresses writes a range of addresses.
func (f *family) betweenAddresses(a securitygroup.Addresses) string {
	if a.First == a.Last {
		return f.number(a.First)
	}
	return f.number(a.First) + "-" + f.number(a.Last)
}

// beforeRules are the rules for what needs no rule: ARP, and neighbour discovery, which is pinned where it was sent.
func (g guard) beforeRules() []string {
	if g.version == securitygroup.IPv6 {
		return []string{"@nh,48,8 0x3a @nh,320,8 0x87-0x88 accept"}
	}
	return []string{"meta protocol != ip goto other" + g.tail()}
}

// fromNode are the rules for what the node answers: only the node sends from the port of DHCP servers (RFC 2131).
func (g guard) fromNode() []string {
	if g.version == securitygroup.IPv6 {
		return nil
	}
	return []string{"@nh,72,8 0x11 @nh,160,32 0x430044 accept"}
}

// toNode are the rules for questions to the node, for names.
func (g guard) toNode() []string {
	if g.version == securitygroup.IPv6 {
		return nil
	}
	return []string{"@nh,72,8 0x11 @nh,176,16 0x35 " + g.destination + " " + number(g.network.Gateway) + " goto note" + g.tail()}
}

// fromMember are the rules for what a member may not send under its own address either. The pins of IPv6 drop such packets before.
func (g guard) fromMember() []string {
	if g.version == securitygroup.IPv6 {
		return nil
	}
	return []string{fromMember}
}

// addWays adds what leads from and to the port, and its chains and sets. A port without groups needs no ways of IPv6.
func (g guard) addWays(can bool, parts map[string]string, sets map[string][]string) {
	into, out := "accept", "goto pinned"
	if len(g.groups) > 0 {
		into, out = "drop", "drop"
	}
	if can && len(g.groups) > 0 {
		into, out = "goto in"+g.tail(), "goto out"+g.tail()
		g.addChains(parts)
		g.addSets(parts)
	}
	if g.version == securitygroup.IPv4 {
		sets["guards_in"] = append(sets["guards_in"], fmt.Sprintf("%q : %s", g.name, into))
		sets["guards_out"] = append(sets["guards_out"], fmt.Sprintf("%q . %s . ip . %s : %s", g.name, fabric.NormalMAC(g.port.MAC), number(g.port.Address), out))
	} else if len(g.groups) > 0 {
		sets["guards6_in"] = append(sets["guards6_in"], fmt.Sprintf("%q : %s", g.name, into))
		sets["guards6_out"] = append(sets["guards6_out"], fmt.Sprintf("%q : %s", g.name, out))
	}
}
