package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// VLANSide is the VLAN that a gateway joins to a network of tunnels; the zero value is none. To all other nodes of the network, the machines on the
// VLAN are Remotes behind the gateway, so their own kernels are never a tunnel's end.
type VLANSide struct {
	// VID is the VLAN ID.
	VID int `json:"vid"`
	// Machines are registered on the VLAN. Frames are exchanged with these and no others.
	Machines []VLANMember `json:"machines,omitempty"`
}

// VLANMember is a member of a network that is reached over a VLAN.
type VLANMember struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
}

// OnVLAN reports whether nodes exchange the network's frames over a VLAN, and not over tunnels.
func (n Network) OnVLAN() bool { return n.Technology == api.TechnologyVLAN }

// VID returns the ID of the VLAN that the network has on this node, 0 for none.
func (n Network) VID() int {
	switch {
	case n.OnVLAN() && len(n.Remotes) > 0:
		return n.VLAN
	case n.OnVLAN():
		return 0
	default:
		return n.Side.VID
	}
}

// VLANMembers returns which members are reached over the network's VLAN, each once, in order. No frame says which node sent it to a VLAN, so the
// members of all other nodes are one set.
func (n Network) VLANMembers() []VLANMember {
	var members []VLANMember
	if n.OnVLAN() {
		for _, r := range n.Remotes {
			members = append(members, VLANMember{Address: r.Address, MAC: NormalMAC(r.MAC)})
		}
	} else {
		for _, m := range n.Side.Machines {
			members = append(members, VLANMember{Address: m.Address, MAC: NormalMAC(m.MAC)})
		}
	}
	slices.SortFunc(members, func(a, b VLANMember) int { return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.MAC, b.MAC)) })
	return slices.Compact(members)
}

// validateVLANs checks the VLANs of networks: IDs in range, each for one network, and nothing that needs tunnels on them.
func validateVLANs(networks []Network) error {
	networkOf := map[int]int{}
	for _, n := range networks {
		vid := n.Side.VID
		switch {
		case !n.OnVLAN() && n.VLAN != 0:
			return fmt.Errorf("network %d has VLAN %d, but its technology is %q", n.Index, n.VLAN, n.Technology)
		case n.OnVLAN() && vid != 0:
			return fmt.Errorf("network %d is on VLAN %d, and can't have VLAN %d at its side", n.Index, n.VLAN, vid)
		case n.OnVLAN() && n.Routed:
			return fmt.Errorf("network %d is on VLAN %d, and can't be routed: a VLAN does not tell which node's router sent a frame", n.Index, n.VLAN)
		case n.OnVLAN() && n.Encrypted:
			return fmt.Errorf("network %d is on VLAN %d, and can't be encrypted: WireGuard carries tunnels only", n.Index, n.VLAN)
		case n.OnVLAN():
			vid = n.VLAN
		case vid == 0 && len(n.Side.Machines) > 0:
			return fmt.Errorf("network %d has machines on a VLAN without an ID", n.Index)
		case vid == 0:
			continue
		}
		if vid < api.MinVLAN || vid > api.MaxVLAN {
			return fmt.Errorf("network %d: VLAN %d is out of range: it must be %d to %d", n.Index, vid, api.MinVLAN, api.MaxVLAN)
		}
		if other, taken := networkOf[vid]; taken {
			return fmt.Errorf("network %d: VLAN %d is also that of network %d", n.Index, vid, other)
		}
		networkOf[vid] = n.Index
		if err := validateSide(n); err != nil {
			return err
		}
	}
	return nil
}

// validateSide checks the machines on the VLAN at a network's side. None is a member elsewhere.
func validateSide(n Network) error {
	seen := map[any]bool{n.Gateway: true}
	for _, p := range n.Ports {
		seen[p.Address], seen[NormalMAC(p.MAC)] = true, true
	}
	for _, r := range n.Remotes {
		seen[r.Address], seen[NormalMAC(r.MAC)] = true, true
	}
	for _, m := range n.Side.Machines {
		mac, ok := unicastMAC(m.MAC)
		if !ok {
			return fmt.Errorf("network %d: MAC %q of machine %v on VLAN %d is not a unicast Ethernet address", n.Index, m.MAC, m.Address, n.Side.VID)
		}
		if !n.Prefix.Contains(m.Address) {
			return fmt.Errorf("network %d: address %v of a machine on VLAN %d is not in subnet %v", n.Index, m.Address, n.Side.VID, n.Prefix)
		}
		for _, name := range []any{m.Address, mac} {
			if seen[name] {
				return fmt.Errorf("network %d: %v of a machine on VLAN %d is also that of another member, or the gateway's", n.Index, name, n.Side.VID)
			}
			seen[name] = true
		}
	}
	return nil
}
