package plan

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Networks with an IPv6 subnet need more rules (decision 067). The tables have them only if there are such networks: for all others, no rule
// changes, and IPv6 is dropped as before.
//
// One set pins ports and tunnels alike: link, MAC address and IPv6 address, both the member's own and its link-local one. Frames out of tunnels have
// passed the node's own table before, which binds the MAC address to the peer. Fields are raw offsets, so that one set serves the packet's source,
// the target of neighbour discovery and the link-layer address in its option (RFC 4861, section 4). Offsets are bits from the IPv6 header (RFC
// 8200): payload length at 32, next header at 48, source at 64, destination at 192. What follows the header begins at 320: an ICMPv6 message with
// its type, its target at 384 and its option at 512.
//
// Neighbour discovery is accepted only as it is written without extension headers and with one option at most: then the offsets hold. Packets with
// extension headers are dropped, but for two: fragments whose header comes first, and reports of multicast listeners (RFC 2710 and 3810) behind a
// router alert. The first fragment of an ICMPv6 message has to be an echo, and no fragment is neighbour discovery (RFC 6980); the
// first of UDP shows its ports.
const (
	pins6Set = `	set pins6 {
		typeof iifname . @ll,48,48 . @nh,64,128
	}
	map guards6_in {
		type ifname : verdict
	}
	map guards6_out {
		type ifname : verdict
	}
`
	prerouting6 = `		iifname "nmvx*" ether type ip6 goto member6
		iifname "nmvl*" ether type ip6 goto member6
`
	// fromPort6 comes behind the look-up that ends the way of most packets of IPv4.
	fromPort6 = `		ether type ip6 goto member6
`
	// output6 lets the node ask members for their multicast groups, and nothing else of IPv6.
	output6 = `		ether type ip6 goto asking6
`
	forward6 = `		ether type ip6 oifname vmap @guards6_in
`
	chains6 = `	chain member6 {
		@nh,48,8 0x3a goto icmp6
		@nh,48,8 0x2c goto fragment6
		@nh,48,8 0x0 @nh,320,16 0x3a00 @nh,384,8 { 0x83-0x84, 0x8f } goto report6
		@nh,48,8 { 0x0, 0x2b, 0x33, 0x3c, 0x87, 0x8b-0x8c } drop
		@nh,48,8 0x11 @nh,336,16 0x222 drop
		goto source6
	}
	chain source6 {
		iifname . @ll,48,48 . @nh,64,128 @pins6 goto pinned6
		drop
	}
	chain pinned6 {
		iifname vmap @guards6_out
		accept
	}
	chain fragment6 {
		@nh,336,16 & 0xfff8 != 0x0 @nh,320,8 { 0x6, 0x11, 0x3a } goto source6
		@nh,320,8 0x6 goto source6
		@nh,320,8 0x11 @nh,400,16 != 0x222 goto source6
		@nh,320,8 0x3a @nh,384,8 0x80-0x81 goto source6
		drop
	}
	chain icmp6 {
		@nh,320,8 { 0x1-0x4, 0x80-0x81 } goto source6
		@nh,320,8 0x87 @nh,64,128 0x0 goto duplicate6
		iifname . @ll,48,48 . @nh,64,128 != @pins6 drop
		@nh,320,8 0x87 @nh,32,16 0x18 accept
		@nh,320,8 0x87 @nh,32,16 0x20 @nh,512,16 0x101 iifname . @nh,528,48 . @nh,64,128 @pins6 accept
		@nh,320,8 0x88 @nh,352,8 & 0x80 == 0x0 goto advertise6
		drop
	}
	chain duplicate6 {
		iifname . @ll,48,48 . @nh,384,128 != @pins6 drop
		@nh,32,16 0x18 accept
		@nh,32,16 0x20 @nh,512,16 0xe01 accept
		drop
	}
	chain advertise6 {
		iifname . @ll,48,48 . @nh,384,128 != @pins6 drop
		@nh,32,16 0x18 accept
		@nh,32,16 0x20 @nh,512,16 0x201 iifname . @nh,528,48 . @nh,384,128 @pins6 accept
		drop
	}
	chain report6 {
		@nh,64,128 0x0 accept
		iifname . @ll,48,48 . @nh,64,128 @pins6 accept
		drop
	}
	chain asking6 {
		@nh,48,8 0x0 @nh,320,16 0x3a00 @nh,384,8 0x82 accept
		drop
	}
`
	// tunnelPins6 bind the MAC address of an IPv6 frame to the peer. The bridge's rules do the rest.
	tunnelPins6 = `		udp dport 4789 @th,224,16 0x86dd ip saddr . @th,96,24 . @th,176,48 @remotes6 accept
`
	remotes6Set = `	set remotes6 {
		typeof ip saddr . @th,96,24 . @th,176,48
	}
`
)

