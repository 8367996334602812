package fabric

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// OnFunction reports whether the port is on a function of an adapter, and not on a bridge.
func (p Port) OnFunction() bool { return p.Function != Function{} }

// OnInfiniBand reports whether the network is a partition of an InfiniBand fabric, of which no node's kernel makes anything.
func (n Network) OnInfiniBand() bool { return n.Technology == api.TechnologyInfiniBand }

// OnBridges returns what of networks nodes make on bridges. Ports on functions of adapters are not among it: to the bridge of their VLAN, their
// members are reached over that VLAN, as if on another node. Those with a standby are both, like members that move: the bridge sends to where it heard
// them last. Networks with no other ports here, and those on InfiniBand, are left out.
func OnBridges(networks []Network) []Network {
	elsewhere := func(n Network) bool { return n.OnInfiniBand() || slices.ContainsFunc(n.Ports, Port.OnFunction) }
	if !slices.ContainsFunc(networks, elsewhere) {
		return networks
	}
	var all []Network
	for _, n := range networks {
		if !elsewhere(n) {
			all = append(all, n)
			continue
		}
		var ports []Port
		remotes := slices.Clone(n.Remotes)
		for _, p := range n.Ports {
			if p.OnFunction() {
				remotes = append(remotes, Remote{Address: p.Address, MAC: p.MAC})
			}
			if !p.OnFunction() || p.Standby {
				p.Function = Function{}
				ports = append(ports, p)
			}
		}
		if n.OnInfiniBand() || len(ports) == 0 {
			continue
		}
		n.Ports, n.Remotes = ports, remotes
		all = append(all, n)
	}
	return all
}

// validateFunctions checks which ports are on functions: all of a partition, and on a VLAN those that say so. A part of an adapter is one port's.
func validateFunctions(networks []Network) error {
	holders := map[string]string{}
	for _, n := range networks {
		for _, p := range n.Ports {
			f := p.Function
			switch {
			case n.OnInfiniBand() && !p.OnFunction():
				return fmt.Errorf("network %d is on InfiniBand, which can't be bridged, and port %s is on no function of an adapter", n.Index, p.ID)
			case p.Standby && (f.Kind != api.PortVF || !n.OnVLAN()):
				return fmt.Errorf("network %d: port %s has a standby, and is of kind %q on technology %q; only virtual functions on VLANs have some", n.Index, p.ID, f.Kind, n.Technology)
			case !p.OnFunction():
				continue
			case !n.OnInfiniBand() && !n.OnVLAN():
				return fmt.Errorf("network %d: port %s is on a function of adapter %s, and those can't be on a network of technology %q", n.Index, p.ID, f.Device, n.Technology)
			case f.Device == "":
				return fmt.Errorf("network %d: port %s is on a function of no adapter", n.Index, p.ID)
			case f.Part == "" != (f.Kind == api.PortPF):
				return fmt.Errorf("network %d: port %s of kind %s has part %q of adapter %s", n.Index, p.ID, f.Kind, f.Part, f.Device)
			case n.OnInfiniBand() && f.GUID == "":
				return fmt.Errorf("network %d: port %s is on InfiniBand and has no GUID", n.Index, p.ID)
			}
			part := f.Device + " " + f.Part
			if other, held := holders[part]; held {
				return fmt.Errorf("network %d: port %s is on %s, as is port %s", n.Index, p.ID, part, other)
			}
			holders[part] = p.ID
		}
	}
	return nil
}

// FunctionMTU is the MTU of ports that are functions: that which was chosen for the network, or what its technology has by itself. An InfiniBand
// packet has 4 octets less for IP (RFC 4391, section 6). A connection has the most that Linux takes (IPOIB_CM_MTU in its ipoib.h).
func FunctionMTU(n api.Network) int {
	const ethernet, infiniband, header, connected = 1500, 2048, 4, 65520
	switch {
	case n.Technology == api.TechnologyInfiniBand && n.Partition.IPoIBMode == api.IPoIBConnected:
		return cmp.Or(n.MTU, connected)
	case n.Technology == api.TechnologyInfiniBand:
		return cmp.Or(n.MTU, cmp.Or(n.Partition.MTUBytes, infiniband)-header)
	}
	return cmp.Or(n.MTU, ethernet)
}
