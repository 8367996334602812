package apiserver_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAnOwnNetworkThatTheSiteDoesNotHaveIsRefusedWithTheReason(t *testing.T) {
	closed := withVLANs(t, func(c *apiserver.Config) { c.Encrypted = true })
	vlan, ib := api.ClusterRequest{Name: "c", Interface: api.InterfaceVF}, api.ClusterRequest{Name: "c", Interface: api.InterfaceVF, Technology: api.TechnologyInfiniBand}
	elsewhere := ib
	elsewhere.Cell = "ib7"
	for _, tt := range []struct {
		what       string
		site       *apiservertest.Site
		req        api.ClusterRequest
		code, want string
	}{
		{"a VLAN without a pool", twoProjects(t), vlan, "no_vlans", "start its servers with --vlan-pool"},
		{"a VLAN on an encrypted underlay", closed, vlan, "no_vlans", "WireGuard carries no VLANs"},
		{"a partition without a pool", twoProjects(t), ib, "no_infiniband", "start its servers with --pkey-pool"},
		{"a partition without a fabric", withPKeys(t), ib, "no_infiniband", "this site's servers control no InfiniBand fabric"},
		{"a partition in one of several cells", withPKeys(t, "ib1", "ib0"), ib, "invalid_cluster", "is missing; the site has several: ib0, ib1"},
		{"a partition in an unknown cell", withPKeys(t, "ib0"), elsewhere, "invalid_cluster", `"ib7" is no cell of an InfiniBand fabric that this site controls; those are: ib0`},
	} {
		_, err := tt.site.Client().CreateCluster(t.Context(), tt.req)
		if text := fmt.Sprintf("%+v", err); !client.HasCode(err, tt.code) || !strings.Contains(text, tt.want) {
			t.Errorf("%s: got %s; want %s, %q", tt.what, text, tt.code, tt.want)
		}
		if all, err := tt.site.Client().Clusters(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("%s: stored are %v, %v", tt.what, all, err)
		}
	}
	s := withPKeys(t, "ib0")
	made, err := s.Client().CreateCluster(t.Context(), ib)
	if err != nil || made.Spec.Cell != "ib0" || made.Spec.Groups[0].Networks[0].String() != "infiniband:vf" {
		t.Errorf("created %+v, %v", made.Spec, err)
	}
}

func TestAFileNeedNotRepeatTheTechnologyOfAnOwnNetworkAndCanNotChangeIt(t *testing.T) {
	s := withPKeys(t, "ib0")
	c := s.Client()
	ib := api.ClusterRequest{Name: "c", Groups: []api.Group{{Name: "a", Interface: api.InterfaceVF}, {Name: "b"}}, Technology: api.TechnologyInfiniBand}
	if _, err := c.CreateCluster(t.Context(), ib); err != nil {
		t.Fatal(err)
	}
	for _, same := range []func(r *api.ClusterRequest){
		func(*api.ClusterRequest) {},
		func(r *api.ClusterRequest) { r.Cell = "ib0" },
		func(r *api.ClusterRequest) {
			r.Technology, r.Groups = "", []api.Group{{Name: "a", Interface: api.InterfaceVF, Interconnect: api.Interconnect{Technology: api.FabricInfiniBand}}, {Name: "b"}}
		},
	} {
		req := ib
		same(&req)
		if got, err := c.ApplyCluster(t.Context(), "c", req, true); err != nil || len(got.Steps) != 1 || got.Steps[0].Action != "keep" {
			t.Errorf("%+v: %+v, %v", req, got, err)
		}
	}
	for want, change := range map[string]func(r *api.ClusterRequest){
		"technology: is infiniband and can't become vlan": func(r *api.ClusterRequest) { r.Technology = "" },
		"cell: is ib0 and can't become ib1":               func(r *api.ClusterRequest) { r.Cell = "ib1" },
		"networks: is none and can't become infiniband:pf": func(r *api.ClusterRequest) {
			r.Groups = []api.Group{{Name: "a", Interface: api.InterfaceVF}, {Name: "b", Interface: api.InterfacePF}}
		},
	} {
		req := ib
		change(&req)
		if _, err := c.ApplyCluster(t.Context(), "c", req, true); !client.HasCode(err, "unchangeable") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
			t.Errorf("got %+v, want %s", err, want)
		}
	}
	v := withVLANs(t, nil).Client()
	if _, err := v.CreateCluster(t.Context(), api.ClusterRequest{Name: "c", Interface: api.InterfaceVF}); err != nil {
		t.Fatal(err)
	}
	_, err := v.ApplyCluster(t.Context(), "c", api.ClusterRequest{Name: "c", Technology: api.TechnologyVLAN}, true)
	if want := "interface: is vf and can't become made by nodes"; !client.HasCode(err, "unchangeable") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
		t.Errorf("got %+v, want %s", err, want)
	}
	rail := 1
	_, err = v.ApplyCluster(t.Context(), "c", api.ClusterRequest{Name: "c", Interface: api.InterfaceVF, Adapter: api.DeviceChoice{Rail: &rail}}, true)
	if want := "interface: is vf and can't become vf,rail=1"; !client.HasCode(err, "unchangeable") || !strings.Contains(fmt.Sprintf("%+v", err), want) {
		t.Errorf("got %+v, want %s", err, want)
	}
}

