package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/state"
)

// routedEnds are labEnds on a routed network of a project.
func routedEnds(project, uid string, index int, reached bool, all ...labEnd) map[string]ends {
	on := labEnds(reached, all...)["lab"]
	on.network = api.Network{
		UID: uid, Index: index, Project: project, Routed: true,
		Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(index), 0, 0}), 16), Gateway: netip.AddrFrom4([4]byte{10, byte(index), 0, 1}),
	}
	return map[string]ends{uid: on}
}

// described returns the networks of a node: their ports, and the peers of their members on other nodes.
func described(n *carried, node string) []string {
	var d agentstream.Desired
	n.addTo(&d, node)
	var all []string
	for _, network := range whole(d).Networks {
		var ports []string
		for _, p := range network.Ports {
			ports = append(ports, p.ID)
		}
		all = append(all, fmt.Sprintf("%s %v %v", network.UID, ports, network.Peers()))
	}
	return all
}

func TestANodeHasAllNetworksThatItsMembersAreRoutedTo(t *testing.T) {
	n := newCarried(outward{}, false)
	want := func(what string, nodes map[string][]string) {
		t.Helper()
		for node, networks := range nodes {
			if got := described(&n, node); !slices.Equal(got, networks) {
				t.Errorf("%s: %s has %q, want %q", what, node, got, networks)
			}
		}
	}
	a := routedEnds("lab", "a", 1, true, labEnd{"n1", 1, "a-0"})
	n.set("ua", nil, a)
	n.set("uc", nil, routedEnds("class", "c", 3, true, labEnd{"n2", 2, "c-0"}))
	merge(t, &n)
	want("alone", map[string][]string{"n1": {"a [a-0] []"}, "n2": {"c [c-0] []"}})

	n.set("ub", nil, routedEnds("lab", "b", 2, true, labEnd{"n2", 2, "b-0"}))
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Errorf("with a second network of the project, nodes %v change", got)
	}
	want("two networks", map[string][]string{
		"n1": {"a [a-0] []", "b [] [198.18.0.2]"}, "n2": {"a [] [198.18.0.1]", "b [b-0] []", "c [c-0] []"},
	})

	peers := n.merged["b"].peers
	more := routedEnds("lab", "a", 1, true, labEnd{"n1", 1, "a-0"}, labEnd{"n3", 3, "a-1"})
	n.set("ua", a, more)
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2", "n3"}) || n.merged["b"].peers != peers {
		t.Errorf("with a member on a third node, nodes %v change, and the other network is described anew", got)
	}
	want("a third node", map[string][]string{"n3": {"a [a-1] [198.18.0.1]", "b [] [198.18.0.2]"}})

	lost := routedEnds("lab", "a", 1, true, labEnd{"n1", 1, "a-0"})
	lost["a"].byNode["n3"] = routedEnds("lab", "a", 1, false, labEnd{"n3", 3, "a-1"})["a"].byNode["n3"]
	n.set("ua", more, lost)
	merge(t, &n)
	want("a node with a lost member alone", map[string][]string{"n3": {"a [a-1] []"}, "n2": {"a [] [198.18.0.1]", "b [b-0] []", "c [c-0] []"}})

	n.set("ua", lost, nil)
	n.set("ub", map[string]ends{"b": n.ends["b"]["ub"]}, nil)
	n.set("uc", map[string]ends{"c": n.ends["c"]["uc"]}, nil)
	if merge(t, &n); len(n.ends)+len(n.merged)+len(n.routers)+len(n.routerOf) > 0 {
		t.Errorf("after all networks, %v, %v and %v are left", n.merged, n.routers, n.routerOf)
	}
}

func TestASecurityGroupHasItsMembersOnAllRoutedNetworks(t *testing.T) {
	n := newCarried(outward{}, false)
	n.rules[state.SecurityGroupName("lab", "web")] = []string{"in tcp 80 from group ops"}
	guarded := func(project, uid string, index int, e labEnd, group string) map[string]ends {
		on := routedEnds(project, uid, index, true, e)
		at := on[uid].byNode[e.node]
		at.guarded = []portgroups.Port{{ID: e.port, Address: at.ports[0].Address, Groups: []string{group}}}
		on[uid].byNode[e.node] = at
		return on
	}
	members := func(node, group string) []netip.Addr {
		var d agentstream.Desired
		n.addTo(&d, node)
		for _, network := range whole(d).Networks {
			for _, g := range network.Groups {
				if g.ID == group {
					return g.Members
				}
			}
		}
		return nil
	}
	n.set("ua", nil, guarded("lab", "a", 1, labEnd{"n1", 1, "a-0"}, "web"))
	n.set("uc", nil, guarded("class", "c", 3, labEnd{"n3", 3, "c-0"}, "ops"))
	merge(t, &n)
	if got := members("n1", "ops"); len(got) > 0 {
		t.Errorf("the group of another project has members here: %v", got)
	}
	b := guarded("lab", "b", 2, labEnd{"n2", 2, "b-0"}, "ops")
	n.set("ub", nil, b)
	merge(t, &n)
	if got, want := members("n1", "ops"), b["b"].byNode["n2"].ports[0].Address; !slices.Equal(got, []netip.Addr{want}) {
		t.Errorf("the group's members on the other network are %v, want %v", got, want)
	}
	n.set("ub", b, nil)
	merge(t, &n)
	if got := members("n1", "ops"); len(got) > 0 {
		t.Errorf("when the port is gone, the group still has %v", got)
	}
}
