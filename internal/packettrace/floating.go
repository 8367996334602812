package packettrace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// FollowIn follows a packet from an address outside of the site to a floating address that leads to a port, and the answer of its member.
func FollowIn(from netip.Addr, to End, floating netip.Addr, p Packet) Path {
	in := arrival{to: to, address: floating, packet: p, source: from, who: from.String()}
	hops := until(in.uplink, in.translated, in.genuine)
	return in.followed(hops, nil)
}

// FollowFloating follows a packet from a port to a floating address that leads to a port of the same project, and the answer.
func FollowFloating(from, to End, floating netip.Addr, p Packet) Path {
	out := walk{from: from, to: End{Member: floating.String(), Port: fabric.Port{Address: floating}}, packet: p}
	source, what := out.source()
	in := arrival{to: to, address: floating, packet: p, source: source, who: from.Member}
	places := []func() Hop{out.port, out.pins, out.groupsOut, out.leaves}
	if from.Node == to.Node {
		if from.Network.FloatingOf(from.Port.ID) != source { // the node itself calls
			in.source, what = to.Network.Gateway, fmt.Sprintf("%v, the gateway of the receiver's network", to.Network.Gateway)
		}
		back := func() Hop {
			return Hop{from.Node, Translation, true, fmt.Sprintf("the member is on this node, and the answer has to come back here: the source becomes %s", what)}
		}
		places = append(places, in.translated, back)
	} else {
		places = append(places, out.egress, out.translated, in.uplink, in.translated, in.genuine)
	}
	back := out.comesBack
	return in.followed(until(places...), back)
}

// arrival is a packet that comes to a floating address.
type arrival struct {
	to      End
	address netip.Addr
	packet  Packet
	// source is the packet's source as the member sees it, and who is behind it, for texts.
	source netip.Addr
	who    string
}

// inner is the packet as the member gets it, and whether the address leads it there.
func (a arrival) inner() (inner Packet, f fabric.Floating, leads bool) {
	i := slices.IndexFunc(a.to.Network.Floating, func(f fabric.Floating) bool { return f.Address == a.address && f.Port == a.to.Port.ID })
	if i < 0 {
		return a.packet, f, false
	}
	f = a.to.Network.Floating[i]
	if len(f.Forwards) == 0 {
		return a.packet, f, true
	}
	at := slices.IndexFunc(f.Forwards, func(w fabric.Forward) bool {
		return securitygroup.Protocol(w.Protocol) == a.packet.Protocol && w.Port == a.packet.Port
	})
	if at < 0 {
		return a.packet, f, false
	}
	return Packet{a.packet.Protocol, f.Forwards[at].MemberPort}, f, true
}

// uplink is where the node of the member takes packets for the address.
func (a arrival) uplink() Hop {
	if _, f, _ := a.inner(); !f.Address.IsValid() {
		return Hop{a.to.Node, Uplink, false, fmt.Sprintf("node %s is not to have %v for %s now", a.to.Node, a.address, a.to.Member)}
	}
	return Hop{a.to.Node, Uplink, true, fmt.Sprintf("%v is on the node that has %s", a.address, a.to.Member)}
}

// translated leads the packet to the member, by the address or by one of its forwarded ports.
func (a arrival) translated() Hop {
	inner, f, leads := a.inner()
	var ports []string
	for _, w := range f.Forwards {
		ports = append(ports, w.String())
	}
	switch list := strings.Join(ports, ", "); {
	case !f.Address.IsValid():
		return Hop{a.to.Node, Translation, false, fmt.Sprintf("node %s is not to have %v for %s now", a.to.Node, a.address, a.to.Member)}
	case !leads:
		return Hop{a.to.Node, Translation, false, fmt.Sprintf("%v leads to %s by these ports only: %s", a.address, a.to.Member, list)}
	case len(ports) > 0:
		return Hop{a.to.Node, Translation, true, fmt.Sprintf("the target becomes %v, %v, by the forwarded ports %s", a.to.Port.Address, inner, list)}
	default:
		return Hop{a.to.Node, Translation, true, fmt.Sprintf("the target %v becomes %v, one to one", a.address, a.to.Port.Address)}
	}
}

// genuine stops what pretends to be a member.
func (a arrival) genuine() Hop {
	for _, tenants := range []netip.Prefix{fabric.Tenants(), a.to.Network.Prefix} {
		if tenants.Contains(a.source) {
			return Hop{a.to.Node, Routing, false, fmt.Sprintf("nobody outside bears an address of members, and %v is in %v", a.source, tenants)}
		}
	}
	return Hop{a.to.Node, Routing, true, fmt.Sprintf("to subnet %v, from %v outside, within the project's share of connections", a.to.Network.Prefix, a.source)}
}

// followed adds the hops to the member, and those of its answer; onward are the hops of the answer beyond the member's node.
func (a arrival) followed(hops []Hop, onward func() []Hop) Path {
	inner, _, _ := a.inner()
	w := walk{from: End{Member: a.who, Port: fabric.Port{Address: a.source}}, to: a.to, packet: inner}
	if Passes(hops) {
		hops = append(hops, until(w.groupsIn, w.arrival)...)
	}
	path := Path{Request: hops}
	if !Passes(hops) || !inner.answered() {
		return path
	}
	back := walk{from: a.to, to: w.from, packet: inner}
	restored := func() Hop {
		return Hop{a.to.Node, Translation, true, fmt.Sprintf("answer of %s: the source becomes %v again", a.to.Member, a.address)}
	}
	path.Reply = until(back.port, back.pins, back.answerOut, restored)
	if onward != nil && Passes(path.Reply) {
		path.Reply = append(path.Reply, onward()...)
	}
	return path
}
