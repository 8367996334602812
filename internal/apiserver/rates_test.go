package apiserver_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAPortIsShownWithItsQualityOfServiceWhichStays(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	quality := api.Quality{MinRate: 2e8, MaxRate: 1e9, DSCP: "10"}
	req := api.ClusterRequest{Name: "c1", Networks: []api.GroupNetwork{{Name: "storage", Quality: quality}}}
	if _, err := ann.CreateCluster(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	if n, err := ann.Network(t.Context(), "c1:storage"); err != nil || len(n.Ports) != 1 || n.Ports[0].Quality != quality {
		t.Errorf("the network is %+v, %v; want a port with %+v", n, err, quality)
	}
	req.Networks[0].MaxRate = 2e9
	if _, err := ann.ApplyCluster(t.Context(), "c1", req, false); err == nil {
		t.Error("a change of a port's rates was accepted")
	}
	req.Name, req.Networks[0].MinRate = "c2", 3e9
	if _, err := ann.CreateCluster(t.Context(), req); err == nil {
		t.Error("a minimum rate above the maximum was accepted")
	}
}
