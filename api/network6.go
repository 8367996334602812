package api

import (
	"encoding/binary"
	"net/netip"
)

// Prefix6Bits is the length of the IPv6 subnets of networks (RFC 4291, section 2.5.4).
const Prefix6Bits = 64

// HasIPv6 reports whether members of a network have IPv6 addresses beside their IPv4 ones.
func (n *Network) HasIPv6() bool { return n.Prefix6.IsValid() }

// Address6 returns the IPv6 address of the member with this IPv4 address: the same number of a host in the IPv6 subnet. It is not valid on a
// network without IPv6, and for addresses outside of the network.
func (n *Network) Address6(address netip.Addr) netip.Addr {
	if !n.HasIPv6() || !n.Prefix.Contains(address) {
		return netip.Addr{}
	}
	base, own, six := n.Prefix.Masked().Addr().As4(), address.As4(), n.Prefix6.Masked().Addr().As16()
	binary.BigEndian.PutUint32(six[12:], binary.BigEndian.Uint32(own[:])-binary.BigEndian.Uint32(base[:]))
	return netip.AddrFrom16(six)
}
