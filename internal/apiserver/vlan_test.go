package apiserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// withVLANs is a site with VLANs 100 to 101, and a node with a trunk.
func withVLANs(t *testing.T, change func(c *apiserver.Config)) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.VLANs = api.VLANPool{First: 100, Last: 101}
		if change != nil {
			change(c)
		}
	})
	s.Project("lab", api.Quota{})
	return s
}

func TestAVLANIsRefusedWithTheReason(t *testing.T) {
	s := withVLANs(t, nil)
	admin, eve := s.Client(), s.ClientAs("eve", "lab", api.RoleMember)
	wire := func(name string, vid int) api.NetworkRequest {
		return api.NetworkRequest{Name: name, Technology: api.TechnologyVLAN, VLAN: vid}
	}
	refused := func(what string, c *client.Client, req api.NetworkRequest, code, want string) {
		t.Helper()
		_, err := c.CreateNetwork(t.Context(), req)
		if text := fmt.Sprintf("%+v", err); !client.HasCode(err, code) || !strings.Contains(text, want) {
			t.Errorf("%s: got %s; want %s, %q", what, text, code, want)
		}
	}
	refused("no node has a trunk", admin, wire("a", 100), "no_vlans", "no node has a usable trunk")
	s.AddTrunk("n1", api.Trunk{Interface: "eth1", Problem: "link eth1 is down"})
	refused("the only trunk is down", admin, wire("a", 100), "no_vlans", "no node has a usable trunk")
	s.AddAdapter("n2", api.Adapter{ID: "0000:3b:00.0", Cell: "ib0", LinkLayer: "InfiniBand"})
	refused("the only adapter is on InfiniBand", admin, wire("a", 100), "no_vlans", "nor an Ethernet adapter for members")
	with := withVLANs(t, nil)
	with.AddAdapter("n1", api.Adapter{ID: "0000:3b:00.0", Cell: "lan1", LinkLayer: api.LinkEthernet})
	if _, err := with.Client().CreateNetwork(t.Context(), wire("a", 100)); err != nil {
		t.Errorf("members could have functions on the VLAN: %v", err)
	}
	s.AddTrunk("n1", api.Trunk{Interface: "eth1", MTU: 1500})
	made, err := admin.CreateNetwork(t.Context(), wire("a", 100))
	if err != nil || made.Technology != api.TechnologyVLAN || made.VLAN != 100 {
		t.Fatalf("created %+v, %v", made, err)
	}
	refused("a VLAN outside the pool", admin, wire("b", 102), "invalid_request", "VLAN 102 is not in the site's pool, 100-101")
	refused("a VLAN outside its range", admin, wire("b", 4095), "invalid_request", "4095 is no VLAN ID; those are 1 to 4094")
	refused("a VLAN that is in use", admin, wire("b", 100), "vlan_taken", `VLAN 100 is in use by network "project/a"`)
	_, err = eve.CreateNetwork(t.Context(), wire("b", 100))
	if !client.HasCode(err, "vlan_taken") || strings.Contains(err.Error(), "project/a") {
		t.Errorf("another project's network is named: %v", err)
	}
	refused("a VLAN for a network of tunnels", admin, api.NetworkRequest{Name: "b", VLAN: 101}, "invalid_request", "is for networks of technology vlan only")
	refused("another technology", admin, api.NetworkRequest{Name: "b", Technology: "token-ring"}, "invalid_request", `"token-ring" is no technology of networks`)
	routed := wire("b", 101)
	routed.Routed = true
	refused("a routed network on a VLAN", admin, routed, "invalid_request", "does not tell which node's router sent a frame")
	large := wire("b", 101)
	large.MTU = 1501
	refused("an MTU above the trunk's", admin, large, "invalid_request", "its trunk eth1 has an MTU of 1500 bytes")
	if _, err := eve.CreateNetwork(t.Context(), wire("b", 101)); err != nil {
		t.Fatal(err)
	}
	refused("a VLAN where all are in use", admin, wire("c", 0), "no_vlans", "all VLANs of the site's pool, 100-101, are in use")
	closed := withVLANs(t, func(c *apiserver.Config) { c.Encrypted = true })
	refused("a VLAN on an encrypted underlay", closed.Client(), wire("a", 100), "no_vlans", "WireGuard carries no VLANs")
	refused("a site without a pool", twoProjects(t).Client(), wire("a", 100), "no_vlans", "start its servers with --vlan-pool")
}
