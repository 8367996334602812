package api

import (
	"net/netip"
	"slices"
	"testing"
)

func TestTheWayOutIsByTheProjectsNetworkWithEgressElseByTheClustersOwn(t *testing.T) {
	own, ownOut := Network{Name: "c"}, Network{Name: "c", Egress: true}
	further, lab, out := Network{Name: "c:storage"}, Network{Name: "project/lab"}, Network{Name: "project/out", Egress: true}
	for name, tt := range map[string]struct {
		networks []Network
		want     int
	}{
		"no network":                                      {nil, -1},
		"no network with egress":                          {[]Network{own, further, lab}, -1},
		"the cluster's own network has egress":            {[]Network{ownOut, further, lab}, 0},
		"a network of the project has egress":             {[]Network{own, lab, out}, 2},
		"the project's network goes before the cluster's": {[]Network{ownOut, out, further}, 1},
	} {
		if got := WayOut(tt.networks); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

func TestAMemberReachesTheSitesNetworksThroughTheGatewayOfItsRoutedNetwork(t *testing.T) {
	pool, all := netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("0.0.0.0/0")
	own, routed := Network{Name: "c", Egress: true}, Network{Name: "project/lab", Routed: true, Pool: pool}
	both := routed
	both.Egress = true
	for name, tt := range map[string]struct {
		networks []Network
		want     [][]netip.Prefix
	}{
		"the way out is by the cluster's own network": {[]Network{own, routed}, [][]netip.Prefix{{all}, {pool}}},
		"a routed network has egress":                 {[]Network{own, both}, [][]netip.Prefix{nil, {pool, all}}},
		"no network has a gateway":                    {[]Network{{Name: "c"}, {Name: "project/net"}}, [][]netip.Prefix{nil, nil}},
	} {
		for i, want := range tt.want {
			if got := GatewayRoutes(tt.networks, i); !slices.Equal(got, want) {
				t.Errorf("%s: routes by network %d: got %v, want %v", name, i, got, want)
			}
		}
	}
}
