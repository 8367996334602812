package situation

import (
	"cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// portMTU returns what the networks of a group ask of a node's underlay, the most of those whose MTU was chosen, and of its trunk. Only a
// project's can.
func portMTU(view *state.View, project string, networks []api.GroupNetwork, encrypted bool) api.PortMTU {
	var most api.PortMTU
	for _, on := range networks {
		own, joined := api.CutProjectNetwork(on.Name)
		if !joined {
			continue
		}
		in := view.NetworkIntent(state.NetworkIntentName(project, own))
		if on.Interface.OnFunction() {
			continue // the adapter carries its packets, not the node
		}
		if in != nil && in.Technology == api.TechnologyVLAN {
			most.VLAN, most.TrunkBytes = cmp.Or(most.VLAN, on.Name), max(most.TrunkBytes, in.MTU, 1)
			continue
		}
		if in == nil || in.MTU == 0 {
			continue
		}
		n := api.Network{Technology: api.TechnologyVXLAN, MTU: in.MTU}
		need := n.MTU + n.OverheadBytes()
		if encrypted {
			need += api.CipherOverheadBytes
		}
		if need > most.UnderlayBytes {
			most.Network, most.Bytes, most.UnderlayBytes = on.Name, n.MTU, need
		}
	}
	return most
}
