package api

import "slices"

// The classes of devices that ports are on.
const (
	ClassNIC = "nic" // a port of an Ethernet adapter
	ClassHCA = "hca" // a port of an InfiniBand adapter
)

// CounterVF counts the virtual functions of an adapter's port. A part that takes one has its name in DeviceClaim.Part.
const CounterVF = "vf"

// OnFunction reports whether ports of this interface are on a function of an adapter, so that their packets pass no bridge of the node.
func (i Interface) OnFunction() bool {
	return i == InterfaceVF || i == InterfacePF || i == InterfaceMACVTAP
}

// PortKind returns the kind of a port on a function of an adapter.
func (i Interface) PortKind() PortKind {
	switch i {
	case InterfaceVF:
		return PortVF
	case InterfacePF:
		return PortPF
	default:
		return PortMACVTAP
	}
}

// Interfaces lists the interfaces that users can ask for.
func Interfaces() []Interface {
	return []Interface{InterfaceVeth, InterfaceVirtio, InterfaceMACVTAP, InterfaceVF, InterfacePF}
}

// HasFunctions reports whether the ports of the group's members are on functions of adapters, on any network.
func (g *Group) HasFunctions() bool { return len(g.Functions()) > 0 }

// Functions returns the networks of the group on which its members' ports are on functions of adapters, in their order. The cluster's own is the
// first, and has no name.
func (g *Group) Functions() []GroupNetwork {
	var on []GroupNetwork
	if g.Interface.OnFunction() {
		on = append(on, g.OwnNetwork())
	}
	for _, n := range g.Networks {
		if n.Interface.OnFunction() {
			on = append(on, n)
		}
	}
	return on
}

// OwnNetwork returns what the group's ports on the cluster's own network are. That network has no name.
func (g *Group) OwnNetwork() GroupNetwork {
	return GroupNetwork{Interface: g.Interface, Adapter: g.Adapter, Standby: g.Standby}
}

// FunctionRequest returns the device that each member of a group needs for its port on a network of this technology and cell.
func FunctionRequest(on GroupNetwork, technology Technology, cell string) DeviceRequest {
	class := ClassNIC
	if technology == TechnologyInfiniBand {
		class = ClassHCA
	}
	return DeviceRequest{Class: class, Way: string(on.Interface), Count: 1, Cell: cell, DeviceChoice: on.Adapter}
}

// OnFunction reports whether the port is on a function of an adapter, which a DeviceClaim names. Ports of whole nodes are the node's own, and have none.
func (p *PortClaim) OnFunction(whole bool) bool {
	return !whole && (p.Kind == PortVF || p.Kind == PortPF || p.Kind == PortMACVTAP)
}

// LetGo returns the ports of a member that is on disk: on no adapter any more. The GUID of a virtual function is the member's own, so its fabric still
// keeps it in its network. That of a whole port is the adapter's: the fabric is to prove it clean, for what the second result has of such ports.
func (a *Assignment) LetGo() (ports, fenced []PortClaim) {
	ports = slices.Clone(a.Ports)
	for i := range ports {
		p := &ports[i]
		if !p.OnFunction(a.Whole) {
			continue
		}
		if p.Kind == PortPF && p.Fabric != "" {
			fenced = append(fenced, *p)
			p.GUID, p.Fabric, p.At = "", "", ""
		}
		p.Device, p.Part = "", ""
	}
	return ports, fenced
}

// OnlyPorts reports whether all devices of a member's own node that it holds are what its ports are on.
func (a *Assignment) OnlyPorts() bool {
	return !slices.ContainsFunc(a.Devices, func(c DeviceClaim) bool {
		return !slices.ContainsFunc(a.Ports, func(p PortClaim) bool {
			return p.OnFunction(a.Whole) && p.Device == c.Device && p.Part == c.Part
		})
	})
}

// FabricNumber returns the number by which fabrics know the network: its partition key, its VLAN, or its index.
func (n *Network) FabricNumber() int {
	switch n.Technology {
	case TechnologyInfiniBand:
		return n.PKey
	case TechnologyVLAN:
		return n.VLAN
	default:
		return n.Index
	}
}
