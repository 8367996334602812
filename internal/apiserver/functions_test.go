package apiserver_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAPortOnAFunctionIsRefusedWithTheReason(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.VLANs, c.PKeys, c.Offers.Fabrics = api.VLANPool{First: 100, Last: 109}, api.PKeyPool{First: 0x100, Last: 0x1ff}, []string{"ib0"}
	})
	s.AddTrunk("n1", api.Trunk{Interface: "eth1", MTU: 1500})
	c := s.Client()
	for _, n := range []api.NetworkRequest{
		{Name: "lab"}, {Name: "wire", Technology: api.TechnologyVLAN}, {Name: "out", Technology: api.TechnologyVLAN, Egress: true}, partition("ib", 0),
	} {
		if _, err := c.CreateNetwork(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string, stack api.Stack, n api.GroupNetwork) error {
		_, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Stack: stack, Networks: []api.GroupNetwork{n}})
		return err
	}
	on := func(network string, kind api.Interface) api.GroupNetwork {
		return api.GroupNetwork{Name: network, Interface: kind}
	}
	guarded, marked := on("project/wire", "vf"), on("project/ib", "vf")
	guarded.SecurityGroups, marked.DSCP = []string{"web"}, "10"
	limited := on("project/wire", "vf")
	limited.Limited = true
	standby, standbyIB := on("project/wire", "vf"), on("project/ib", "vf")
	standby.Standby, standbyIB.Standby = true, true
	for _, tt := range []struct {
		what  string
		stack api.Stack
		on    api.GroupNetwork
		want  string
	}{
		{"a function on tunnels", api.StackContainer, on("project/lab", "vf"), "a port of kind vf can't be on a network of technology vxlan"},
		{"a function on a private network", api.StackContainer, on("data", "vf"), "a further private network of the cluster: nodes carry its packets by tunnels"},
		{"a function on a network with egress", api.StackContainer, on("project/out", "vf"), "its packets pass no node, which is the network's gateway"},
		{"a container on a partition", api.StackContainer, on("project/ib", ""), "InfiniBand can't be bridged to a port of kind veth; write vf, or pf for a whole port, or use a network of technology vxlan, whose tunnels may cross InfiniBand"},
		{"a machine on a partition", api.StackVM, on("project/ib", "virtio"), "InfiniBand can't be bridged to a port of kind virtio"},
		{"macvtap on a partition", api.StackVM, on("project/ib", "macvtap"), "InfiniBand carries no Ethernet; write vf"},
		{"macvtap of a container", api.StackContainer, on("project/wire", "macvtap"), `"macvtap" is for virtual machines`},
		{"veth of a machine", api.StackVM, on("project/wire", "veth"), `"veth" is for containers`},
		{"another kind", api.StackVM, on("project/wire", "vff"), `"vff" is no kind of port; did you mean "vf"?`},
		{"a whole node", api.StackMetal, on("project/wire", "vf"), `is not possible on stack "metal"`},
		{"security groups", api.StackContainer, guarded, "has security groups, which nodes can't enforce on a port of kind vf"},
		{"a DSCP", api.StackContainer, marked, "has a DSCP, which nodes can't enforce on a port of kind vf"},
		{"a standby of a container", api.StackContainer, standby, "a standby is for virtual machines"},
		{"a standby on a partition", api.StackVM, standbyIB, "a standby is an Ethernet interface, and InfiniBand carries no Ethernet"},
		{"a limited member of a VLAN", api.StackContainer, limited, "limited membership is for networks on InfiniBand"},
	} {
		err := create("refused", tt.stack, tt.on)
		if text := fmt.Sprintf("%+v", err); !client.HasCode(err, "invalid_cluster") || !strings.Contains(text, tt.want) {
			t.Errorf("%s: got %s; want %q", tt.what, text, tt.want)
		}
	}
	c = withPKeys(t, "ib0").Client() // no agent is known here that would lack the environment
	if _, err := c.CreateNetwork(t.Context(), partition("ib", 0)); err != nil {
		t.Fatal(err)
	}
	full := on("project/ib", "vf")
	full.Limited = true
	for name, n := range map[string]api.GroupNetwork{"good": full, "whole": on("project/ib", "pf")} {
		if err := create(name, api.StackContainer, n); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Cluster(t.Context(), "good")
	if n := got.Spec.Groups[0].Networks; err != nil || len(n) != 1 || n[0].Interface != api.InterfaceVF || !n[0].Limited || n[0].String() != "project/ib:vf:limited" {
		t.Errorf("stored %+v, %v", n, err)
	}
	if _, err := c.DeleteNetwork(t.Context(), "project/ib"); !client.HasCode(err, "network_in_use") {
		t.Errorf("a partition in use was deleted: %v", err)
	}
}

func TestAMachineGetsNoWholePortOfAFabricThatNoKeyProtects(t *testing.T) {
	var guarded, open fake.Tables
	open.Unguard()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.PKeys, c.Offers.Fabrics, c.Fabrics = api.PKeyPool{First: 0x100, Last: 0x1ff}, []string{"ib0", "ib1"}, situation.Fabrics{
			"ib0": site.NewKeeper(fake.NewSite(&open), slog.New(slog.DiscardHandler)), "ib1": site.NewKeeper(fake.NewSite(&guarded), slog.New(slog.DiscardHandler)),
		}
	})
	c := s.Client()
	for _, cell := range []string{"ib0", "ib1"} {
		if _, err := c.CreateNetwork(t.Context(), api.NetworkRequest{Name: cell, Technology: api.TechnologyInfiniBand, Cell: cell}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string, stack api.Stack, network string, kind api.Interface) error {
		_, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Stack: stack, Networks: []api.GroupNetwork{{Name: network, Interface: kind}}})
		return err
	}
	const want = "no key protects fabric ib0"
	if err := create("a", api.StackVM, "project/ib0", "pf"); !client.HasCode(err, "invalid_cluster") || !strings.Contains(err.Error(), want) {
		t.Errorf("a whole port: got %v, want %q", err, want)
	}
	for name, err := range map[string]error{
		"a function": create("b", api.StackVM, "project/ib0", "vf"), "a container": create("c", api.StackContainer, "project/ib0", "pf"), "a fabric with keys": create("d", api.StackVM, "project/ib1", "pf"),
	} {
		if err != nil && strings.Contains(err.Error(), "no key protects") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMembersWithFunctionsAreSavedAndMovedAsTheirFunctionsLetThem(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1})
	_, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error {
		g := &in.Spec.Groups[0]
		g.Stack, g.Networks = api.StackVM, []api.GroupNetwork{{Name: "project/fast", Interface: api.InterfacePF}}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSnapshot(t.Context(), "c1", "s"); !client.HasCode(err, "cant_save") || !strings.Contains(err.Error(), "functions of adapters (project/fast)") {
		t.Errorf("a snapshot: %v, want the network named", err)
	}
	if _, err := c.SaveCluster(t.Context(), "c1"); err != nil {
		t.Errorf("a save: %v", err)
	}
}
