package fabric

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Floating is an address of the site's pool that leads from outside to a port on this node.
type Floating struct {
	Address netip.Addr `json:"address"`
	// Port is the ID of the port, one of the network's on this node.
	Port string `json:"port"`
	// Forwards are the only ports of the address that lead to the member. Empty: all packets do, and what the member sends outside bears the
	// address.
	Forwards []Forward `json:"forwards,omitempty"`
}

// Forward is one port of a floating address.
type Forward struct {
	// Protocol is tcp or udp.
	Protocol string `json:"protocol"`
	// Port is that of the address, MemberPort that of the member.
	Port       uint16 `json:"port"`
	MemberPort uint16 `json:"member_port"`
}

// DefaultConnections is how many tracked connections a project may have on a node if its networks say nothing else.
const DefaultConnections = 65536

// validateFloating checks the floating addresses of one network. Taken are those of other networks on this node.
func validateFloating(n Network, taken map[netip.Addr]int) error {
	if len(n.Floating) > 0 && !n.Egress {
		return fmt.Errorf("network %d has floating addresses and no egress", n.Index)
	}
	if n.Connections < 0 {
		return fmt.Errorf("network %d: a limit of %d connections is not possible", n.Index, n.Connections)
	}
	for _, p := range n.FloatingPool {
		if !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("network %d: floating pool %v is not an IPv4 prefix without host bits", n.Index, p)
		}
	}
	for _, p := range n.Open {
		if !p.Addr().Is4() || p != p.Masked() {
			return fmt.Errorf("network %d: open range %v is not an IPv4 prefix without host bits", n.Index, p)
		}
	}
	whole := map[string]netip.Addr{}
	for _, f := range n.Floating {
		if other, ok := taken[f.Address]; ok || !f.Address.Is4() {
			return fmt.Errorf("network %d: floating address %v is not IPv4, or appears also in network %d", n.Index, f.Address, other)
		}
		taken[f.Address] = n.Index
		if n.Prefix.Contains(f.Address) {
			return fmt.Errorf("network %d: floating address %v is in subnet %v", n.Index, f.Address, n.Prefix)
		}
		if !slices.ContainsFunc(n.Ports, func(p Port) bool { return p.ID == f.Port }) {
			return fmt.Errorf("network %d: floating address %v leads to port %q, which is not on this node", n.Index, f.Address, f.Port)
		}
		if other, ok := whole[f.Port]; ok && len(f.Forwards) == 0 {
			return fmt.Errorf("network %d: port %s has two floating addresses, %v and %v", n.Index, f.Port, other, f.Address)
		}
		if len(f.Forwards) == 0 {
			whole[f.Port] = f.Address
		}
		if err := f.validateForwards(); err != nil {
			return fmt.Errorf("network %d: floating address %v: %w", n.Index, f.Address, err)
		}
	}
	return nil
}

func (f Floating) validateForwards() error {
	type outer struct {
		protocol string
		port     uint16
	}
	seen := map[outer]bool{}
	for _, w := range f.Forwards {
		if w.Protocol != "tcp" && w.Protocol != "udp" || w.Port == 0 || w.MemberPort == 0 {
			return fmt.Errorf("port %s/%d=%d can't be forwarded", w.Protocol, w.Port, w.MemberPort)
		}
		if seen[outer{w.Protocol, w.Port}] {
			return fmt.Errorf("port %s/%d appears twice", w.Protocol, w.Port)
		}
		seen[outer{w.Protocol, w.Port}] = true
	}
	return nil
}

// PortWithID returns the port with an ID, and whether the network has it on this node.
func (n Network) PortWithID(id string) (Port, bool) {
	i := slices.IndexFunc(n.Ports, func(p Port) bool { return p.ID == id })
	if i < 0 {
		return Port{}, false
	}
	return n.Ports[i], true
}

// String writes the port as users do: tcp/2222=22.
func (f Forward) String() string { return fmt.Sprintf("%s/%d=%d", f.Protocol, f.Port, f.MemberPort) }

// Compare orders ports by protocol, then by number.
func (f Forward) Compare(other Forward) int {
	return cmp.Or(cmp.Compare(f.Protocol, other.Protocol), cmp.Compare(f.Port, other.Port), cmp.Compare(f.MemberPort, other.MemberPort))
}
