package placement

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

func TestTheNthPlacedOfAGroupIsTheNthThatIsWantedOfIt(t *testing.T) {
	network := nth(7)
	placed, refusal := Place(viewOf(t, testNode("n1", 8, 1, 8)), Request{Cluster: "c", Groups: []api.Group{group("a", 2, 1, 1), group("b", 2, 1, 1)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	noon := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	d := Decision{
		ClusterUID: "u", Cluster: "c", Generation: 4, Networks: []api.Network{network}, TakenAt: noon,
		// Two are held: one of the cluster, one that is quarantined.
		Held: []api.Assignment{{Ports: []api.PortClaim{{Network: network.UID, Address: pool.Offset(network.Prefix.Addr(), firstHost)}}}, {Ports: []api.PortClaim{{Network: network.UID, Address: pool.Offset(network.Prefix.Addr(), firstHost+2)}}}},
		Members: []MemberName{
			{Group: "b", Member: "b-7", Rank: 9, Replaces: "u.b-7.2", Attempt: 3},
			{Group: "a", Member: "a-1", Rank: 1},
			{Group: "a", Member: "a-spare-0", Rank: 12, Spare: true},
			{Group: "b", Member: "b-0", Rank: 2},
		},
	}
	assignments, err := Assign(placed, d)
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		ID, Member, Replaces, Address string
		Rank, Attempt                 int
		Spare                         bool
	}
	var got []line
	for _, a := range assignments {
		if !a.TakenAt.Equal(noon) {
			t.Errorf("%s is taken at %v", a.ID, a.TakenAt)
		}
		got = append(got, line{a.ID, a.Member, a.Replaces, a.Address().String(), a.Rank, a.Attempt, a.Spare})
	}
	want := []line{
		{"u.a-1.4", "a-1", "", "10.64.112.3", 1, 0, false},
		{"u.a-spare-0.4", "a-spare-0", "", "10.64.112.5", 12, 0, true},
		{"u.b-7.4", "b-7", "u.b-7.2", "10.64.112.6", 9, 3, false},
		{"u.b-0.4", "b-0", "", "10.64.112.7", 2, 0, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("assignments (-want +got):\n%s", diff)
	}
	for name, members := range map[string][]MemberName{
		"requested, but 4 are placed":        append(d.Members, MemberName{Group: "a"}),
		"more placed members than requested": d.Members[:3],
	} {
		d := d
		d.Members = members
		if _, err := Assign(placed, d); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("names that don't match what is placed: %v, want %q", err, name)
		}
	}
}

func TestAFixedAddressIsItsGroupsAloneWhetherOrNotAMemberHasIt(t *testing.T) {
	own, lab := nth(7), nth(8)
	lab.UID, lab.Name, lab.ClusterUID = "net-lab", "project/lab", ""
	host := func(n int) netip.Addr { return pool.Offset(lab.Prefix.Addr(), uint32(n)) }
	placed, refusal := Place(viewOf(t, testNode("n1", 8, 1, 8)), Request{Cluster: "c", Groups: []api.Group{group("a", 2, 1, 1), group("b", 1, 1, 1)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	d := Decision{
		ClusterUID: "u", Cluster: "c", Generation: 1, Networks: []api.Network{own, lab},
		Further:  map[string][]api.GroupNetwork{"a": api.OnNetworks("project/lab"), "b": api.OnNetworks("project/lab")},
		Fixed:    map[string]map[string]netip.Addr{"b": {"project/lab": host(firstHost + 1)}},
		Reserved: map[string][]netip.Addr{lab.UID: {host(firstHost), host(firstHost + 1)}}, // the first is another cluster's, whose member is lost
	}
	assignments, err := Assign(placed, d)
	if err != nil {
		t.Fatal(err)
	}
	var got []netip.Addr
	for _, a := range assignments {
		got = append(got, a.Ports[1].Address)
	}
	if want := []netip.Addr{host(firstHost + 2), host(firstHost + 3), host(firstHost + 1)}; !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
	d.Held = []api.Assignment{{Ports: []api.PortClaim{{Network: lab.UID, Address: host(firstHost + 1)}}}}
	if _, err := Assign(placed, d); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Errorf("an address that somebody holds is given again: %v", err)
	}
}

func TestASpareIsGivenBackAtOnceAndItsRoomTakenOver(t *testing.T) {
	v := viewOf(t, testNode("n1", 2, 1, 8))
	spare := api.Assignment{ID: "spare", Node: "n1", Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: gib}}, Spare: true}
	heir := spare
	heir.ID, heir.Spare = "heir", false
	if err := v.Take(spare); err != nil {
		t.Fatal(err)
	}
	if err := v.Take(heir); err == nil {
		t.Fatal("a held spare's room was given away")
	}
	if err := v.Release("spare"); err != nil {
		t.Fatal(err)
	}
	if err := v.Free("spare"); err != nil {
		t.Fatal(err)
	}
	if err := v.Take(heir); err != nil {
		t.Fatal(err)
	}
}
