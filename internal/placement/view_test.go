package placement

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
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
	if want := (Capacity{Now: 2, NowByCores: 2, NowWithoutDisk: 2, NowWithoutHugePages: 2, NowWithoutRates: 2, WithUnknown: 2, Soon: 2, Emptied: 2, Unquarantined: 2, Everything: 2}); got != want {
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
		Besides: resource.Vector{resource.Uplink: resource.Unmeasured}, Holders: []string{"a", "b", "q"},
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

func TestAssignmentsAreCompleteAndAddressesInUseAreNotGivenAgain(t *testing.T) {
	network := nth(2)
	placed := []Placed{
		{Group: "a", Member: "a-0", Node: "n1", Slots: []int{0}, CPUs: []int{4}, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 5}}, RAMBoot: 3, Stack: api.StackContainer, Environment: "local"},
		{Group: "a", Member: "a-1", Rank: 1, Node: "n2", Oversubscribed: true},
	}
	held := []api.Assignment{{Ports: []api.PortClaim{{Network: "n2", Address: netip.MustParseAddr("10.64.32.3")}}}}
	got, err := Assign(placed, Decision{ClusterUID: "uid", Cluster: "c1", Generation: 7, Networks: []api.Network{network}, Held: held})
	if err != nil {
		t.Fatal(err)
	}
	want := []api.Assignment{
		{
			ID: "uid.a-0.7", ClusterUID: "uid", Cluster: "c1", Generation: 7, Group: "a", Member: "a-0", Node: "n1", CleanBy: api.ByAgents("n1"), RAMBoot: 3, Slots: []int{0}, CPUs: []int{4},
			NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 5}}, Stack: api.StackContainer, Environment: "local",
			Ports: []api.PortClaim{{Network: "n2", Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.32.2"), MAC: "02:6e:00:02:00:02"}},
		},
		{
			ID: "uid.a-1.7", ClusterUID: "uid", Cluster: "c1", Generation: 7, Group: "a", Member: "a-1", Rank: 1, Node: "n2", CleanBy: api.ByAgents("n2"), Oversubscribed: true,
			Ports: []api.PortClaim{{Network: "n2", Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.32.4"), MAC: "02:6e:00:02:00:04"}},
		},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("assignments (-want +got):\n%s", diff)
	}
	full := make([]Placed, MaxMembers)
	if _, err := Assign(full, Decision{Networks: []api.Network{network}}); err != nil {
		t.Errorf("%d members have addresses: %v", MaxMembers, err)
	}
	if _, err := Assign(full, Decision{Networks: []api.Network{network}, Held: held}); err == nil {
		t.Error("the network has no address left, and one was given")
	}
}
