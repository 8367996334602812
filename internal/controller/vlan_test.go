package controller

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestEachVLANIsGivenOnce(t *testing.T) {
	pool := api.VLANPool{First: 100, Last: 103}
	stored := []*api.Network{{}, {VLAN: 100}, {VLAN: 102, Refused: "its prefix was taken by then"}}
	beside := []api.Network{{VLAN: 101}}
	for _, tt := range []struct {
		requested, want int
		problem         string
	}{
		{0, 102, ""},
		{103, 103, ""},
		{102, 102, ""},
		{100, 0, "VLAN 100 was given to another network by then"},
		{101, 0, "VLAN 101 was given to another network by then"},
		{104, 0, "VLAN 104 is not in the site's pool (100-103)"},
	} {
		got, err := freeVLAN(pool, tt.requested, stored, beside)
		if got != tt.want || (err == nil) != (tt.problem == "") || err != nil && err.Error() != tt.problem {
			t.Errorf("requested %d: got %d, %v; want %d, %q", tt.requested, got, err, tt.want, tt.problem)
		}
	}
	beside = append(beside, api.Network{VLAN: 102}, api.Network{VLAN: 103})
	if _, err := freeVLAN(pool, 0, stored, beside); err == nil || !strings.Contains(err.Error(), "all VLANs of the site's pool (100-103) are in use") {
		t.Errorf("a full pool: got %v", err)
	}
}