func TestANumberOfAClustersOwnNetworkIsInUse(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.VLANs, c.PKeys, c.Offers.Fabrics = api.VLANPool{First: 100, Last: 100}, api.PKeyPool{First: 0x100, Last: 0x100}, []string{"ib0"}
	})
	s.Project("lab", api.Quota{})
	s.AddTrunk("n1", api.Trunk{Interface: "eth1", MTU: 1500})
	prefix := netip.MustParsePrefix("10.64.16.0/20")
	if _, err := s.Leader.PutNetworks(t.Context(),
		api.Network{UID: "u", Name: "c1", Cluster: "c1", ClusterUID: "u", Technology: api.TechnologyVLAN, VLAN: 100, Index: 1, Prefix: prefix},
		api.Network{UID: "u.infiniband", Name: "c1:infiniband", Cluster: "c1", ClusterUID: "u", Technology: api.TechnologyInfiniBand, Cell: "ib0", PKey: 0x100, Index: 2, Prefix: prefix},
	); err != nil {
		t.Fatal(err)
	}
	s.AddTrunk("n2", api.Trunk{Interface: "eth1", MTU: 1500}) // what was written before is seen now
	admin, eve := s.Client(), s.ClientAs("eve", "lab", api.RoleMember)
	wire := api.NetworkRequest{Name: "wire", Technology: api.TechnologyVLAN, VLAN: 100}
	for _, tt := range []struct {
		client     *client.Client
		req        api.NetworkRequest
		code, want string
	}{
		{admin, wire, "vlan_taken", `VLAN 100 is in use by cluster "c1"; choose another`},
		{eve, wire, "vlan_taken", "VLAN 100 is in use by another network; choose another"},
		{admin, api.NetworkRequest{Name: "wire", Technology: api.TechnologyVLAN}, "no_vlans", "are in use: delete a network, or a cluster, on one"},
		{admin, partition("ib", 0x100), "pkey_taken", `partition key 0x0100 is in use by cluster "c1"; choose another`},
		{eve, partition("ib", 0x100), "pkey_taken", "partition key 0x0100 is in use by another network; choose another"},
		{admin, partition("ib", 0), "no_infiniband", "are in use: delete a network, or a cluster, on InfiniBand"},
	} {
		if _, err := tt.client.CreateNetwork(t.Context(), tt.req); !client.HasCode(err, tt.code) || !strings.Contains(fmt.Sprintf("%+v", err), tt.want) {
			t.Errorf("%+v: got %+v; want %s, %q", tt.req, err, tt.code, tt.want)
		}
	}
}

// metalSite is a site that hands out whole machines, and manages switches unless change says otherwise.
func metalSite(t *testing.T, change func(c *apiserver.Config)) *apiservertest.Site {
	t.Helper()
	return withVLANs(t, func(c *apiserver.Config) {
		c.Offers.Metal, c.Offers.Switches = true, map[string]map[string]bool{"lan": {"sw/a": false}}
		if change != nil {
			change(c)
		}
	})
}

// addCarrier adds a node that carries members on all stacks, with this trunk.
func addCarrier(t *testing.T, s *apiservertest.Site, trunk *api.Trunk) {
	t.Helper()
	all := []api.Stack{api.StackContainer, api.StackVM, api.StackMetal}
	n := api.NodeRecord{Name: "n1", Trunk: trunk, Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: all, OK: true}}}
	for _, stack := range all {
		n.Stacks = append(n.Stacks, api.StackCheck{Stack: stack, OK: true})
	}
	if _, err := s.Repo.PutNode(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	s.AddNode("n2", 1) // what was written before is seen now
}

