package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// ErrNotApplied reports that the port is not in the networks last applied. Apply the networks that contain the port first.
var ErrNotApplied = errors.New("the port is not in the networks that were last applied to this node")

// ErrNoNetwork reports that the network is not among those last applied.
var ErrNoNetwork = errors.New("the network is not among those that were last applied to this node")

// MaxIndex is the highest network index; indexes start at 1.
const MaxIndex = 1<<16 - 1

// Validate reports what is wrong with a set of networks before anything is done about it: an index out of range or used twice, a
// subnet that overlaps another's, a port or a remote outside of its subnet, an identity used twice, a security group or a quality of service that can't be enforced as
// written, a floating address that leads nowhere.
func Validate(networks []Network) error {
	indexes := map[int]bool{}
	ids := map[string]int{}
	floating := map[netip.Addr]int{}
	for i, n := range networks {
		if n.Index < 1 || n.Index > MaxIndex {
			return fmt.Errorf("network index %d is out of range: it must be 1 to %d", n.Index, MaxIndex)
		}
		if indexes[n.Index] {
			return fmt.Errorf("network %d appears twice", n.Index)
		}
		indexes[n.Index] = true
		if !n.Prefix.IsValid() || !n.Prefix.Addr().Is4() || n.Prefix != n.Prefix.Masked() {
			return fmt.Errorf("network %d: subnet %v is not an IPv4 prefix without host bits", n.Index, n.Prefix)
		}
		if !n.Prefix.Contains(n.Gateway) {
			return fmt.Errorf("network %d: gateway %v is not in subnet %v", n.Index, n.Gateway, n.Prefix)
		}
		if n.HasIPv6() && (!n.Prefix6.Addr().Is6() || n.Prefix6.Bits() != api.Prefix6Bits || n.Prefix6 != n.Prefix6.Masked()) {
			return fmt.Errorf("network %d: subnet %v is not an IPv6 prefix of length %d without host bits", n.Index, n.Prefix6, api.Prefix6Bits)
		}
		for _, other := range networks[:i] {
			if n.HasIPv6() && n.Prefix6 == other.Prefix6 {
				return fmt.Errorf("network %d: IPv6 subnet %v is also that of network %d", n.Index, n.Prefix6, other.Index)
			}
			if other.Prefix.Overlaps(n.Prefix) {
				return fmt.Errorf("network %d: subnet %v overlaps subnet %v of network %d", n.Index, n.Prefix, other.Prefix, other.Index)
			}
		}
		if err := validatePorts(n, ids); err != nil {
			return err
		}
		if err := validateRemotes(n); err != nil {
			return err
		}
		if err := validateGroups(n); err != nil {
			return err
		}
		if err := validateFloating(n, floating); err != nil {
			return err
		}
	}
	if err := validateEncryption(networks); err != nil {
		return err
	}
	if err := validateVLANs(networks); err != nil {
		return err
	}
	if err := validateFunctions(networks); err != nil {
		return err
	}
	return validateQuality(networks)
}

// validatePorts checks the ports of one network; ids are the port IDs seen so far in all networks.
func validatePorts(n Network, ids map[string]int) error {
	addresses := map[netip.Addr]string{n.Gateway: "the gateway"}
	macs := map[string]string{}
	for _, p := range n.Ports {
		if other, ok := ids[p.ID]; ok || p.ID == "" {
			return fmt.Errorf("network %d: port ID %q is empty or also in network %d", n.Index, p.ID, other)
		}
		ids[p.ID] = n.Index
		if !n.Prefix.Contains(p.Address) {
			return fmt.Errorf("network %d: address %v of port %s is not in subnet %v", n.Index, p.Address, p.ID, n.Prefix)
		}
		if other, ok := addresses[p.Address]; ok {
			return fmt.Errorf("network %d: address %v of port %s is also that of %s", n.Index, p.Address, p.ID, other)
		}
		addresses[p.Address] = p.ID
		mac, ok := unicastMAC(p.MAC)
		if !ok {
			return fmt.Errorf("network %d: MAC %q of port %s is not a unicast Ethernet address", n.Index, p.MAC, p.ID)
		}
		if other, ok := macs[mac]; ok {
			return fmt.Errorf("network %d: MAC %s of port %s is also that of %s", n.Index, p.MAC, p.ID, other)
		}
		macs[mac] = p.ID
	}
	return nil
}

// validateRemotes checks the members of one network on other nodes. A member that moves has its address and MAC behind two peers for a while.
func validateRemotes(n Network) error {
	type identity struct {
		peer netip.Addr
		name any // address or MAC
	}
	seen := map[identity]bool{}
	for _, r := range n.Remotes {
		if !r.Peer.Is4() {
			return fmt.Errorf("network %d: peer %v of member %v is not an IPv4 address", n.Index, r.Peer, r.Address)
		}
		if !n.Prefix.Contains(r.Address) || r.Address == n.Gateway {
			return fmt.Errorf("network %d: address %v of a member behind peer %v is not in subnet %v, or is the gateway's", n.Index, r.Address, r.Peer, n.Prefix)
		}
		mac, ok := unicastMAC(r.MAC)
		if !ok {
			return fmt.Errorf("network %d: MAC %q of member %v behind peer %v is not a unicast Ethernet address", n.Index, r.MAC, r.Address, r.Peer)
		}
		for _, name := range []any{r.Address, mac} {
			if seen[identity{r.Peer, name}] {
				return fmt.Errorf("network %d: %v appears twice behind peer %v", n.Index, name, r.Peer)
			}
			seen[identity{r.Peer, name}] = true
		}
	}
	return nil
}

// unicastMAC returns a MAC address as the kernel's tools write it, and whether it is one that a member may have.
func unicastMAC(s string) (string, bool) {
	mac, err := net.ParseMAC(s)
	return mac.String(), err == nil && len(mac) == 6 && mac[0]&1 == 0
}

// NormalMAC writes a MAC address as the kernel's tools do. One that does not parse stays as it is: Validate refuses it.
func NormalMAC(s string) string {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return s
	}
	return mac.String()
}

// FindPort returns the network that has the port. It returns ErrNotApplied, with what differs, unless port is among the networks
// exactly as it is there.
func FindPort(networks []Network, port Port) (Network, error) {
	for _, n := range networks {
		for _, p := range n.Ports {
			if p.ID != port.ID {
				continue
			}
			if p != port {
				return Network{}, fmt.Errorf("%w: they have %s for it, not %s", ErrNotApplied, p.identity(), port.identity())
			}
			return n, nil
		}
	}
	return Network{}, fmt.Errorf("%w: no network of them has port %s", ErrNotApplied, port.ID)
}

// BridgePrefix begins the names of the bridges of networks.
const BridgePrefix = "nmbr"

// BridgeName returns the name of a network's bridge on each node.
func BridgeName(index int) string { return BridgePrefix + strconv.Itoa(index) }

// GatewayMAC returns the MAC address of a network's gateway, the same on every node, so that a member's gateway is always its own node's. Its
// first octet (locally administered, IEEE 802c) keeps it apart from members' addresses.
func GatewayMAC(index int) string {
	return fmt.Sprintf("06:%02x:%02x:%02x:%02x:01", 'n', 'm', byte(index>>8), byte(index))
}
