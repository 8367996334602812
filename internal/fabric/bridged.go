package fabric

import (
	"cmp"

	"github.com/nearmetal/nearmetal/api"
)

// Bridged returns networks as far as the node's bridges carry them: without the ports that are functions of adapters, and without networks that have
// only those here. A partition of InfiniBand is on no bridge.
func Bridged(networks []Network) []Network {
	var bridged []Network
	for _, n := range networks {
		if n.Technology == api.TechnologyInfiniBand {
			continue
		}
		all := len(n.Ports)
		var ports []Port
		for _, p := range n.Ports {
			if !p.IsFunction() {
				ports = append(ports, p)
			}
		}
		if len(ports) == 0 && all > 0 {
			continue
		}
		if len(ports) < all {
			n.Ports = ports
		}
		bridged = append(bridged, n)
	}
	return bridged
}

// FunctionMTU is the MTU of ports that are functions: that which was chosen for the network, or what its technology has by itself. An InfiniBand
// packet has 4 octets less for IP (RFC 4391, section 6).
func FunctionMTU(n api.Network) int {
	const ethernet, infiniband, header = 1500, 2048, 4
	if n.Technology == api.TechnologyInfiniBand {
		return cmp.Or(n.MTU, cmp.Or(n.Partition.MTUBytes, infiniband)-header)
	}
	return cmp.Or(n.MTU, ethernet)
}
