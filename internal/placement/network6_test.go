package placement

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestIPv6SubnetsAreOnesOfTheSiteAndNoTwoNetworksHaveOne(t *testing.T) {
	site := SitePool6("pin of a CA")
	if other := SitePool6("pin of another CA"); site != SitePool6("pin of a CA") || site == other || !uniqueLocal.Contains(other.prefix.Addr()) || other.prefix.Bits() != 48 {
		t.Errorf("sites have %v and %v", site, other)
	}
	pool, err := NewPool6(netip.MustParsePrefix("fd12:3456:789a::/48"))
	if err != nil {
		t.Fatal(err)
	}
	numbers := DefaultPool.Numbers([]*api.Network{{UID: "old", Index: 1, Prefix6: netip.MustParsePrefix("fd12:3456:789a:2::/64")}}, nil, nil)
	take := func(index int, requested string) (api.Network, error) {
		var subnet netip.Prefix
		if requested != "" {
			subnet = netip.MustParsePrefix(requested)
		}
		return numbers.Network6(api.Network{Index: index}, pool, subnet)
	}
	for _, tt := range []struct {
		index           int
		requested, want string
		problem         string
	}{
		{index: 2, want: "fd12:3456:789a:3::/64"}, // another network's user requested that of the index
		{index: 3, want: "fd12:3456:789a:4::/64"},
		{index: 65535, want: "fd12:3456:789a:ffff::/64"},
		{index: 5, requested: "fd00::/64", want: "fd00::/64"},
		{index: 6, requested: "fd00::/64", problem: "is another network's"},
		{index: 6, requested: "fd12:3456:789a:2::/64", problem: "is another network's"},
		{index: 6, requested: "2001:db8::/64", problem: "neither in fd00::/8 (unique local addresses) nor in this site's IPv6 pool, fd12:3456:789a::/48"},
		{index: 6, requested: "fe80::/64", problem: "neither in fd00::/8"},
		{index: 6, requested: "fd00::/48", problem: "has length /48: give one of length /64"},
		{index: 6, requested: "fd00::1/64", problem: "has bits beyond its length: give fd00::/64"},
		{index: 6, requested: "10.0.0.0/24", problem: "is not an IPv6 prefix"},
	} {
		n, err := take(tt.index, tt.requested)
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%+v: got %v, %v", tt, n.Prefix6, err)
			}
			continue
		}
		if err != nil || n.Prefix6.String() != tt.want {
			t.Errorf("%+v: got %v, %v", tt, n.Prefix6, err)
		}
	}
}

func TestAPoolForIPv6HasRoomForEachNetworkAndAddressesForMembers(t *testing.T) {
	for prefix, want := range map[string]string{
		"fd12:3456:789a::/48":  "",
		"2001:db8::/32":        "",
		"fd12:3456:789a::/49":  "has length /49: give /16 to /48",
		"fd12:3456:789a::1/48": "has bits beyond its length: give fd12:3456:789a::/48",
		"fe80::/48":            "neither of unique local addresses",
		"10.0.0.0/8":           "is not an IPv6 prefix",
	} {
		if _, err := NewPool6(netip.MustParsePrefix(prefix)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", prefix, err, want)
		}
	}
}
