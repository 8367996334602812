package api

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
)

// GroupNetwork is a network on which each member of a group has a port. As text it is the network's name alone where that says it all.
type GroupNetwork struct {
	// Name is NAME for a further private network of the cluster, or project/NAME for one of the cluster's project.
	Name string `json:"name"`
	// Address is the fixed address of the group's only member on a network of the project, "" for any. Only a group of one member without spares
	// can have some. A replacement of the member gets the same address, once the lost member is proved clean.
	Address string `json:"address,omitempty"`
	// SecurityGroups are the security groups of the ports, by their names in the cluster's project. Ports without one are not restricted.
	SecurityGroups []string `json:"security_groups,omitempty"`
	// Interface is what each port is: veth, virtio, macvtap, vf or pf. "" is veth for containers and virtio for virtual machines.
	Interface Interface `json:"interface,omitempty"`
	// Adapter narrows the adapters whose functions the ports are on. It is for the interfaces vf, pf and macvtap.
	Adapter DeviceChoice `json:"adapter,omitzero"`
	// Standby gives each virtual machine a para-virtual interface with the MAC address of its virtual function, which carries the traffic while the
	// machine has no function: while it is saved, restored or moved. It is for the interface vf on a VLAN.
	Standby bool `json:"standby,omitempty"`
	// Limited gives the ports limited membership of an InfiniBand partition: they reach full members only.
	Limited bool `json:"limited,omitempty"`
	// Quality is the quality of service of each of the ports.
	Quality
}

// Interface is what a member's port is, as users write it.
type Interface string

// The interfaces that users can ask for.
const (
	InterfaceVeth    Interface = "veth"
	InterfaceVirtio  Interface = "virtio"
	InterfaceMACVTAP Interface = "macvtap"
	InterfaceVF      Interface = "vf"
	InterfacePF      Interface = "pf"
)

// String writes the network on one line: NAME=ADDRESS:INTERFACE,standby,KEY=VALUE:limited[GROUP,GROUP](MIN-MAX dscp N), without what is not chosen.
func (n GroupNetwork) String() string {
	text := n.Name
	if n.Address != "" {
		text += "=" + n.Address
	}
	if n.Interface != "" {
		text += ":" + n.InterfaceText()
	}
	if n.Limited {
		text += ":limited"
	}
	if len(n.SecurityGroups) > 0 {
		text += "[" + strings.Join(n.SecurityGroups, ",") + "]"
	}
	if quality := n.QualityText(); quality != "" {
		text += "(" + quality + ")"
	}
	return text
}

// InterfaceText writes what each port is, as users do: KIND,standby,KEY=VALUE, without what is not chosen; "" where nothing is.
func (n GroupNetwork) InterfaceText() string {
	words := []string{string(n.Interface)}
	if n.Standby {
		words = append(words, ChoiceStandby)
	}
	return strings.Join(append(words, n.Adapter.Pairs()...), ",")
}

// ChoiceStandby follows the kind of a port that has a standby.
const ChoiceStandby = "standby"

// OnNetworks returns networks of a group by their names alone.
func OnNetworks(names ...string) []GroupNetwork {
	networks := make([]GroupNetwork, len(names))
	for i, name := range names {
		networks[i].Name = name
	}
	return networks
}

// groupNetwork is a GroupNetwork that is always written in full.
type groupNetwork GroupNetwork

// MarshalJSON writes the name alone if nothing else is chosen.
func (n GroupNetwork) MarshalJSON() ([]byte, error) {
	if n.Address == "" && len(n.SecurityGroups) == 0 && n.Interface == "" && n.Adapter == (DeviceChoice{}) && !n.Standby && !n.Limited && n.Quality == (Quality{}) {
		return json.Marshal(n.Name)
	}
	return json.Marshal(groupNetwork(n))
}

// UnmarshalJSON reads a name, or an object.
func (n *GroupNetwork) UnmarshalJSON(text []byte) error {
	*n = GroupNetwork{}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte(`"`)) {
		return json.Unmarshal(text, &n.Name)
	}
	return json.Unmarshal(text, (*groupNetwork)(n))
}

// Network returns the entry of a group for a network, by the name that the group writes, and whether it has one.
func (g *Group) Network(name string) (GroupNetwork, bool) {
	for _, n := range g.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return GroupNetwork{}, false
}

// FixedAddress returns the address that the group's member has to have on a network; not valid if any address will do.
func (g *Group) FixedAddress(network string) netip.Addr {
	n, _ := g.Network(network)
	a, _ := netip.ParseAddr(n.Address)
	return a
}

// HasFixedAddress reports whether the group's member has to have an address on any network.
func (g *Group) HasFixedAddress() bool {
	return slices.ContainsFunc(g.Networks, func(n GroupNetwork) bool { return n.Address != "" })
}

// SecurityGroupsOf returns the names of the security groups that groups name for their ports, each once, in the order in which they are first
// named.
func SecurityGroupsOf(groups []Group) []string {
	var names []string
	seen := map[string]bool{}
	for i := range groups {
		for _, n := range groups[i].Networks {
			for _, name := range n.SecurityGroups {
				if !seen[name] {
					seen[name], names = true, append(names, name)
				}
			}
		}
	}
	return names
}
