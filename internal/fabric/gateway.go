package fabric

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
)

// Router names the router that connects a network with others, the same on all of them: that of its project. It is empty for a network that is
// not routed.
func Router(n api.Network) string {
	if !n.Routed {
		return ""
	}
	return "router of project " + n.Project
}

// Connected reports whether packets are routed between two networks.
func Connected(a, b api.Network) bool {
	return a.Index != b.Index && a.Routed && Router(a) == Router(b)
}

// RouterMAC returns the source MAC address of frames that a node has routed, by the node's underlay address. No link has it: all nodes have the same
// address at their bridges, and a bridge warns of frames that come from its own. Its first octet keeps it apart from other addresses.
func RouterMAC(node netip.Addr) string {
	a := node.As4()
	return fmt.Sprintf("0a:%02x:%02x:%02x:%02x:%02x", 'n', a[0], a[1], a[2], a[3])
}

// GatewayRoutes returns what the member at a port reaches through the gateway of the port's network. All networks of the member are among
// networks.
func GatewayRoutes(networks []Network, portID string) []netip.Prefix {
	var of []api.Network
	at := -1
	for _, n := range networks {
		for _, p := range n.Ports {
			if AssignmentOf(p.ID) != AssignmentOf(portID) {
				continue
			}
			if p.ID == portID {
				at = len(of)
			}
			of = append(of, n.Network)
		}
	}
	if at < 0 {
		return nil
	}
	return api.GatewayRoutes(of, at)
}
