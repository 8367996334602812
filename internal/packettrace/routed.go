package packettrace

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// routed reports whether the ends are on two networks.
func (w walk) routed() bool { return w.from.Network.Index != w.to.Network.Index }

// carrier is the network that brings the packet to the receiver, as the sender's node has it.
func (w walk) carrier() fabric.Network {
	if w.routed() {
		return w.from.Beyond
	}
	return w.from.Network
}

// gateway is the hop from the sender's network to the stack of the sender's node.
func (w walk) gateway() Hop {
	n := w.from.Network
	text := fmt.Sprintf("%v is outside of subnet %v", w.to.Port.Address, n.Prefix)
	switch {
	case w.six:
		return Hop{w.from.Node, Bridge, false, fmt.Sprintf("%v is outside of the network, and IPv6 stays within it", w.addressOf(w.to))}
	case !n.Routed:
		return Hop{w.from.Node, Bridge, false, text + ", and the network is not routed"}
	default:
		return Hop{w.from.Node, Bridge, true, fmt.Sprintf("%s: to the gateway %v, which is this node", text, n.Gateway)}
	}
}

// routing is what the stack of the sender's node does with a packet to a member of another network.
func (w walk) routing() Hop {
	here, there := w.from.Network, w.from.Beyond
	hop := Hop{Node: w.from.Node, Place: Routing}
	switch {
	case there.Index == 0:
		hop.Detail = fmt.Sprintf("this node is not to have the network of %s now", w.to.Member)
		return hop
	case !fabric.Connected(here.Network, there.Network):
		hop.Detail = fmt.Sprintf("packets are not routed from subnet %v to %v: both have to be routed networks of one project", here.Prefix, there.Prefix)
		return hop
	}
	to, where := w.to.Port, "on this node"
	known := false
	if w.from.Node == w.to.Node {
		if err := pinned(End{Member: w.to.Member, Port: to, Node: w.to.Node, Network: there}); err != nil {
			hop.Detail = err.Error()
			return hop
		}
		known = true
	} else {
		where = "on node " + w.to.Node
		known = slices.ContainsFunc(there.Remotes, func(r fabric.Remote) bool {
			return r.Address == to.Address && fabric.NormalMAC(r.MAC) == fabric.NormalMAC(to.MAC)
		})
	}
	if !known {
		hop.Detail = fmt.Sprintf("this node knows no member with %v, so it refuses the packet (host unreachable)", to.Address)
		return hop
	}
	hop.Passes, hop.Detail = true, fmt.Sprintf("from subnet %v to %v, where %s is %s", here.Prefix, there.Prefix, w.to.Member, where)
	return hop
}

// routedPins are those of frames that the sender's node has routed into the tunnel of the receiver's network.
func (w walk) routedPins() Hop {
	hop := Hop{Node: w.to.Node, Place: TunnelPins}
	router := fabric.RouterMAC(w.from.Underlay)
	text := fmt.Sprintf("%s behind %s: source %v and %s, the router of %v", w.from.Member, w.from.Node, w.from.Port.Address, router, w.from.Underlay)
	behind := func(r fabric.Remote) bool { return r.Peer == w.from.Underlay && r.Address == w.from.Port.Address }
	if !fabric.Connected(w.to.Network.Network, w.to.Beyond.Network) || !slices.ContainsFunc(w.to.Beyond.Remotes, behind) {
		hop.Detail = "this node does not know " + text
		return hop
	}
	hop.Passes, hop.Detail = true, text
	return hop
}
