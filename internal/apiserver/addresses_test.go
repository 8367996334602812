package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// fixedAt is a request for a cluster of one member with an address on a network of the project.
func fixedAt(name, network, address string) api.ClusterRequest {
	return api.ClusterRequest{Name: name, Networks: []api.GroupNetwork{{Name: network, Address: address}}}
}

func TestAFixedAddressIsForOneMemberOfTheProject(t *testing.T) {
	s := twoProjects(t)
	ann, eve := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember)
	for _, c := range []*client.Client{ann, eve} {
		if _, err := c.CreateNetwork(t.Context(), api.NetworkRequest{Name: "storage"}); err != nil {
			t.Fatal(err)
		}
	}
	const network, address = "project/storage", "10.64.128.9"
	if _, err := ann.CreateCluster(t.Context(), fixedAt("first", network, address)); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.CreateCluster(t.Context(), fixedAt("second", network, address)); !client.HasCode(err, "address_taken") || !strings.Contains(err.Error(), `group "first" of cluster "first"`) {
		t.Errorf("two clusters have one address: %v", err)
	}
	queued := fixedAt("queued", network, address)
	queued.Queue = true
	if _, err := ann.CreateCluster(t.Context(), queued); err != nil {
		t.Errorf("a cluster that may wait is refused for an address that is taken now: %v", err)
	}
	if _, err := eve.CreateCluster(t.Context(), fixedAt("theirs", network, address)); err != nil {
		t.Errorf("an address on another project's network counts: %v", err)
	}
	if _, err := ann.ScaleCluster(t.Context(), "first", api.ScaleRequest{Size: 2}); !client.HasCode(err, "invalid_request") || !strings.Contains(err.Error(), "has a fixed address") {
		t.Errorf("a group with a fixed address grows: %v", err)
	}
}
