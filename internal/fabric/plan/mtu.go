package plan

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// MTU returns the MTU of a network's links. It is the same on every node of a network: it was chosen, or it follows from the network and the
// underlay alone. All routed networks without a chosen one have room for tunnels. Towards a network with a smaller one, the sender's node answers
// packets that are too large by ICMP (RFC 1191).
func MTU(n fabric.Network, underlayMTU int) int {
	switch {
	case n.MTU != 0:
		return n.MTU
	case n.OnVLAN() && underlayMTU > 0:
		return underlayMTU // also while all members are on one node: VLANs have no overhead that others would notice
	case len(n.Remotes) == 0 && n.Side.VID == 0 && (!n.Routed || underlayMTU < leastUnderlay(n)):
		return api.MaxMTU
	default:
		return underlayMTU - n.OverheadBytes()
	}
}

// leastUnderlay is the smallest MTU of an underlay that carries a network between nodes.
func leastUnderlay(n fabric.Network) int { return n.SmallestMTU() + n.OverheadBytes() }

// shortcutMTU returns which packets skip a tunnel's device. What an underlay that shrank has no room for is left to the device, which cuts it.
func shortcutMTU(n fabric.Network, underlayMTU int) int {
	return min(MTU(n, underlayMTU), underlayMTU-n.OverheadBytes())
}

// narrow lists the networks with ports here whose chosen MTU the underlay has no room for. A node without an underlay carries no network to others.
func narrow(networks []fabric.Network, seen Observed) []fabric.Drift {
	var all []fabric.Drift
	for _, n := range networks {
		need, has := n.MTU+n.OverheadBytes(), carrierMTU(n, seen)
		if n.MTU == 0 || len(n.Ports) == 0 || has == 0 || has >= need {
			continue
		}
		object, want := "MTU of the underlay", fmt.Sprintf("at least %d, for %d in a tunnel", need, n.MTU)
		if n.OnVLAN() {
			object, want = "MTU of the trunk", fmt.Sprintf("at least %d", need)
		}
		all = append(all, fabric.Drift{Network: n.Index, Object: object, Want: want, Got: fmt.Sprint(has)})
	}
	return all
}
