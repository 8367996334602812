package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

func TestAWholeMachinesAdaptersAreInThePartitionWithTheIndexOfTheClustersNetwork(t *testing.T) {
	network := func(string) *api.Network {
		return &api.Network{UID: "u", Index: 9, VLAN: 2048, Technology: api.TechnologyVLAN} // a VLAN is no partition
	}
	got := networksOn(fabricPorts(network, []api.Assignment{{
		ID: "u.m.1", Node: "m1", Whole: true, Ports: []api.PortClaim{{Network: "u", Fabric: "lan", At: "sw/1"}},
		HCAs: []api.HCAClaim{{Network: "u", Fabric: "ib0", At: "0000000000000011"}, {Network: "u", Fabric: "ib1", At: "0000000000000012"}},
	}}))
	want := map[string][]site.Network{
		"lan": {{Number: 2048, Ports: []site.Port{{At: "sw/1"}}}},
		"ib0": {{Number: 9, Ports: []site.Port{{At: "0000000000000011"}}}},
		"ib1": {{Number: 9, Ports: []site.Port{{At: "0000000000000012"}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
