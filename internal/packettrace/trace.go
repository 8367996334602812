// Package packettrace follows the first packet of a connection hop by hop, and names the rule that lets the packet pass or stops it: between two
// ports of a network or of two routed ones (Follow), to the outside (FollowOut), and to a floating address (FollowIn, FollowFloating).
//
// The package is pure. It evaluates the desired networks of both nodes, and never the kernel: an audit reports whether the kernel differs.
// It repeats what package fabric/plan renders as rules; tests of package fabric/node compare both by real packets. Start with Follow.
package packettrace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// End is a port at one end of a path.
type End struct {
	// Member is the name of the port's member, for texts.
	Member string
	Port   fabric.Port
	// Node is the name of the port's node, and Underlay its tunnel end point.
	Node     string
	Underlay netip.Addr
	// Network is the network as the node should have it.
	Network fabric.Network
	// Beyond is the network at the packet's other end as this node should have it, if it is another network. It is zero if the node should not
	// have it.
	Beyond fabric.Network
}

// Packet is the first packet of a connection, whole and without IP options.
type Packet struct {
	Protocol securitygroup.Protocol
	// Port is the destination port, or the type of an ICMP message.
	Port uint16
}

// String writes the packet as rules do.
func (p Packet) String() string { return fmt.Sprintf("%s %d", p.Protocol, p.Port) }

// Hop is one place on the way of a packet.
type Hop struct {
	Node   string
	Place  Place
	Passes bool
	// Detail is why the packet passes or is stopped.
	Detail string
}

// Place is what a packet passes on a node.
type Place string

// The places, in the order of a packet's way to a port on another node.
const (
	SenderPort   Place = "sender's port"
	Pins         Place = "pins"
	GroupsOut    Place = "security groups (out)"
	Bridge       Place = "bridge"
	Routing      Place = "routing"
	Tunnel       Place = "tunnel"
	TunnelPins   Place = "pins of the tunnel"
	GroupsIn     Place = "security groups (in)"
	ReceiverPort Place = "receiver's port"
	NodeItself   Place = "node"
	Egress       Place = "egress"
	Uplink       Place = "uplink"
	Translation  Place = "address translation"
)

// maxRulesListed is how many rules a text lists.
const maxRulesListed = 8

// Path is the way of a packet and of the answer to it. A packet that doesn't pass ends with the hop that stops it.
type Path struct {
	Request []Hop
	// Reply is nil if the request is stopped, and for messages that have no answer.
	Reply []Hop
}

// Passes reports whether a packet passes all hops.
func Passes(hops []Hop) bool {
	return len(hops) > 0 && !slices.ContainsFunc(hops, func(h Hop) bool { return !h.Passes })
}

// echoRequest is the ICMP message that has an answer (RFC 792).
const echoRequest = 8

// Follow follows a packet from one port to another, and the answer.
func Follow(from, to End, p Packet) Path { return follow(walk{from: from, to: to, packet: p}) }

// Follow6 is Follow for a packet between the IPv6 addresses of the ports.
func Follow6(from, to End, p Packet) Path {
	return follow(walk{from: from, to: to, packet: p, six: true})
}

func follow(way walk) Path {
	from, to, p := way.from, way.to, way.packet
	path := Path{Request: way.hops(false)}
	if Passes(path.Request) && p.answered() {
		back := walk{from: to, to: from, packet: p, six: way.six}
		path.Reply = back.hops(true)
	}
	return path
}

// walk is one packet on its way. An answer bears the ports of the packet the other way round.
type walk struct {
	from, to End
	packet   Packet
	// six: the packet is one of IPv6.
	six bool
}

// hops returns the hops of the packet, or of the answer to it.
func (w walk) hops(answer bool) []Hop {
	out, in := w.groupsOut, w.groupsIn
	if answer {
		out, in = w.answerOut, w.answerIn
	}
	way := []func() Hop{w.port, w.pins, out, w.bridge}
	if w.routed() {
		way = []func() Hop{w.port, w.pins, out, w.gateway, w.routing}
	}
	if w.from.Node != w.to.Node {
		way = append(way, w.tunnel, w.tunnelPins)
	}
	return until(append(way, in, w.arrival)...)
}

// until returns the hops up to the first that stops the packet.
func until(places ...func() Hop) []Hop {
	var hops []Hop
	for _, place := range places {
		hop := place()
		hops = append(hops, hop)
		if !hop.Passes {
			break
		}
	}
	return hops
}

