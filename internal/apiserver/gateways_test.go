package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestAGroupIsOnOneNetworkWithAGateway(t *testing.T) {
	s := twoProjects(t)
	c := s.ClientAs("ann", "default", api.RoleMember)
	for _, req := range []api.NetworkRequest{{Name: "plain"}, {Name: "out", Egress: true}, {Name: "more", Egress: true}} {
		made, err := c.CreateNetwork(t.Context(), req)
		if err != nil || made.Egress != req.Egress {
			t.Fatalf("asked for %+v, got %+v, %v", req, made, err)
		}
	}
	on := func(name string, networks ...string) api.Group {
		return api.Group{Name: name, Size: 1, Networks: api.OnNetworks(networks...)}
	}
	refused := func(what string, err error) {
		t.Helper()
		if !client.HasCode(err, "invalid_cluster") || !strings.Contains(err.Error(), `group "b": networks project/out and project/more both have a gateway`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Groups: []api.Group{on("a", "project/out"), on("b", "project/plain", "project/out", "project/more")}})
	refused("a group on two networks with egress", err)
	apart := api.ClusterRequest{Name: "c1", Groups: []api.Group{on("a", "project/out", "project/plain"), on("c", "project/more")}}
	if _, err := c.CreateCluster(t.Context(), apart); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	apart.Groups = append(apart.Groups, on("b", "project/out", "project/more"))
	_, err = c.ApplyCluster(t.Context(), "c1", apart, false)
	refused("a further group on two networks with egress", err)
}