// number6 writes an IPv6 address as nft(8) prints one of a raw field.
func number6(address netip.Addr) string {
	six := address.As16()
	digits := strings.TrimLeft(hex.EncodeToString(six[:]), "0")
	if digits == "" {
		digits = "0"
	}
	return "0x" + digits
}

// normal6 writes a rule as it has to be loaded: nft(8) prints the source of a frame by its name, and then refuses that name beside raw fields.
func normal6(line string) string {
	return strings.ReplaceAll(line, "iifname . ether saddr . @nh,", "iifname . @ll,48,48 . @nh,")
}

// anyIPv6 reports whether a network has IPv6.
func anyIPv6(networks []fabric.Network) bool {
	return slices.ContainsFunc(networks, func(n fabric.Network) bool { return n.HasIPv6() })
}

// bridgeText returns the rules of bridges, with those for IPv6 if a network has it.
func bridgeText(networks []fabric.Network) string {
	if !anyIPv6(networks) {
		return bridgeRules
	}
	text := bridgeRules
	for _, part := range []struct{ before, insert string }{
		{"\tchain prerouting {", pins6Set},
		{"\t\tiifname \"nmp*\" goto member\n", prerouting6},
		{"\t\tether type 8021q drop\n\t\tether type 8021ad drop\n\t\tudp sport", fromPort6},
		{"\tchain input {", chains6},
		{"\t\toifname vmap @guards_in\n\t\toifname \"nmvx*\" goto leaving", forward6},
		{"\t\tip protocol 2 igmp type membership-query accept\n", output6},
	} {
		text = insertBefore(text, part.before, part.insert)
	}
	return text
}

// insertBefore inserts rules at the one place of a table's text that starts with these words. Any other number of such places is a mistake in the
// fixed texts: the rules would be in force where nobody expects them.
func insertBefore(text, place, rules string) string {
	before, after, _ := strings.Cut(text, place)
	if count := strings.Count(text, place); count != 1 {
		panic(fmt.Sprintf("rules for IPv6 belong before %q, which is in the text of the bridges' table %d times; want once", place, count))
	}
	return before + rules + place + after
}

// inetText returns rules of the node's own stack, with the pins of IPv6 frames out of tunnels if there are any. Their set is in inet then.
func inetText(text string, networks []fabric.Network, inet map[string][]string) string {
	inet6 := false
	for _, n := range networks {
		if !n.HasIPv6() || !hasTunnel(n, networks) {
			continue
		}
		if !inet6 {
			inet["remotes6"], inet6 = nil, true
		}
		for _, r := range n.Remotes {
			inet["remotes6"] = append(inet["remotes6"], fmt.Sprintf("%s . 0x%x . %s", r.Peer, n.Index, macNumber(r.MAC)))
		}
	}
	if !inet6 {
		return text
	}
	text = strings.Replace(text, "\tset vnis {", remotes6Set+"\tset vnis {", 1)
	return strings.Replace(text, tunnelPins, tunnelPins+tunnelPins6, 1)
}

// addPins6 adds what a network with IPv6 contributes to the sets of the bridges' table.
func addPins6(n fabric.Network, tunnel bool, bridge map[string][]string) {
	if !n.HasIPv6() {
		return
	}
	pin := func(link, mac string, address netip.Addr) {
		for _, a := range []netip.Addr{n.Address6(address), fabric.LinkLocal(mac)} {
			bridge["pins6"] = append(bridge["pins6"], fmt.Sprintf("%q . %s . %s", link, macNumber(mac), number6(a)))
		}
	}
	for _, p := range n.Ports {
		pin(PortName(p.ID), p.MAC, p.Address)
	}
	for _, m := range vlanMembers(n) {
		pin(VLANName(n.Index), m.MAC, m.Address)
	}
	if tunnel {
		for _, r := range n.Remotes {
			pin(TunnelName(n.Index), r.MAC, r.Address)
		}
	}
}

// querierOf is the address that the bridge of a network with IPv6 asks its ports from for their multicast groups (RFC 3810, section 5.1.14).
// Nothing else is sent from it, and nothing reaches it.
func querierOf(n fabric.Network) []netip.Prefix {
	if !n.HasIPv6() {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(fabric.LinkLocal(GatewayMAC(n.Index)), api.Prefix6Bits)}
}
