package plan

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// A network on a VLAN has a sub-interface of the node's trunk on its bridge in place of a tunnel (decision 065). The bridge's rules hold what comes
// from there to the members that live elsewhere, as the pins of tunnels do on the underlay. A gateway's bridge has both.

// vlanLink returns the sub-interface that a network needs on this node, if any.
func vlanLink(cfg Config, n fabric.Network, mtu int, seen Observed) ([]Link, error) {
	vid := n.VID()
	switch {
	case vid == 0:
		return nil, nil
	case cfg.Trunk == "":
		return nil, fmt.Errorf("network %d needs VLAN %d, but this node has no trunk: restart its agent with --trunk-interface", n.Index, vid)
	case seen.TrunkMTU == 0:
		return nil, fmt.Errorf("network %d needs VLAN %d, but this node has no link %s, which its agent's --trunk-interface names", n.Index, vid, cfg.Trunk)
	case seen.TrunkMTU < mtu:
		return nil, fmt.Errorf("network %d needs packets of %d bytes on VLAN %d, but trunk %s has an MTU of %d bytes: raise it, or create the network with a smaller --mtu",
			n.Index, mtu, vid, cfg.Trunk, seen.TrunkMTU)
	}
	return []Link{{
		Name: VLANName(n.Index), Kind: KindVLAN, MTU: mtu, Master: BridgeName(n.Index), Up: true, VID: vid, Trunk: cfg.Trunk, MulticastRouter: true, Filters: standbysOf(n),
	}}, nil
}

// standbysOf returns the MAC addresses of the members here that have a standby, in order.
func standbysOf(n fabric.Network) []string {
	var macs []string
	for _, p := range n.Ports {
		if p.Standby {
			macs = append(macs, fabric.NormalMAC(p.MAC))
		}
	}
	slices.Sort(macs)
	return macs
}

// addVLANElements adds who is reached over the VLAN of a network, and who may be heard from there.
func addVLANElements(n fabric.Network, bridge map[string][]string) {
	if n.VID() == 0 {
		return
	}
	name := VLANName(n.Index)
	bridge["anycast"] = append(bridge["anycast"], fmt.Sprintf("%q . %s", name, n.Gateway))
	for _, m := range n.VLANMembers() {
		bridge["pins"] = append(bridge["pins"], fmt.Sprintf("%q . %s . %s", name, m.MAC, m.Address))
		bridge["remotes"] = append(bridge["remotes"], fmt.Sprintf("%q . %s", name, m.MAC))
	}
}

// vlanMembers are who is reached over the VLAN that a network has on this node.
func vlanMembers(n fabric.Network) []fabric.VLANMember {
	if n.VID() == 0 {
		return nil
	}
	return n.VLANMembers()
}

// CarrierMTU returns the MTU of what carries a network between nodes, in bytes: the trunk for a VLAN, else the underlay.
func CarrierMTU(n fabric.Network, underlayMTU, trunkMTU int) int {
	if n.OnVLAN() {
		return trunkMTU
	}
	return underlayMTU
}

func carrierMTU(n fabric.Network, seen Observed) int {
	return CarrierMTU(n, seen.UnderlayMTU, seen.TrunkMTU)
}
