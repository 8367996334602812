package apiserver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
)

// withNetworks is a site of two projects, each with a cluster c1 that is placed.
func withNetworks(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := twoProjects(t)
	for _, project := range []string{"default", "lab"} {
		req := api.ClusterRequest{Name: "c1", Project: project, Egress: true, Groups: []api.Group{
			{Name: "a", Networks: api.OnNetworks("storage")}, {Name: "b", Spares: 1},
		}}
		if _, err := s.Client().CreateCluster(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	s.Place("c1")
	s.Place("lab.c1")
	return s
}

// names are those of networks, each with its project.
func names(all []api.NetworkStatus) []string {
	var out []string
	for _, n := range all {
		out = append(out, n.Project+" "+n.Name)
	}
	return out
}

func TestNetworksAreThoseOfTheTokensProject(t *testing.T) {
	s := withNetworks(t)
	ann, eve := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleViewer)
	for who, test := range map[string]struct {
		c    *client.Client
		want []string
	}{
		"an administrator":            {s.Client(), []string{"default c1", "default c1:storage", "lab c1", "lab c1:storage"}},
		"a member":                    {ann, []string{"default c1", "default c1:storage"}},
		"a viewer of another project": {eve, []string{"lab c1", "lab c1:storage"}},
	} {
		all, err := test.c.Networks(t.Context())
		if err != nil || !slices.Equal(names(all), test.want) {
			t.Errorf("%s lists %q, %v; want %q", who, names(all), err, test.want)
		}
	}
	lab, err := eve.Network(t.Context(), "c1:storage")
	if err != nil || lab.Project != "lab" {
		t.Fatalf("a short name is of the token's project: %+v, %v", lab, err)
	}
	for _, name := range []string{"lab.c1", "lab.c1:storage", lab.UID, lab.ClusterUID} {
		if n, err := ann.Network(t.Context(), name); !client.HasCode(err, "network_not_found") {
			t.Errorf("a member of another project sees %s: %+v, %v", name, n, err)
		}
	}
	for _, name := range []string{"lab.c1:storage", lab.UID} {
		if n, err := s.Client().Network(t.Context(), name); err != nil || n.UID != lab.UID {
			t.Errorf("an administrator asks for %s: %+v, %v", name, n, err)
		}
	}
	for _, name := range []string{"c1:", ":storage", "c1:fast", "c1:storage:x", "c2", "a.b.c", lab.ClusterUID + ":storage"} {
		if n, err := s.Client().Network(t.Context(), name); !client.HasCode(err, "network_not_found") {
			t.Errorf("%q is the name of %+v, %v", name, n, err)
		}
	}
}

func TestANetworkShowsItsPorts(t *testing.T) {
	s := withNetworks(t)
	n, err := s.Client().Network(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	port := func(member, address, mac string) string { return member + " n1 veth " + address + " " + mac }
	show := func(ports []api.NetworkPort) (out []string) {
		for _, p := range ports {
			line := p.Member + " " + p.Node + " " + string(p.Kind) + " " + p.Address.String() + " " + p.MAC
			if p.Releasing {
				line += " releasing"
			}
			if p.Quarantined {
				line += " quarantined"
			}
			out = append(out, line)
		}
		return out
	}
	// The spare holds an address and has no port.
	if diff := cmp.Diff([]string{port("a-0", "10.64.16.10", "02:6e:00:01:00:0a"), port("b-0", "10.64.16.11", "02:6e:00:01:00:0b")}, show(n.Ports)); diff != "" {
		t.Errorf("ports of its own network (-want +got):\n%s", diff)
	}
	if !n.Egress || n.Technology != api.TechnologyVXLAN || n.Index != 1 || n.Prefix.String() != "10.64.16.0/20" || n.Cluster != "c1" {
		t.Errorf("its own network is %+v", n)
	}
	further := func() api.NetworkStatus {
		n, err := s.Client().Network(t.Context(), "c1:storage")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	storage := port("a-0", "10.64.32.10", "02:6e:00:02:00:0a")
	if n := further(); n.Egress || n.Index != 2 || !slices.Equal(show(n.Ports), []string{storage}) {
		t.Errorf("the further network is %+v, want the port of a-0 and no egress", n)
	}
	c, err := s.Client().Cluster(t.Context(), "c1")
	if want := []api.MemberNetwork{{Name: "storage", Address: "10.64.32.10"}}; err != nil || !slices.Equal(c.Status.Members[0].Networks, want) || c.Status.Members[1].Networks != nil {
		t.Errorf("members: %+v, %v; want a-0 alone on %v", c.Status.Members, err, want)
	}
	s.Release("c1")
	if got := show(further().Ports); !slices.Equal(got, []string{storage + " releasing"}) {
		t.Errorf("while the cluster is deleted: %q", got)
	}
	s.Quarantine("c1")
	if got := show(further().Ports); !slices.Equal(got, []string{storage + " quarantined"}) {
		t.Errorf("when the port was not proved clean in time: %q", got)
	}
}

func TestANetworkOfAProjectIsSharedByItsClustersAndUnknownToOtherProjects(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	made, err := ann.CreateNetwork(t.Context(), api.NetworkRequest{Name: "storage", Prefix: "10.64.128.0/24"})
	if err != nil || made.Name != "project/storage" || made.Phase != api.NetworkPending || made.Prefix.String() != "10.64.128.0/24" {
		t.Fatalf("created %+v, %v", made, err)
	}
	for who, c := range map[string]*client.Client{"a viewer": vic, "a member of another project": eve} {
		if _, err := c.CreateNetwork(t.Context(), api.NetworkRequest{Name: "x", Project: "default"}); !client.HasCode(err, "forbidden") {
			t.Errorf("%s creates a network of the default project: %v", who, err)
		}
	}
	_, err = eve.CreateNetwork(t.Context(), api.NetworkRequest{Name: "storage", Prefix: "10.64.128.128/25"})
	if !client.HasCode(err, "subnet_taken") || strings.Contains(err.Error(), "storage") || strings.Contains(err.Error(), "10.64.128.0/24") {
		t.Errorf("another project's network is named: %v", err)
	}
	if theirs, err := eve.CreateNetwork(t.Context(), api.NetworkRequest{Name: "storage"}); err != nil || theirs.Project != "lab" {
		t.Fatalf("two projects can't each have a network storage: %+v, %v", theirs, err)
	}
	for _, name := range []string{"project/default.storage", made.UID} {
		if _, err := eve.Network(t.Context(), name); !client.HasCode(err, "network_not_found") {
			t.Errorf("a member of another project sees %s: %v", name, err)
		}
		if _, err := eve.DeleteNetwork(t.Context(), name); !client.HasCode(err, "network_not_found") {
			t.Errorf("a member of another project deletes %s: %v", name, err)
		}
	}
	for _, name := range []string{"c1", "c2"} {
		if _, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Networks: api.OnNetworks("project/storage")}); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
	}
	n, err := vic.Network(t.Context(), "project/storage")
	if err != nil || n.Phase != api.NetworkReady || len(n.Ports) != 2 || n.Ports[0].Cluster == n.Ports[1].Cluster {
		t.Errorf("the network of two clusters is %+v, %v", n, err)
	}
	c, err := ann.Cluster(t.Context(), "c2")
	if err != nil || len(c.Status.Members[0].Networks) != 1 || c.Status.Members[0].Networks[0].Name != "project/storage" {
		t.Errorf("the member is %+v, %v", c.Status.Members, err)
	}
	limited := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ann", Role: api.RoleMember, Project: "default", Limits: api.Limits{Clusters: []string{"c1"}}}))
	if n, err := limited.Network(t.Context(), "project/storage"); err != nil || len(n.Ports) != 1 || n.Ports[0].Cluster != "c1" {
		t.Errorf("a token for c1 alone sees %+v, %v", n.Ports, err)
	}
	if _, err := limited.DeleteNetwork(t.Context(), "project/storage"); !client.HasCode(err, "forbidden") {
		t.Errorf("a token for c1 alone deletes the network of all: %v", err)
	}
	if _, err := ann.DeleteNetwork(t.Context(), "project/storage"); !client.HasCode(err, "network_in_use") {
		t.Errorf("a network with clusters is deleted: %v", err)
	}
	if _, err := ann.DeleteNetwork(t.Context(), "c1"); !client.HasCode(err, "network_in_use") {
		t.Errorf("a cluster's own network is deleted: %v", err)
	}
	if gone, err := eve.DeleteNetwork(t.Context(), "project/storage"); err != nil || gone.Phase != api.NetworkDeleting || gone.Project != "lab" {
		t.Errorf("a network that nobody uses is deleted: %+v, %v", gone, err)
	}
	if _, err := eve.CreateCluster(t.Context(), api.ClusterRequest{Name: "c3", Networks: api.OnNetworks("project/storage")}); !client.HasCode(err, "unknown_network") {
		t.Errorf("a cluster on a network that is being deleted: %v", err)
	}
}

func TestARequestForANetworkIsRefusedWithTheReason(t *testing.T) {
	s := twoProjects(t)
	for prefix, want := range map[string]string{
		"10.64.128.0":     "is not a prefix: give one such as 10.64.128.0/24",
		"10.64.128.1/24":  "has bits beyond its length: give 10.64.128.0/24",
		"10.64.0.0/12":    "has length /12: give /16 to /28",
		"10.64.128.0/30":  "has length /30: give /16 to /28",
		"192.168.0.0/24":  "is not in this site's pool for networks, 10.64.0.0/10",
		"fd00:1234::/64":  "is not an IPv4 prefix",
		"10.64.128.0/24x": "is not a prefix",
	} {
		_, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "n", Prefix: prefix})
		if !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
			t.Errorf("prefix %s: %v; want %q", prefix, err, want)
		}
	}
	for _, name := range []string{"", "A", "project/x", "a.b"} {
		if _, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: name}); !client.HasCode(err, "invalid_request") {
			t.Errorf("a network named %q: %v", name, err)
		}
	}
	if all, err := s.Client().Networks(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after refusals there are %+v, %v", all, err)
	}
	_, err := s.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Networks: api.OnNetworks("lab/x")})
	if !client.HasCode(err, "invalid_cluster") || !strings.Contains(fmt.Sprintf("%+v", err), "write NAME for a private network of the cluster, or project/NAME") {
		t.Errorf("a network of another project by its name: %v", err)
	}
}

func TestAShortNameIsOfTheProjectsNetworkWhereNoClusterHasIt(t *testing.T) {
	s := withNetworks(t)
	ann, eve := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleViewer)
	for _, name := range []string{"ib", "c1"} {
		if _, err := ann.CreateNetwork(t.Context(), api.NetworkRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := ann.Network(t.Context(), "ib"); err != nil || n.Name != "project/ib" {
		t.Errorf("ib is %q, %v", n.Name, err)
	}
	if n, err := ann.Network(t.Context(), "c1"); err != nil || n.Name != "c1" || n.Cluster != "c1" {
		t.Errorf("c1, which is also a cluster, is %q, %v", n.Name, err)
	}
	if n, err := eve.Network(t.Context(), "ib"); !client.HasCode(err, "network_not_found") {
		t.Errorf("a user of another project sees %+v, %v", n, err)
	}
	if n, err := ann.Network(t.Context(), "ib:storage"); !client.HasCode(err, "network_not_found") {
		t.Errorf("ib:storage is %+v, %v", n, err)
	}
	if gone, err := ann.DeleteNetwork(t.Context(), "ib"); err != nil || gone.Phase != api.NetworkDeleting {
		t.Errorf("deleted %+v, %v", gone, err)
	}
}
