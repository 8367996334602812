package lifecycle

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestANetworkLivesAsLongAsItsClusterAndItsPorts(t *testing.T) {
	networks := []*api.Network{
		{UID: "living", ClusterUID: "u1"},
		{UID: "living.storage", ClusterUID: "u1"},
		{UID: "gone", ClusterUID: "u2"},
		{UID: "gone.storage", ClusterUID: "u2"},
		{UID: "project"},
	}
	quarantined := []*api.Quarantine{{Assignment: api.Assignment{ID: "a", ClusterUID: "u2", Ports: []api.PortClaim{{Network: "other"}, {Network: "gone.storage"}}}}}
	living := func(uid string) bool { return uid == "u1" }
	if got := PlanNetworks(networks, living, quarantined); !slices.Equal(got, []string{"gone"}) {
		t.Errorf("over are %v, want that of the cluster that is gone alone", got)
	}
	if got := PlanNetworks(networks, living, nil); !slices.Equal(got, []string{"gone", "gone.storage"}) {
		t.Errorf("over are %v, want both of the cluster that is gone", got)
	}
}