func TestTheOwnNetworkOfWholeMachinesIsAVLANWhereSwitchesAndTrunksCanCarryIt(t *testing.T) {
	whole, container, machine := api.Group{Name: "w", Stack: api.StackMetal}, api.Group{Name: "c"}, api.Group{Name: "v", Stack: api.StackVM}
	unmanaged := func(c *apiserver.Config) { c.Offers.Switches = nil }
	trunk := &api.Trunk{Interface: "eth1", MTU: 1500}
	vlan, tunnels := api.TechnologyVLAN, api.TechnologyVXLAN
	for _, tt := range []struct {
		what   string
		change func(c *apiserver.Config)
		trunk  *api.Trunk
		groups []api.Group
		asked  api.Technology
		egress bool
		// want is the technology, refused what the refusal says.
		want    api.Technology
		refused string
	}{
		{what: "whole machines alone", groups: []api.Group{whole}, want: vlan},
		{what: "whole machines alone, without managed switches", change: unmanaged, groups: []api.Group{whole}},
		{what: "whole machines alone, on an encrypted underlay", change: func(c *apiserver.Config) { c.Encrypted = true }, groups: []api.Group{whole}, want: vlan},
		{what: "containers alone", trunk: trunk, groups: []api.Group{container}},
		{what: "whole machines and containers", trunk: trunk, groups: []api.Group{container, whole}, want: vlan},
		{what: "whole machines, containers and virtual machines", trunk: trunk, groups: []api.Group{whole, container, machine}, want: vlan},
		{what: "whole machines and virtual machines, by VLAN as asked", trunk: trunk, groups: []api.Group{whole, machine}, asked: vlan, want: vlan},
		{what: "whole machines and virtual machines, by VLAN as asked, without a trunk", groups: []api.Group{whole, machine}, asked: vlan, refused: "no node has a usable trunk"},
		{what: "whole machines and containers, by tunnels as asked", trunk: trunk, groups: []api.Group{whole, container}, asked: tunnels, refused: "by no tunnel"},
		{what: "whole machines and containers, with egress", trunk: trunk, groups: []api.Group{whole, container}, egress: true, refused: "no node carries their packets"},
		{what: "whole machines and containers, without a trunk", groups: []api.Group{whole, container}, refused: "no node has a usable trunk"},
		{
			what: "whole machines and containers, with a trunk that is broken", trunk: &api.Trunk{Interface: "eth1", MTU: 1500, Problem: "is down"},
			groups: []api.Group{whole, container}, refused: "no node has a usable trunk",
		},
		{what: "whole machines and containers, without managed switches", change: unmanaged, trunk: trunk, groups: []api.Group{whole, container}, refused: "manages no Ethernet switches"},
		{what: "whole machines and containers, by VLAN as asked, without managed switches", change: unmanaged, trunk: trunk, groups: []api.Group{whole, container}, asked: vlan, refused: "manages no Ethernet switches"},
		{
			what: "whole machines and containers, on an encrypted underlay", change: func(c *apiserver.Config) { c.Encrypted = true }, trunk: trunk,
			groups: []api.Group{whole, container}, refused: "WireGuard carries no VLANs",
		},
	} {
		s := metalSite(t, tt.change)
		addCarrier(t, s, tt.trunk)
		made, err := s.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: "c", Groups: tt.groups, Technology: tt.asked, Egress: tt.egress})
		switch text := fmt.Sprintf("%+v", err); {
		case tt.refused == "" && (err != nil || made.Spec.Technology != tt.want):
			t.Errorf("%s: the technology is %q, %v; want %q", tt.what, made.Spec.Technology, err, tt.want)
		case tt.refused != "" && (!client.HasCode(err, "invalid_cluster") || !strings.Contains(text, tt.refused)):
			t.Errorf("%s: got %s; want it refused with %q", tt.what, text, tt.refused)
		}
	}
}

func TestAClusterOnTunnelsGetsNoWholeMachinesLater(t *testing.T) {
	s := metalSite(t, nil)
	addCarrier(t, s, &api.Trunk{Interface: "eth1", MTU: 1500})
	c := s.Client()
	container, whole := api.Group{Name: "c"}, api.Group{Name: "w", Stack: api.StackMetal}
	for _, req := range []api.ClusterRequest{
		{Name: "tunnels", Groups: []api.Group{container}},
		{Name: "vlan", Groups: []api.Group{container}, Technology: api.TechnologyVLAN},
		{Name: "outward", Groups: []api.Group{container}, Technology: api.TechnologyVLAN, Egress: true},
	} {
		if _, err := c.CreateCluster(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	for what, tt := range map[string]struct {
		req  api.ClusterRequest
		want string
	}{
		"beside the containers":    {api.ClusterRequest{Name: "tunnels", Groups: []api.Group{container, whole}}, "only a VLAN joins these"},
		"on a VLAN with a gateway": {api.ClusterRequest{Name: "outward", Groups: []api.Group{container, whole}, Egress: true}, "no node carries their packets"},
		"on a VLAN":                {api.ClusterRequest{Name: "vlan", Groups: []api.Group{container, whole}}, ""},
	} {
		_, err := c.ApplyCluster(t.Context(), tt.req.Name, tt.req, true)
		if text := fmt.Sprintf("%+v", err); tt.want == "" && err != nil || !strings.Contains(text, tt.want) {
			t.Errorf("whole machines %s: got %s; want %q", what, text, tt.want)
		}
	}
}
