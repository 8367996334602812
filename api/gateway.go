package api

import (
	"net/netip"
	"slices"
)

// HasGateway reports whether members reach more than the network by its gateway. A group is on one such network of its project at most.
func (n *Network) HasGateway() bool { return n.Egress || n.Routed }

// HasGateway reports whether members will reach more than the network by its gateway.
func (n *NetworkIntent) HasGateway() bool { return n.Egress || n.Routed }

// WayOut returns which of a member's networks has its default route: the project's network with egress, else the cluster's own if that has
// egress. It returns -1 if the member has no way out. The order of the networks does not matter.
func WayOut(networks []Network) int {
	project := slices.IndexFunc(networks, func(n Network) bool { return n.Egress && n.OfProject() })
	if project >= 0 {
		return project
	}
	return slices.IndexFunc(networks, func(n Network) bool { return n.Egress })
}

// GatewayRoutes returns what a member reaches through the gateway of the i-th of its networks, the default route last.
func GatewayRoutes(networks []Network, i int) []netip.Prefix {
	var routes []netip.Prefix
	if n := networks[i]; n.Routed && n.Pool.IsValid() {
		routes = append(routes, n.Pool)
	}
	if i == WayOut(networks) {
		routes = append(routes, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	}
	return routes
}
