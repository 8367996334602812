package fabric

import (
	"net/netip"
	"slices"
)

// Tenants is the range that the subnets of networks are cut from, unless the site has a pool of its own.
func Tenants() netip.Prefix { return netip.MustParsePrefix("10.64.0.0/10") }

// ProtectedRanges returns what egress never leads to, whatever the site opens: subnets of networks, the node itself, and link-local addresses
// (RFC 3927), where clouds keep their metadata services. A node adds its underlay.
func ProtectedRanges() []netip.Prefix {
	return []netip.Prefix{Tenants(), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16")}
}

// PrivateRanges returns what doesn't lead to the world, so that members reach it only where the operator opens it: the special-purpose addresses
// that are not globally reachable (RFC 6890), without those for documentation, which lead nowhere.
func PrivateRanges() []netip.Prefix {
	var ranges []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
		"198.18.0.0/15", "224.0.0.0/3",
	} {
		ranges = append(ranges, netip.MustParsePrefix(text))
	}
	return ranges
}

// FloatingOf returns the floating address that a port has for all that it sends outside, not valid for none.
func (n Network) FloatingOf(portID string) netip.Addr {
	i := slices.IndexFunc(n.Floating, func(f Floating) bool { return f.Port == portID && len(f.Forwards) == 0 })
	if i < 0 {
		return netip.Addr{}
	}
	return n.Floating[i].Address
}
