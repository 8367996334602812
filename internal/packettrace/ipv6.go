package packettrace

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// echoRequest6 is the ICMPv6 message that has an answer (RFC 4443).
const echoRequest6 = 128

// isICMP reports whether the packet is a message of ICMP, of either family.
func (p Packet) isICMP() bool {
	return p.Protocol == securitygroup.ICMP || p.Protocol == securitygroup.ICMP6
}

// answered reports whether there is an answer to the packet.
func (p Packet) answered() bool {
	switch p.Protocol {
	case securitygroup.ICMP:
		return p.Port == echoRequest
	case securitygroup.ICMP6:
		return p.Port == echoRequest6
	default:
		return true
	}
}

// addressOf is the address of an end in the packet's family.
func (w walk) addressOf(e End) netip.Addr {
	if !w.six || e.Port.Address.Is6() {
		return e.Port.Address
	}
	if own := e.Network.Address6(e.Port.Address); own.IsValid() {
		return own
	}
	return w.from.Network.Address6(e.Port.Address)
}

// unpinned6 is why the pins drop a packet of IPv6, whoever sends it; "" if they don't.
func (w walk) unpinned6() string {
	message := w.packet.Port
	switch {
	case !w.six:
		return ""
	case !w.from.Network.HasIPv6():
		return "the network has no IPv6"
	case w.packet.Protocol == securitygroup.UDP && w.packet.Port == 546:
		return "members must not answer DHCP"
	case w.packet.Protocol != securitygroup.ICMP6 || message >= 1 && message <= 4 || message == echoRequest6 || message == 129:
		return ""
	case message == 135 || message == 136:
		return fmt.Sprintf("messages of neighbour discovery (%d) pass if they are about the member's own address; a trace does not know what they are about", message)
	default:
		return fmt.Sprintf("members send errors, echoes and neighbour discovery by ICMPv6, and nothing else (%d)", message)
	}
}
