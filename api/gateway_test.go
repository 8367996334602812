package api

import "testing"

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
