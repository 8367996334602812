package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestMembersOnVLANsGoToNodesWithATrunk(t *testing.T) {
	trunk := func(name string, trunk *api.Trunk) api.NodeRecord {
		rec := under(testNode(name, 4, 1, 64), 9000)
		rec.Trunk = trunk
		return rec
	}
	v := viewOf(t, trunk("n1", nil), trunk("n2", &api.Trunk{Interface: "eth1", MTU: 9000}),
		trunk("n3", &api.Trunk{Interface: "eth1", Problem: "link eth1 is down"}), trunk("n4", &api.Trunk{Interface: "eth1", MTU: 1500}))
	wire := func(size int) api.Group {
		g := group("compute", size, 1, 1)
		g.PortMTU = api.PortMTU{VLAN: "project/wire", TrunkBytes: 8000}
		return g
	}
	placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{wire(4)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	for _, p := range placed {
		if p.Node != "n2" {
			t.Errorf("member %s is on %s, want n2 alone", p.Member, p.Node)
		}
	}
	_, refusal = Place(v, Request{Cluster: "c1", Groups: []api.Group{wire(5)}})
	const want = "too few nodes can carry network project/wire, which is on a VLAN (n1: it has no trunk for the VLAN; start its agent with --trunk-interface; " +
		"n3: its trunk can't be used: link eth1 is down; n4: its trunk eth1 has an MTU of 1500 bytes, and 8000 are needed)"
	if refusal == nil || !strings.Contains(refusal.Message, want) {
		t.Errorf("a fifth member: got %+v", refusal)
	}
	const why = "node n1 can't carry network project/wire: it has no trunk for the VLAN; start its agent with --trunk-interface"
	if reason, _ := v.Sketch().WhyNot("n1", wire(1)); reason != why {
		t.Errorf("why not n1: got %q", reason)
	}
}
