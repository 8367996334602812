package packettrace

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// FollowOut follows a packet from a port to an address that no member has, and the answer of who has it.
func FollowOut(from End, to netip.Addr, p Packet) Path {
	way := walk{from: from, to: End{Member: to.String(), Port: fabric.Port{Address: to}}, packet: p, six: to.Is6()}
	hops := until(way.port, way.pins, way.groupsOut)
	if !Passes(hops) {
		return Path{Request: hops}
	}
	if hop, ends := way.within(); ends {
		return Path{Request: append(hops, hop)}
	}
	hops = append(hops, until(way.leaves, way.egress, way.translated)...)
	path := Path{Request: hops}
	if Passes(hops) && p.answered() {
		path.Reply = way.comesBack()
	}
	return path
}

// within is where a packet ends that does not leave the networks of the project.
func (w walk) within() (hop Hop, ends bool) {
	n, to, p := w.from.Network, w.to.Port.Address, w.packet
	hop = Hop{Node: w.from.Node, Place: Bridge}
	switch {
	case to.Is6() && n.HasIPv6() && n.Prefix6.Contains(to):
		hop.Detail = fmt.Sprintf("no port of the network has %v", to)
	case to.Is6():
		hop.Detail = fmt.Sprintf("%v is outside of the network, and IPv6 stays within it", to)
	case to == n.Gateway && p.Protocol == securitygroup.UDP && (p.Port == 53 || p.Port == 67):
		return Hop{w.from.Node, NodeItself, true, fmt.Sprintf("%v is the gateway, where the node answers DHCP and DNS", to)}, true
	case to == n.Gateway:
		hop.Detail = fmt.Sprintf("%v is the gateway, where the node answers nothing but DHCP and DNS", to)
	case n.Prefix.Contains(to):
		hop.Detail = fmt.Sprintf("no port of the network has %v", to)
	case n.Routed && (fabric.Connected(n.Network, w.from.Beyond.Network) && w.from.Beyond.Prefix.Contains(to)):
		return Hop{w.from.Node, Routing, false, fmt.Sprintf("no member of subnet %v has %v, so the node refuses the packet (host unreachable)", w.from.Beyond.Prefix, to)}, true
	case n.Routed && n.Pool.Contains(to):
		return Hop{w.from.Node, Routing, false, fmt.Sprintf("no member on a routed network of the project has %v", to)}, true
	default:
		return hop, false
	}
	return hop, true
}

// leaves is the hop of a packet to the outside to the stack of the sender's node.
func (w walk) leaves() Hop {
	text := fmt.Sprintf("%v is outside of subnet %v", w.to.Port.Address, w.from.Network.Prefix)
	if !w.from.Network.Egress {
		return Hop{w.from.Node, Bridge, false, text + ", and the network has no egress"}
	}
	return Hop{w.from.Node, Bridge, true, fmt.Sprintf("%s: to the gateway %v, which is this node", text, w.from.Network.Gateway)}
}

// egress is what the rules of the way out say: the site's own ranges first, then what the operator opened, then private ranges. Floating addresses
// are open wherever they are.
func (w walk) egress() Hop {
	to := w.to.Port.Address
	in := func(ranges []netip.Prefix) (netip.Prefix, bool) {
		i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(to) })
		if i < 0 {
			return netip.Prefix{}, false
		}
		return ranges[i], true
	}
	hop := Hop{Node: w.from.Node, Place: Egress}
	if to == w.from.Underlay {
		hop.Detail = fmt.Sprintf("%v is an address of the node, which members don't reach", to)
		return hop
	}
	if p, ok := in(w.from.Network.FloatingPool); ok {
		hop.Passes, hop.Detail = true, fmt.Sprintf("%v is in the site's floating pool, %v", to, p)
		return hop
	}
	if p, ok := in(fabric.ProtectedRanges()); ok {
		hop.Detail = fmt.Sprintf("%v is in %v, which egress never leads to: the node refuses or drops the packet", to, p)
		return hop
	}
	if p, ok := in(w.from.Network.Open); ok {
		hop.Passes, hop.Detail = true, fmt.Sprintf("%v is in %v, which the site opened (--egress-open), unless it is on the nodes' underlay", to, p)
		return hop
	}
	if p, ok := in(fabric.PrivateRanges()); ok {
		hop.Detail = fmt.Sprintf("%v is in the private range %v, which the site has not opened (--egress-open): the node refuses the packet (administratively prohibited)", to, p)
		return hop
	}
	hop.Passes, hop.Detail = true, fmt.Sprintf("%v is outside of the site, unless it is on the nodes' underlay", to)
	return hop
}

// source is the address that the sender has outside, and what it is.
func (w walk) source() (address netip.Addr, what string) {
	if own := w.from.Network.FloatingOf(w.from.Port.ID); own.IsValid() {
		return own, fmt.Sprintf("%v, the floating address of %s", own, w.from.Member)
	}
	return w.from.Underlay, "that of the node on its uplink"
}

// translated is the hop that gives the packet an address of the outside.
func (w walk) translated() Hop {
	_, what := w.source()
	return Hop{w.from.Node, Translation, true, fmt.Sprintf("the source becomes %s; then out by the uplink", what)}
}

// comesBack is the way of an answer from outside, to what a member sent.
func (w walk) comesBack() []Hop {
	back := walk{from: w.to, to: w.from, packet: w.packet}
	known := func() Hop {
		return Hop{w.from.Node, Translation, true, fmt.Sprintf("answer to a packet of %s: the target becomes %v", w.from.Member, w.from.Port.Address)}
	}
	return until(known, back.answerIn, back.arrival)
}