// pinned reports whether a node should have the port of an end, and what is wrong if not.
func pinned(e End) error {
	i := slices.IndexFunc(e.Network.Ports, func(p fabric.Port) bool { return p.ID == e.Port.ID })
	if i < 0 {
		return fmt.Errorf("node %s is not to have the port of %s now", e.Node, e.Member)
	}
	if p := e.Network.Ports[i]; p.Address != e.Port.Address || fabric.NormalMAC(p.MAC) != fabric.NormalMAC(e.Port.MAC) {
		return fmt.Errorf("node %s pins the port of %s to %v and %s", e.Node, e.Member, p.Address, p.MAC)
	}
	return nil
}

func (w walk) port() Hop {
	if err := pinned(w.from); err != nil {
		return Hop{w.from.Node, SenderPort, false, err.Error()}
	}
	return Hop{w.from.Node, SenderPort, true, w.from.Member}
}

func (w walk) pins() Hop {
	if problem := w.unpinned6(); problem != "" {
		return Hop{w.from.Node, Pins, false, problem}
	}
	return Hop{w.from.Node, Pins, true, fmt.Sprintf("source %v and %s", w.addressOf(w.from), fabric.NormalMAC(w.from.Port.MAC))}
}

func (w walk) bridge() Hop {
	hop := Hop{Node: w.from.Node, Place: Bridge}
	if w.from.Node == w.to.Node {
		if err := pinned(w.to); err != nil {
			hop.Detail = err.Error()
			return hop
		}
		hop.Passes, hop.Detail = true, w.to.Member+" is on this node"
		return hop
	}
	mac := fabric.NormalMAC(w.to.Port.MAC)
	known := func(r fabric.Remote) bool { return fabric.NormalMAC(r.MAC) == mac }
	if !slices.ContainsFunc(w.from.Network.Remotes, known) {
		hop.Detail = fmt.Sprintf("%s is neither on this node nor a member on another node that it knows", w.to.Member)
		return hop
	}
	hop.Passes, hop.Detail = true, fmt.Sprintf("%s is on node %s", w.to.Member, w.to.Node)
	return hop
}

func (w walk) tunnel() Hop {
	network := w.carrier()
	peers := network.Peers()
	if !slices.Contains(peers, w.to.Underlay) {
		return Hop{w.from.Node, Tunnel, false, fmt.Sprintf("%s (%v) is not a peer of this node; its peers: %v", w.to.Node, w.to.Underlay, peers)}
	}
	if network.OnVLAN() {
		return Hop{w.from.Node, Tunnel, true, fmt.Sprintf("VLAN %d, by the trunks of %s and %s", network.VLAN, w.from.Node, w.to.Node)}
	}
	return Hop{w.from.Node, Tunnel, true, fmt.Sprintf("VXLAN %d from %v to %v", network.Index, w.from.Underlay, w.to.Underlay)}
}

func (w walk) tunnelPins() Hop {
	if w.routed() {
		return w.routedPins()
	}
	from := fabric.Remote{Peer: w.from.Underlay, Address: w.from.Port.Address, MAC: fabric.NormalMAC(w.from.Port.MAC)}
	behind := func(r fabric.Remote) bool { r.MAC, r.Key = fabric.NormalMAC(r.MAC), ""; return r == from }
	text := fmt.Sprintf("%s behind %s: source %v and %s from %v", w.from.Member, w.from.Node, w.addressOf(w.from), from.MAC, from.Peer)
	if !slices.ContainsFunc(w.to.Network.Remotes, behind) {
		return Hop{w.to.Node, TunnelPins, false, fmt.Sprintf("this node does not know %s", text)}
	}
	return Hop{w.to.Node, TunnelPins, true, text}
}

func (w walk) arrival() Hop {
	if err := pinned(w.to); err != nil {
		return Hop{w.to.Node, ReceiverPort, false, err.Error()}
	}
	return Hop{w.to.Node, ReceiverPort, true, w.to.Member}
}

// sentence writes a list of rules.
func sentence(rules []string) string {
	if len(rules) == 0 {
		return "there are none for this direction"
	}
	if more := len(rules) - maxRulesListed; more > 0 {
		rules = append(slices.Clone(rules[:maxRulesListed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(rules, "; ")
}
