package state_test

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestANameIsThatOfTheNetworkWhoseClusterIsThere(t *testing.T) {
	before := &api.Network{UID: "u1", Name: "c1", ClusterUID: "u1"}
	now := &api.Network{UID: "u2", Name: "c1", ClusterUID: "u2"}
	for _, clusterUID := range []string{"u1", "u2"} {
		v := &state.View{
			Networks: []*api.Network{before, now}, Clusters: []*state.Cluster{{Intent: api.ClusterIntent{Name: "c1", UID: clusterUID}}},
		}
		if n := v.NetworkNamed("c1"); n == nil || n.UID != clusterUID {
			t.Errorf("cluster c1 is %s, but its network is %+v", clusterUID, n)
		}
	}
	gone := &state.View{Networks: []*api.Network{before, now}}
	if n := gone.NetworkNamed("c1"); !slices.Contains(gone.Networks, n) {
		t.Errorf("with no cluster of the name there, the network is %+v, want either", n)
	}
	if n := gone.NetworkNamed("c2"); n != nil {
		t.Errorf("c2 is the name of %+v", n)
	}
}
