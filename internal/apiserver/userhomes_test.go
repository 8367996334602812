package apiserver_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestASiteMayGiveClustersTheHomesOfTheirUsers(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.UserHomes = true })
	s.AddPool("n1", 100*gib)
	s.AddNode("n2", 4)
	c := s.ClientAs("eve", api.DefaultProject, api.RoleMember)
	if _, err := c.CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: gib}); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		req  api.ClusterRequest
		want api.ClusterHome
	}{
		"omitted":       {api.ClusterRequest{}, api.ClusterHome{Kind: api.HomeOfUser}},
		"cluster":       {api.ClusterRequest{Home: api.ClusterHome{Kind: api.HomeOfCluster}}, api.ClusterHome{}},
		"none":          {api.ClusterRequest{Home: api.ClusterHome{Kind: api.HomeNone}}, api.ClusterHome{Kind: api.HomeNone}},
		"sized":         {api.ClusterRequest{Home: api.ClusterHome{Size: gib}}, api.ClusterHome{Size: gib}},
		"volume-there":  {api.ClusterRequest{Volumes: []api.VolumeAttachment{{Name: "data", Path: "/home"}}}, api.ClusterHome{}},
		"whole-machine": {api.ClusterRequest{Stack: api.StackMetal}, api.ClusterHome{}},
	} {
		tc.req.Name = name
		made, err := c.CreateCluster(t.Context(), tc.req)
		if err != nil {
			if name == "whole-machine" { // which this site has none of
				continue
			}
			t.Errorf("%s: %v", name, err)
			continue
		}
		if made.Spec.Home != tc.want {
			t.Errorf("%s: the home is %+v, want %+v", name, made.Spec.Home, tc.want)
		}
		if again, err := c.ApplyCluster(t.Context(), name, tc.req, false); err != nil || again.Cluster.Spec.Home != tc.want {
			t.Errorf("%s: applied again: %+v, %v", name, again.Cluster, err)
		}
	}
	if all, err := c.Volumes(t.Context()); err != nil || len(all) != 3 {
		t.Errorf("the volumes are %+v, %v; want data, the home of eve, and that of cluster sized", all, err)
	}
}

func TestWithoutThatAClusterHasAHomeOfItsOwn(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	made, err := s.ClientAs("eve", api.DefaultProject, api.RoleMember).CreateCluster(t.Context(), api.ClusterRequest{Name: "c1"})
	if err != nil || made.Spec.Home != (api.ClusterHome{}) {
		t.Errorf("the home is %+v, %v", made.Spec.Home, err)
	}
}
