package placement

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Pool6 is the IPv6 address space that networks with IPv6 get their subnets from, one for each index of a network. The zero value has none.
type Pool6 struct{ prefix netip.Prefix }

// longestPool6 leaves a number of a subnet for each index of a network.
const longestPool6 = api.Prefix6Bits - 16

// uniqueLocal is what sites use without asking anybody (RFC 4193, section 3.1, with the bit L set).
var uniqueLocal = netip.MustParsePrefix("fd00::/8")

// SitePool6 returns the unique local prefix of a site, by what identifies the site for good: a number that other sites don't have is as good as a
// random one (RFC 4193, section 3.2.2), and needs no record.
func SitePool6(site string) Pool6 {
	sum := sha256.Sum256([]byte("nearmetal unique local addresses\n" + site))
	a := [16]byte{0xfd}
	copy(a[1:6], sum[:5])
	return Pool6{netip.PrefixFrom(netip.AddrFrom16(a), longestPool6)}
}

// NewPool6 checks that the prefix has a subnet for each network, of addresses that members may have.
func NewPool6(prefix netip.Prefix) (Pool6, error) {
	switch {
	case !prefix.IsValid() || !prefix.Addr().Is6() || prefix.Addr().Is4In6():
		return Pool6{}, fmt.Errorf("IPv6 pool %s is not an IPv6 prefix: give one such as fd12:3456:789a::/%d", prefix, longestPool6)
	case prefix != prefix.Masked():
		return Pool6{}, fmt.Errorf("IPv6 pool %s has bits beyond its length: give %s", prefix, prefix.Masked())
	case prefix.Bits() > longestPool6 || prefix.Bits() < 16:
		return Pool6{}, fmt.Errorf("IPv6 pool %s has length /%d: give /16 to /%d", prefix, prefix.Bits(), longestPool6)
	case !uniqueLocal.Contains(prefix.Addr()) && !netip.MustParsePrefix("2000::/3").Contains(prefix.Addr()):
		return Pool6{}, fmt.Errorf("IPv6 pool %s is neither of unique local addresses (%s) nor of global ones (2000::/3): give a part of these", prefix, uniqueLocal)
	}
	return Pool6{prefix}, nil
}

func (p Pool6) String() string { return p.prefix.String() }

// IsValid reports whether there is any.
func (p Pool6) IsValid() bool { return p.prefix.IsValid() }

// subnet returns the subnet of a number.
func (p Pool6) subnet(number int) netip.Prefix {
	a := p.prefix.Addr().As16()
	binary.BigEndian.PutUint64(a[:8], binary.BigEndian.Uint64(a[:8])+uint64(number))
	return netip.PrefixFrom(netip.AddrFrom16(a), api.Prefix6Bits)
}

// CheckSubnet reports what is wrong with a requested subnet, whoever has it.
func (p Pool6) CheckSubnet(subnet netip.Prefix) error {
	example := p
	if !p.IsValid() {
		example = Pool6{netip.MustParsePrefix("fd12:3456:789a::/48")}
	}
	switch {
	case !subnet.IsValid() || !subnet.Addr().Is6() || subnet.Addr().Is4In6():
		return fmt.Errorf("%q is not an IPv6 prefix: give one such as %s", subnet, example.subnet(MaxNetworkIndex))
	case subnet.Bits() != api.Prefix6Bits:
		return fmt.Errorf("%s has length /%d: give one of length /%d, such as %s", subnet, subnet.Bits(), api.Prefix6Bits, example.subnet(MaxNetworkIndex))
	case subnet != subnet.Masked():
		return fmt.Errorf("%s has bits beyond its length: give %s", subnet, subnet.Masked())
	case !uniqueLocal.Contains(subnet.Addr()) && !p.prefix.Contains(subnet.Addr()):
		return fmt.Errorf("%s is neither in %s (unique local addresses) nor in this site's IPv6 pool, %s: give a part of one of them, such as %s",
			subnet, uniqueLocal, example, example.subnet(MaxNetworkIndex))
	}
	return nil
}

// Network6 gives a network that has its index an IPv6 subnet: the requested one, or that of its index unless somebody requested that before.
func (n *Numbers) Network6(network api.Network, pool Pool6, requested netip.Prefix) (api.Network, error) {
	subnet := requested
	if requested.IsValid() {
		if err := pool.CheckSubnet(requested); err != nil {
			return api.Network{}, err
		}
		if slices.Contains(n.subnets6, requested) {
			return api.Network{}, fmt.Errorf("IPv6 subnet %s is another network's: choose another, or omit it to get a free one", requested)
		}
	}
	for number := network.Index; !subnet.IsValid(); number = number%MaxNetworkIndex + 1 {
		if !pool.IsValid() {
			return api.Network{}, fmt.Errorf("the site has no IPv6 pool: name a subnet, or restart the server with --network-pool6")
		}
		// No loop without end: there are no more networks than numbers, and this one has no subnet yet.
		if free := pool.subnet(number); !slices.Contains(n.subnets6, free) {
			subnet = free
		}
	}
	n.subnets6 = append(n.subnets6, subnet)
	network.Prefix6 = subnet
	return network, nil
}
