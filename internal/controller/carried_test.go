package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// lab is a network with ends of one cluster: each is a node with the last octet of its underlay address, 0 for none, and a port's ID.
type labEnd struct {
	node     string
	underlay byte
	port     string
}

func labEnds(reached bool, all ...labEnd) map[string]ends {
	on := ends{network: api.Network{UID: "lab", Index: 7}, byNode: map[string]end{}}
	for _, e := range all {
		address := netip.AddrFrom4([4]byte{10, 64, e.port[0], e.port[2]})
		next := end{ports: []fabric.Port{{ID: e.port, Address: address, MAC: fmt.Sprintf("02:6e:00:07:%02x:%02x", e.port[0], e.port[2])}}}
		if reached {
			next.reached = next.ports
		}
		if e.underlay > 0 {
			next.address = netip.AddrFrom4([4]byte{198, 18, 0, e.underlay})
		}
		on.byNode[e.node] = next
	}
	return map[string]ends{"lab": on}
}

// seen returns the port IDs and peers of the only network of a node.
func seen(t *testing.T, n *carried, node string) (ports []string, peers []netip.Addr) {
	t.Helper()
	var d agentstream.Desired
	n.addTo(&d, node)
	whole := whole(d)
	if len(whole.Networks) != 1 {
		t.Fatalf("node %s has networks %+v, want one", node, whole.Networks)
	}
	for _, p := range whole.Networks[0].Ports {
		ports = append(ports, p.ID)
	}
	return ports, whole.Networks[0].Peers()
}

func merge(t *testing.T, n *carried) []string {
	t.Helper()
	dirty := map[string]bool{}
	if failed := n.merge(dirty); len(failed) > 0 {
		t.Fatal(failed)
	}
	return nodesOf(dirty)
}

func TestANetworkHasThePortsAndPeersOfAllItsClusters(t *testing.T) {
	n := newCarried(outward{}, false)
	a := labEnds(true, labEnd{"n1", 1, "a-0"}, labEnd{"n2", 2, "a-1"})
	n.set("ua", nil, a)
	n.set("ub", nil, labEnds(true, labEnd{"n2", 2, "b-0"}, labEnd{"n3", 3, "b-1"}))
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("two clusters on one network reach nodes %v", got)
	}
	address := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, 0, last}) }
	ports, peers := seen(t, &n, "n2")
	if !slices.Equal(ports, []string{"a-1", "b-0"}) || !slices.Equal(peers, []netip.Addr{address(1), address(3)}) {
		t.Errorf("n2 has ports %v and peers %v, want those of both clusters", ports, peers)
	}

	n.set("ub", n.ends["lab"]["ub"].asMap(), labEnds(true, labEnd{"n3", 3, "b-1"}))
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("when a member leaves a node with another cluster's member, nodes %v change, want all, which no longer reach it", got)
	}
	n.set("ub", n.ends["lab"]["ub"].asMap(), nil)
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
		t.Errorf("when a cluster ends, nodes %v change, want its node and the others, which lose a peer", got)
	}
	if _, peers := seen(t, &n, "n1"); !slices.Equal(peers, []netip.Addr{address(2)}) {
		t.Errorf("n1 has peers %v, want n2 alone", peers)
	}
	n.set("ua", a, a)
	if got := merge(t, &n); len(got) > 0 {
		t.Errorf("when nothing changes, nodes %v change", got)
	}
	n.set("ua", a, nil)
	if got := merge(t, &n); !slices.Equal(got, []string{"n1", "n2"}) || len(n.ends)+len(n.merged) > 0 {
		t.Errorf("when the network ends, nodes %v change, and %v is left", got, n.merged)
	}
}

func TestANodeOfOneClustersLostMembersIsStillReachedForAnothers(t *testing.T) {
	n := newCarried(outward{}, false)
	n.set("ua", nil, labEnds(false, labEnd{"n1", 1, "a-0"}))
	n.set("ub", nil, labEnds(true, labEnd{"n2", 2, "b-0"}))
	merge(t, &n)
	if _, peers := seen(t, &n, "n1"); len(peers) > 0 {
		t.Errorf("a node with lost members alone has peers %v", peers)
	}
	if _, peers := seen(t, &n, "n2"); len(peers) > 0 {
		t.Errorf("a node with lost members alone is a peer: %v", peers)
	}
	// Clusters are taken in the order of their UIDs: that with lost members comes before one with members, and after the other.
	for _, uid := range []string{"uc", "u0"} {
		n.set(uid, nil, labEnds(true, labEnd{"n1", 1, "c-0"}))
		merge(t, &n)
		if _, peers := seen(t, &n, "n1"); len(peers) != 1 {
			t.Errorf("a node on which cluster %s has a member has peers %v, want one", uid, peers)
		}
		n.set(uid, n.ends["lab"][uid].asMap(), nil)
		merge(t, &n)
	}
}

func TestALostMemberIsNotReachedOnANodeThatAnotherClusterKeepsAPeer(t *testing.T) {
	n := newCarried(outward{}, false)
	n.set("ua", nil, labEnds(true, labEnd{"n1", 1, "a-0"}, labEnd{"n2", 2, "a-1"}))
	n.set("ub", nil, labEnds(true, labEnd{"n2", 2, "b-0"}))
	merge(t, &n)
	behind := func(node string) (ids []string) {
		var d agentstream.Desired
		n.addTo(&d, node)
		for _, r := range whole(d).Networks[0].Remotes {
			four := r.Address.As4()
			ids = append(ids, fmt.Sprintf("%c-%c at %v", four[2], four[3], r.Peer))
		}
		return ids
	}
	if got := behind("n1"); !slices.Equal(got, []string{"a-1 at 198.18.0.2", "b-0 at 198.18.0.2"}) {
		t.Errorf("from n1, %q are reached, want both members on n2", got)
	}
	// a-1 is let go and its port is still there, or it was lost and its port is cut off on its own node, too.
	for _, port := range []bool{true, false} {
		lost := labEnds(false, labEnd{"n2", 2, "a-1"})
		if !port {
			lost["lab"].byNode["n2"] = end{tunnelEnd: tunnelEnd{address: netip.MustParseAddr("198.18.0.2")}}
		}
		lost["lab"].byNode["n1"] = labEnds(true, labEnd{"n1", 1, "a-0"})["lab"].byNode["n1"]
		n.set("ua", n.ends["lab"]["ua"].asMap(), lost)
		merge(t, &n)
		if got := behind("n1"); !slices.Equal(got, []string{"b-0 at 198.18.0.2"}) {
			t.Errorf("from n1, %q are reached, want the member of the other cluster alone", got)
		}
	}
}

// asMap is what a cluster has of its networks, here of one.
func (on ends) asMap() map[string]ends { return map[string]ends{on.network.UID: on} }
