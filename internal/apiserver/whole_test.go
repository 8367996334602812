package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestWholeMachinesAreEndsOfNoTunnels(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Offers.Metal = true })
	s.AddNode("n1", 8)
	c := s.Client()
	metal := api.Group{Name: "m", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal}
	containers := api.Group{Name: "c", Size: 1, Shape: api.Shape{Cores: 1}}
	for words, req := range map[string]api.ClusterRequest{
		"by no tunnel":                  {Name: "c1", Groups: []api.Group{metal, containers}, Technology: api.TechnologyVXLAN},
		"no node carries their packets": {Name: "c1", Groups: []api.Group{metal}, Egress: true},
	} {
		if _, err := c.CreateCluster(t.Context(), req); !client.HasCode(err, "invalid_cluster") || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want it refused with %q", err, words)
		}
	}
	if _, err := c.CreateNetwork(t.Context(), api.NetworkRequest{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	metal.Networks = api.OnNetworks("project/data")
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Groups: []api.Group{metal}}); !client.HasCode(err, "invalid_cluster") || !strings.Contains(err.Error(), "ends of no tunnels") {
		t.Errorf("on a network of the project: %v, want it refused", err)
	}
}
