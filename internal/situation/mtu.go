package situation

import (
	"cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// portMTU returns what the networks of a group ask of a node's underlay, the most of those whose MTU was chosen, and of its trunk. Only a
// project's can, and the cluster's own where that is a VLAN.
func portMTU(view *state.View, intent *api.ClusterIntent, g *api.Group, encrypted bool) api.PortMTU {
	if g.Stack == api.StackMetal {
		return switched(view, intent, g)
	}
	var most api.PortMTU
	if intent.Spec.TechnologyOf("") == api.TechnologyVLAN && (g.Standby || !g.Interface.OnFunction()) {
		_, own := tenancy.Split(intent.Name)
		most.VLAN, most.TrunkBytes = own, 1
	}
	for _, on := range g.Networks {
		own, joined := api.CutProjectNetwork(on.Name)
		if !joined {
			continue
		}
		in := view.NetworkIntent(state.NetworkIntentName(intent.Project, own))
		if on.Interface.OnFunction() && !on.Standby {
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

// switched is portMTU for members with whole nodes: their own ports are on the VLANs, and no trunk of an agent.
func switched(view *state.View, intent *api.ClusterIntent, g *api.Group) api.PortMTU {
	var need api.PortMTU
	if intent.Spec.TechnologyOf("") == api.TechnologyVLAN {
		_, need.VLAN = tenancy.Split(intent.Name)
		need.Switched++
	}
	for _, on := range g.Networks {
		own, joined := api.CutProjectNetwork(on.Name)
		in := view.NetworkIntent(state.NetworkIntentName(intent.Project, own))
		if joined && in != nil && in.Technology == api.TechnologyVLAN {
			need.VLAN = cmp.Or(need.VLAN, on.Name)
			need.Switched++
		}
	}
	return need
}
