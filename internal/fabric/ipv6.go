package fabric

import (
	"net"
	"net/netip"
)

// LinkLocal returns the IPv6 link-local address that follows from a MAC address (RFC 4291, appendix A). It is not valid for what is no MAC address.
func LinkLocal(mac string) netip.Addr {
	m, err := net.ParseMAC(mac)
	if err != nil || len(m) != 6 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// Address6Of returns the IPv6 address of the member with this IPv4 address, as api.Network does.
func (n Network) Address6Of(address netip.Addr) netip.Addr { return n.Address6(address) }
