package placement

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestEachVLANIsGivenOnce(t *testing.T) {
	pool := api.VLANPool{First: 100, Last: 103}
	n := DefaultPool.Numbers([]*api.Network{{UID: "tunnels", Index: 1}, {UID: "a", Index: 2, VLAN: 100}, {UID: "b", VLAN: 102, Refused: "its prefix was taken by then"}}, nil, nil)
	for _, tt := range []struct {
		requested, want int
		problem         string
	}{
		{101, 101, ""},
		{0, 102, ""},
		{103, 103, ""},
		{100, 0, "VLAN 100 was given to another network by then"},
		{101, 0, "VLAN 101 was given to another network by then"},
		{102, 0, "VLAN 102 was given to another network by then"},
		{104, 0, "VLAN 104 is not in the site's pool (100-103)"},
		{0, 0, "all VLANs of the site's pool (100-103) are in use: delete a network, or a cluster, on one"},
	} {
		got, err := n.VLAN("new", pool, tt.requested, func(int) bool { return true })
		if got != tt.want || (err == nil) != (tt.problem == "") || err != nil && err.Error() != tt.problem {
			t.Errorf("requested %d: got %d, %v; want %d, %q", tt.requested, got, err, tt.want, tt.problem)
		}
	}
}
