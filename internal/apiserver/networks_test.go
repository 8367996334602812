package apiserver_test

import (
	"slices"
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
			{Name: "a", Networks: []string{"storage"}}, {Name: "b", Spares: 1},
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
