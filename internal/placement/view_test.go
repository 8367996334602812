package placement

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func TestADoubleAllocationIsRefusedWithTheAssignmentsThatCollide(t *testing.T) {
	v := viewOf(t, testNode("n1", 4, 1, 8))
	first := api.Assignment{ID: "a", Node: "n1", Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: 4 * gib}}}
	if err := v.Take(first); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		assignment api.Assignment
		want       string
	}{
		{
			"another takes a slot of it",
			api.Assignment{ID: "b", Node: "n1", Slots: []int{1, 2}},
			"assignment b collides with a on node n1: core slots [1] would be allocated twice",
		},
		{"it is taken again", first, "assignment a is already held"},
		{
			"one slot twice in one assignment",
			api.Assignment{ID: "b", Node: "n1", Slots: []int{3, 3}},
			"assignment b collides with b on node n1: core slots [3] would be allocated twice",
		},
		{"a slot that is not there", api.Assignment{ID: "b", Node: "n1", Slots: []int{4}}, "assignment b: node n1 has no core slot 4"},
		{
			"more memory than is left",
			api.Assignment{ID: "b", Node: "n1", Slots: []int{2}, Memory: []api.MemoryClaim{{Bytes: 5 * gib}}},
			"assignment b: node n1 has 4GiB of memory free, not 5GiB",
		},
		{"a node that is not there", api.Assignment{ID: "b", Node: "n9", Slots: []int{2}}, "assignment b: node n9 is not in the inventory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := dump(v)
			if err := v.Take(tt.assignment); err == nil || err.Error() != tt.want {
				t.Errorf("want %q, got %v", tt.want, err)
			}
			if diff := cmp.Diff(before, dump(v)); diff != "" {
				t.Errorf("a refused Take changed the view:\n%s", diff)
			}
		})
	}
}

func TestWhatIsBeingReleasedOrQuarantinedCanNotBeHandedOut(t *testing.T) {
	v := viewOf(t, testNode("n1", 2, 1, 8))
	a := place(t, v, "c1", group("a", 1, 2, 1))[0]
	refused := func(when string) {
		t.Helper()
		if _, refusal := Place(v, Request{Cluster: "c2", Groups: []api.Group{group("b", 1, 1, 1)}}); refusal == nil {
			t.Errorf("%s, its cores were handed out", when)
		}
	}
	if err := v.Free(a.ID); err == nil {
		t.Error("an assignment in use was freed")
	}
	refused("while it is in use")
	if err := v.Release(a.ID); err != nil {
		t.Fatal(err)
	}
	refused("while it is being released")
	if err := v.Quarantine(a.ID); err != nil {
		t.Fatal(err)
	}
	refused("while it is quarantined")
	if err := v.Free(a.ID); err != nil {
		t.Fatal(err)
	}
	place(t, v, "c2", group("b", 1, 2, 1))
	if err := errors.Join(v.Release("x"), v.Quarantine("x"), v.Free("x")); err == nil || strings.Count(err.Error(), "assignment x holds nothing") != 3 {
		t.Errorf("what holds nothing can't be released, quarantined or freed: got %v", err)
	}
}

func TestANodeThatLeavesAndComesBackKeepsWhatIsHeldThere(t *testing.T) {
	v := viewOf(t, testNode("n1", 4, 1, 8), testNode("n2", 1, 1, 8))
	a := place(t, v, "c1", group("a", 1, 3, 1))[0]
	v.RemoveNode("n1")
	v.RemoveNode("n2")
	if got := v.Nodes(); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("only the node that holds something is remembered: got %v", got)
	}
	if v.SetAvailability("n1", Schedulable) {
		t.Error("a node that is not in the inventory became schedulable")
	}
	// It comes back smaller: slots 0 and 1 are held, 2 is not offered any more.
	v.SetNode(testNode("n1", 2, 1, 8), Schedulable)
	if u, _ := v.Usage("n1"); u.FreeCores != 0 || u.Cores != 2 || u.FreeMemoryBytes != 7*gib {
		t.Errorf("usage of the smaller node: %+v", u)
	}
	v.SetNode(testNode("n1", 4, 1, 8), Schedulable)
	if u, _ := v.Usage("n1"); u.FreeCores != 1 || !slices.Equal(u.Holders, []string{a.ID}) {
		t.Errorf("usage of the node as it was: %+v", u)
	}
	if err := errors.Join(v.Release(a.ID), v.Free(a.ID)); err != nil {
		t.Fatal(err)
	}
	if u, _ := v.Usage("n1"); u.FreeCores != 4 {
		t.Errorf("usage of the free node: %+v", u)
	}
	v.RemoveNode("n1")
	v.RemoveNode("n1")
	if got := v.Nodes(); len(got) != 0 {
		t.Errorf("an empty node that was removed is remembered: %v", got)
	}
}

