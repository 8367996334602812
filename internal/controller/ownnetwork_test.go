package controller

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/state"
)

func onVLAN(g *api.Group) { g.Interface = api.InterfaceVF }

func placed(name string) func(*state.View) bool {
	return func(v *state.View) bool {
		return v.Cluster(name).Record != nil && v.Cluster(name).Record.PlacedAt != nil
	}
}

func refused(name string) func(*state.View) bool {
	return func(v *state.View) bool {
		return v.Cluster(name).Record != nil && v.Cluster(name).Record.Phase == api.ClusterRefused
	}
}

func TestAnOwnNetworkOnAVLANHasItsNumberUntilTheLastProof(t *testing.T) {
	w := newPartitioned(t)
	vlan := api.ClusterSpec{Technology: api.TechnologyVLAN}
	w.askFor("first", vlan, onVLAN)
	view := w.passes("placed", placed("first"))
	n, a := view.Network("ufirst"), only(t, view.Cluster("first"))
	if n.Technology != api.TechnologyVLAN || n.VLAN != 100 || n.Name != "first" || len(view.Cluster("first").Record.Networks) != 1 {
		t.Errorf("its own network is %+v, one of %v", n, view.Cluster("first").Record.Networks)
	}
	if p := a.Ports[0]; len(a.Ports) != 1 || p.Kind != api.PortVF || p.Device != "0000:5e:00.0" || p.Part != "vf0" || p.GUID != "" || len(a.CleanBy) != 1 {
		t.Errorf("its ports are %+v, clean by %v: want one, on the Ethernet adapter", a.Ports, a.CleanBy)
	}
	w.report(api.MemberReady)
	w.passes("ready", func(v *state.View) bool { return v.Cluster("first").Record.Phase == api.ClusterReady })
	told := w.agents.desired["n1"].Networks
	if len(told) != 1 || told[0].VLAN != 100 || len(told[0].Ports) != 1 || told[0].Ports[0].Interface != "eth0" || told[0].Ports[0].Function.Part != "vf0" {
		t.Errorf("the node has the order %+v", told)
	}
	w.askFor("second", vlan, onVLAN)
	view = w.passes("refused", refused("second"))
	if why := view.Cluster("second").Record.Message; !strings.Contains(why, "all VLANs of the site's pool (100-100) are in use: delete a network, or a cluster, on one") {
		t.Errorf("without a VLAN, the second is refused with %q", why)
	}
	w.release(w.cache.View().Cluster("first"))
	w.view(w.repo.CreateNetwork(t.Context(), api.NetworkIntent{Name: "wire", UID: "uwire", Project: api.DefaultProject, Technology: api.TechnologyVLAN, VLAN: 100, CreatedAt: w.now}))
	view = w.passes("answered", func(v *state.View) bool { return v.Network("uwire") != nil })
	if n := view.Network("uwire"); !strings.Contains(n.Refused, "VLAN 100 was given to another network by then") {
		t.Errorf("before the proof, its VLAN was given to %+v", n)
	}
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("gone", func(v *state.View) bool { return v.Cluster("first") == nil && v.Network("ufirst") == nil })
	w.askFor("third", vlan, onVLAN)
	view = w.passes("placed", placed("third"))
	if n := view.Network("uthird"); n.VLAN != 100 {
		t.Errorf("after the proof, the network is %+v", n)
	}
}

func TestAClusterLargerThanTheFunctionsIsRefusedWithTheAdapter(t *testing.T) {
	w := newPartitioned(t)
	w.askFor("large", api.ClusterSpec{Technology: api.TechnologyInfiniBand, Cell: "ib0"}, func(g *api.Group) {
		g.Size, g.Networks = 2, []api.GroupNetwork{{Name: api.OwnPartition, Interface: api.InterfaceVF}}
	})
	view := w.passes("refused", refused("large"))
	if why := view.Cluster("large").Record.Message; !strings.Contains(why, "a virtual function of an InfiniBand adapter in cell ib0") || view.Network("ularge") != nil {
		t.Errorf("it is refused with %q, and network %+v is stored", why, view.Network("ularge"))
	}
}

func TestAClustersOwnPartitionHasItsKeyUntilTheFabricsProof(t *testing.T) {
	w := newPartitioned(t)
	ib := api.ClusterSpec{Technology: api.TechnologyInfiniBand, Cell: "ib0"}
	w.askFor("first", ib, func(g *api.Group) {
		g.Networks = []api.GroupNetwork{{Name: api.OwnPartition, Interface: api.InterfaceVF}}
	})
	view := w.passes("placed", placed("first"))
	own, partition, a := view.Network("ufirst"), view.Network("ufirst.infiniband"), only(t, view.Cluster("first"))
	if own.Technology != api.TechnologyVXLAN || partition == nil || partition.Technology != api.TechnologyInfiniBand || partition.Cell != "ib0" ||
		partition.PKey == 0 || partition.PKey == view.Network("uib").PKey || partition.Name != "first:infiniband" {
		t.Fatalf("its networks are %+v and %+v", own, partition)
	}
	if len(a.Ports) != 2 || a.Ports[0].Kind != api.PortVeth || a.Ports[1].Kind != api.PortVF || a.Ports[1].Device != "0000:3b:00.0" || a.Ports[1].Fabric != "ib0" || len(a.CleanBy) != 2 {
		t.Fatalf("its ports are %+v, clean by %v: want one on tunnels, and one on the InfiniBand adapter", a.Ports, a.CleanBy)
	}
	guid := a.Ports[1].GUID
	w.report(api.MemberReady)
	w.passes("ready", func(v *state.View) bool { return v.Cluster("first").Record.Phase == api.ClusterReady })
	if tables := w.tables.Networks(); len(tables) != 1 || tables[0].Number != partition.PKey || len(tables[0].Ports) != 1 || tables[0].Ports[0] != (site.Port{At: guid}) {
		t.Errorf("the fabric has %+v, want GUID %s as a full member of partition %#x", tables, guid, partition.PKey)
	}
	w.tables.Stick(guid, true)
	w.release(w.cache.View().Cluster("first"))
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("the agent's proof is stored", func(v *state.View) bool { return len(v.Cluster("first").Record.Proved) == 1 })
	w.view(w.repo.CreateNetwork(t.Context(), api.NetworkIntent{
		Name: "late", UID: "ulate", Project: api.DefaultProject, Technology: api.TechnologyInfiniBand, PKey: partition.PKey, CreatedAt: w.now,
	}))
	view = w.passes("answered", func(v *state.View) bool { return v.Network("ulate") != nil })
	if n := view.Network("ulate"); !strings.Contains(n.Refused, "was given to another network by then") {
		t.Errorf("before the fabric's proof, the key was given to %+v", n)
	}
	w.tables.Stick(guid, false)
	w.passes("gone", func(v *state.View) bool { return v.Cluster("first") == nil && v.Network("ufirst.infiniband") == nil })
}
