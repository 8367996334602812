package api

import "fmt"

// The bounds of an MTU that a network can be given, in bytes.
const (
	// MinMTU is the size of IPv4 packets that each host takes (RFC 791).
	MinMTU = 576
	// minMTU6 is the smallest MTU of a link with IPv6 (RFC 8200, section 5).
	minMTU6 = 1280
	// MaxMTU is what the devices of members carry: the largest frame less the Ethernet header (linux/if_tun.h counts it in).
	MaxMTU = 65535 - 14
)

// vxlanOverheadBytes is RFC 7348, section 5: outer IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14.
const vxlanOverheadBytes = 50

// CipherOverheadBytes is what WireGuard takes of the underlay's packets: outer IPv4 20, UDP 8, header 16, tag 16.
const CipherOverheadBytes = 60

// OverheadBytes returns what carrying a member's packet between nodes adds to it on the underlay. All that compare an MTU with an underlay ask here.
func (n *Network) OverheadBytes() int {
	if n.Technology == TechnologyVLAN || n.Technology == TechnologyInfiniBand {
		return 0 // the MTU of a trunk does not count the tag, and no packet of a partition is on the underlay
	}
	return vxlanOverheadBytes
}

// SmallestMTU returns the smallest MTU that the network can be given.
func (n *Network) SmallestMTU() int {
	if n.HasIPv6() {
		return minMTU6
	}
	return MinMTU
}

// MTUProblem returns why no network like this one can have an MTU, whatever nodes carry; "" if one can. 0, for the nodes' choice, is no MTU.
func (n *Network) MTUProblem(mtu int) string {
	switch smallest := n.SmallestMTU(); {
	case mtu < smallest:
		return fmt.Sprintf("%d bytes is below %d, the smallest MTU of a network", mtu, smallest)
	case mtu > MaxMTU:
		return fmt.Sprintf("%d bytes is above %d, the largest MTU of a network", mtu, MaxMTU)
	}
	return ""
}

// PortMTU is the largest MTU that was chosen for a network of a group: nodes without it can't have the group's members. The zero value is none.
type PortMTU struct {
	// Network is the name that the group writes.
	Network string
	// Bytes is the network's MTU, UnderlayBytes what that takes of a node's underlay.
	Bytes, UnderlayBytes int
	// VLAN is a network on a VLAN that the group writes, and TrunkBytes the largest MTU that was chosen for one; a node needs a trunk for it.
	VLAN       string
	TrunkBytes int
	// Switched is how many networks on VLANs the group's members are in by ports of switches that are managed, each by one.
	Switched int
}