func TestANodeThatIsOnlyKnownByWhatItHoldsGetsNothing(t *testing.T) {
	held := []Held{{Assignment: api.Assignment{ID: "a", Node: "gone", Slots: []int{0}, Memory: []api.MemoryClaim{{Bytes: gib}}}, Releasing: true}}
	v, err := Build([]NodeState{{testNode("n1", 2, 1, 8), Schedulable}}, held, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := v.Sketch().Capacity(group("g", 1, 1, 1))
	if want := (Capacity{Now: 2, NowByCores: 2, WithUnknown: 2, Emptied: 2, Unquarantined: 2, Everything: 2}); got != want {
		t.Errorf("want %+v, got %+v", want, got)
	}
}

func TestAStoredDoubleAllocationIsReportedAndFreesNothing(t *testing.T) {
	nodes := []NodeState{{testNode("n1", 4, 1, 8), Schedulable}}
	held := []Held{
		{Assignment: api.Assignment{ID: "a", Node: "n1", Slots: []int{0, 1}}},
		{Assignment: api.Assignment{ID: "b", Node: "n1", Slots: []int{1, 2}}, Releasing: true},
		{Assignment: api.Assignment{ID: "gone", Node: "n7", Slots: []int{1}}},
	}
	quarantined := []api.Quarantine{{Assignment: api.Assignment{ID: "q", Node: "n1", Slots: []int{3}, Memory: []api.MemoryClaim{{Bytes: gib}}}}}
	v, err := Build(nodes, held, quarantined)
	var collision *Collision
	if !errors.As(err, &collision) || collision.Assignment != "b" || !slices.Equal(collision.Holders, []string{"a"}) {
		t.Errorf("the collision of a and b: got %v", err)
	}
	u, _ := v.Usage("n1")
	want := Usage{
		Cores: 4, QuarantinedCores: 1, MemoryBytes: 8 * gib, FreeMemoryBytes: 7 * gib, QuarantinedMemoryBytes: gib,
		Holders: []string{"a", "b", "q"},
	}
	if diff := cmp.Diff(want, u); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
	if !v.Holds("gone") {
		t.Error("what is held on a node that left the inventory was forgotten")
	}
}

func TestNodesAreInTheOrderPeopleCount(t *testing.T) {
	names := []string{"n1", "n01", "n2", "n10", "n10a", "n10b2", "n10b10", "rack2-n1", "rack10-n1"}
	v := NewView()
	for _, i := range []int{4, 8, 2, 0, 6, 1, 7, 3, 5} {
		v.SetNode(testNode(names[i], 1, 1, 1), Schedulable)
	}
	want := []string{"n01", "n1", "n2", "n10", "n10a", "n10b2", "n10b10", "rack2-n1", "rack10-n1"}
	if diff := cmp.Diff(want, v.Nodes()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestEverythingOfANetworkFollowsFromItsIndex(t *testing.T) {
	n, err := DefaultPool.Network(1023, true)
	if err != nil {
		t.Fatal(err)
	}
	want := api.Network{
		Index: 1023, Prefix: netip.MustParsePrefix("10.127.240.0/20"), Gateway: netip.MustParseAddr("10.127.240.1"), Egress: true,
		IDBase: 1_000_000 + 1023*65_536, IDCount: 65_536,
	}
	if n != want {
		t.Errorf("want %+v, got %+v", want, n)
	}
	for _, index := range []int{0, -1, 1024} {
		if _, err := DefaultPool.Network(index, false); err == nil {
			t.Errorf("index %d is outside of the pool and was accepted", index)
		}
	}
	if got, ok := DefaultPool.IndexOf(netip.MustParseAddr("10.127.255.254")); !ok || got != 1023 {
		t.Errorf("network of an address: %d %t", got, ok)
	}
	for _, a := range []string{"10.128.0.0", "10.64.0.5", "::1"} {
		if got, ok := DefaultPool.IndexOf(netip.MustParseAddr(a)); ok {
			t.Errorf("%s belongs to no cluster network, got %d", a, got)
		}
	}
	large, err := NewPool(netip.MustParsePrefix("10.1.2.3/8"))
	if err != nil || large.MaxIndex() != MaxNetworkIndex || large.String() != "10.0.0.0/8" {
		t.Errorf("pool 10.0.0.0/8: %v %d %v", large, large.MaxIndex(), err)
	}
	for _, p := range []string{"10.0.0.0/20", "10.0.0.0/24", "fd00::/8", "0.0.0.0/0", "169.254.0.0/16", "198.18.0.0/16", "224.0.0.0/8"} {
		if _, err := NewPool(netip.MustParsePrefix(p)); err == nil {
			t.Errorf("pool %s has no room for a cluster and was accepted", p)
		}
	}
}

func TestTheLowestNetworkThatNobodyUsesIsHandedOut(t *testing.T) {
	quarantined := []api.Quarantine{{Assignment: api.Assignment{Ports: []api.PortClaim{{Address: netip.MustParseAddr("10.64.32.9")}}}}}
	inUse := DefaultPool.Indexes([]api.ClusterRecord{{Network: api.Network{Index: 1}}, {Network: api.Network{Index: 4}}, {}}, quarantined)
	n, err := DefaultPool.TakeNetwork(inUse, "u", false)
	if err != nil || n.Index != 3 {
		t.Errorf("1 and 4 are clusters', 2 is quarantined: want 3, got %d, %v", n.Index, err)
	}
	small, err := NewPool(netip.MustParsePrefix("172.16.0.0/18"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = small.TakeNetwork(small.Indexes([]api.ClusterRecord{{Network: api.Network{Index: 1}}, {Network: api.Network{Index: 2}}, {Network: api.Network{Index: 3}}}, nil), "u", false)
	if want := "all 3 cluster networks of subnet pool 172.16.0.0/18 are in use: delete a cluster, or start the server with a larger pool (--network-pool)"; err == nil || err.Error() != want {
		t.Errorf("want %q, got %v", want, err)
	}
}

func TestAnotherPoolGivesNoNetworkThatIsInUseSinceBefore(t *testing.T) {
	fresh, err := NewPool(netip.MustParsePrefix("10.72.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	living, err := DefaultPool.Network(129, false) // 10.72.16.0/20, which is network 1 of the new pool
	if err != nil {
		t.Fatal(err)
	}
	gone, err := DefaultPool.Network(2, false)
	if err != nil {
		t.Fatal(err)
	}
	unclean := api.Quarantine{Assignment: api.Assignment{Ports: []api.PortClaim{{Address: gone.Gateway.Next(), MAC: MAC(2, 2)}}}}
	inUse := fresh.Indexes([]api.ClusterRecord{{Network: living}}, []api.Quarantine{unclean})
	n, err := fresh.TakeNetwork(inUse, "u", false)
	if err != nil || n.Index != 3 {
		t.Errorf("1 has a living cluster's addresses, 2 a quarantined member's user IDs: want 3, got %d, %v", n.Index, err)
	}
	if !inUse.Holds(129) {
		t.Error("the living cluster's index is not in use")
	}
}

func TestAssignmentsAreCompleteAndAddressesInUseAreNotGivenAgain(t *testing.T) {
	network, err := DefaultPool.Network(2, false)
	if err != nil {
		t.Fatal(err)
	}
	placed := []Placed{
		{Group: "a", Member: "a-0", Node: "n1", Slots: []int{0}, CPUs: []int{4}, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 5}}, RAMBoot: 3, Stack: api.StackContainer, Environment: "local"},
		{Group: "a", Member: "a-1", Rank: 1, Node: "n2", Oversubscribed: true},
	}
	held := []api.Assignment{{Ports: []api.PortClaim{{Address: netip.MustParseAddr("10.64.32.3")}}}}
	got, err := Assign(placed, Decision{ClusterUID: "uid", Cluster: "c1", Generation: 7, Network: network, Held: held})
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Assignment{
		{
			ID: "uid.a-0.7", ClusterUID: "uid", Cluster: "c1", Generation: 7, Group: "a", Member: "a-0", Node: "n1", CleanBy: api.ByAgents("n1"), RAMBoot: 3, Slots: []int{0}, CPUs: []int{4},
			NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 5}}, Stack: api.StackContainer, Environment: "local",
			Ports: []api.PortClaim{{Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.32.2"), MAC: "02:6e:00:02:00:02"}},
		},
		{
			ID: "uid.a-1.7", ClusterUID: "uid", Cluster: "c1", Generation: 7, Group: "a", Member: "a-1", Rank: 1, Node: "n2", CleanBy: api.ByAgents("n2"), Oversubscribed: true,
			Ports: []api.PortClaim{{Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.32.4"), MAC: "02:6e:00:02:00:04"}},
		},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("assignments (-want +got):\n%s", diff)
	}
	full := make([]Placed, MaxMembers)
	if _, err := Assign(full, Decision{Network: network}); err != nil {
		t.Errorf("%d members have addresses: %v", MaxMembers, err)
	}
	if _, err := Assign(full, Decision{Network: network, Held: held}); err == nil {
		t.Error("the network has no address left, and one was given")
	}
}
