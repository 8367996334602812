package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestANetworkIsSharedWithProjectsAsItsOwnerSays(t *testing.T) {
	s := withPKeys(t, "ib0")
	s.Project("astro", api.Quota{})
	admin, lab, astro := s.Client(), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("ada", "astro", api.RoleMember)
	share := partition("storage", 0)
	share.SharedWith = []string{"lab"}
	if _, err := admin.CreateNetwork(t.Context(), share); err != nil {
		t.Fatal(err)
	}

	joining := func(network string, limited bool) api.ClusterRequest {
		return api.ClusterRequest{Name: "c1", Stack: api.StackContainer, Networks: []api.GroupNetwork{{Name: network, Interface: api.InterfaceVF, Limited: limited}}}
	}
	for _, row := range []struct {
		what       string
		as         *client.Client
		req        api.ClusterRequest
		code, want string
	}{
		{"another project's, full membership", lab, joining("project/default.storage", false), "invalid_cluster", "ask for limited membership"},
		{"one that is not shared with the project", astro, joining("project/default.storage", true), "unknown_network", "is not a network of project astro; the project has none"},
		{"one that does not exist", lab, joining("project/default.nothing", true), "unknown_network", `its networks: "project/default.storage"`},
		{"a name of the own project", lab, joining("project/storage", true), "unknown_network", `its networks: "project/default.storage"`},
	} {
		if _, err := row.as.CreateCluster(t.Context(), row.req); !client.HasCode(err, row.code) || !strings.Contains(fmt.Sprintf("%+v", err), row.want) {
			t.Errorf("%s: got %+v; want %s, %q", row.what, err, row.code, row.want)
		}
	}
	if _, err := lab.CreateCluster(t.Context(), joining("project/default.storage", true)); err != nil {
		t.Fatalf("a project that the network is shared with: %v", err)
	}

	const name = "project/default.storage"
	seen, err := lab.Network(t.Context(), name)
	if err != nil || seen.Project != api.DefaultProject || seen.SharedWith != nil {
		t.Errorf("the project it is shared with sees %+v, %v; want it without whom it is shared with", seen, err)
	}
	if _, err := astro.Network(t.Context(), name); !client.HasCode(err, "network_not_found") {
		t.Errorf("a project it is not shared with: %v", err)
	}
	if _, err := lab.DeleteNetwork(t.Context(), name); !client.HasCode(err, "forbidden") {
		t.Errorf("the project it is shared with deletes it: %v", err)
	}
	if _, err := admin.DeleteNetwork(t.Context(), "project/storage"); !client.HasCode(err, "network_in_use") || strings.Contains(err.Error(), "c1") ||
		!strings.Contains(err.Error(), "by clusters of other projects") {
		t.Errorf("the owner deletes it while another project's cluster is on it: %v", err)
	}
}

func TestAWrongShareOfANetworkIsRefused(t *testing.T) {
	admin := withPKeys(t, "ib0").Client()
	for _, row := range []struct {
		technology api.Technology
		with       []string
		want       string
	}{
		{"", []string{"lab"}, "only a network of technology infiniband can be shared"},
		{api.TechnologyInfiniBand, []string{"lab", "lab"}, `"lab" is listed twice`},
		{api.TechnologyInfiniBand, []string{"No Project"}, "is not a DNS label"},
		{api.TechnologyInfiniBand, make([]string, 101), "has 101 projects; at most 100 are possible"},
	} {
		_, err := admin.CreateNetwork(t.Context(), api.NetworkRequest{Name: "a", Technology: row.technology, SharedWith: row.with})
		if !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), row.want) {
			t.Errorf("shared with %q: got %+v, want %q", row.with, err, row.want)
		}
	}
}
