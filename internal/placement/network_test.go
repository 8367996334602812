package placement

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// nth is a network of 4,093 members, number n in the default pool.
func nth(n int) api.Network {
	prefix := netip.PrefixFrom(pool.Offset(DefaultPool.Prefix().Addr(), uint32(n)<<12), 20)
	return api.Network{UID: fmt.Sprint("n", n), Index: n, Prefix: prefix, Gateway: prefix.Addr().Next()}
}

func mustPool(t *testing.T, prefix string) Pool {
	t.Helper()
	p, err := NewPool(netip.MustParsePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAPoolHasRoomAndMeansNothingElse(t *testing.T) {
	if p := mustPool(t, "10.1.2.3/8"); p.String() != "10.0.0.0/8" {
		t.Errorf("the pool is %s", p)
	}
	for _, p := range []string{"10.0.0.0/20", "10.0.0.0/24", "fd00::/8", "0.0.0.0/0", "169.254.0.0/16", "198.18.0.0/16", "224.0.0.0/8"} {
		if _, err := NewPool(netip.MustParsePrefix(p)); err == nil {
			t.Errorf("pool %s has no room for a cluster and was accepted", p)
		}
	}
}

func TestNetworksGetTheLowestNumbersThatNobodyHas(t *testing.T) {
	one, four := nth(1), nth(4)
	n := DefaultPool.Numbers([]*api.Network{&one, &four}, nil, nil)
	for _, want := range []api.Network{nth(2), nth(3), nth(5)} {
		got, err := n.Network(api.Network{UID: want.UID}, 10)
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestMoreThanAThousandClustersHaveNetworksOfTheDefaultPool(t *testing.T) {
	n := DefaultPool.Numbers(nil, nil, nil)
	taken := map[netip.Prefix]bool{}
	indexes := map[int]bool{}
	large := 0
	for i := range 2000 {
		got, err := n.Network(api.Network{UID: fmt.Sprint("u", i)}, 8)
		if err != nil {
			t.Fatalf("network %d: %v", i, err)
		}
		if got.Prefix.Bits() == largeBits {
			large++
		}
		if taken[got.Prefix] || indexes[got.Index] || !got.Prefix.Contains(got.Gateway) || !DefaultPool.Prefix().Contains(got.Gateway) || got.Prefix != got.Prefix.Masked() {
			t.Fatalf("network %d has %s, index %d", i, got.Prefix, got.Index)
		}
		for other := range taken {
			if other.Overlaps(got.Prefix) {
				t.Fatalf("%s overlaps %s", got.Prefix, other)
			}
		}
		taken[got.Prefix], indexes[got.Index] = true, true
	}
	if large < 500 || large > 520 {
		t.Errorf("%d of 2,000 have a large subnet, want about half of the pool, 512", large)
	}
}

func TestALargeClusterGetsALargeSubnetOrNone(t *testing.T) {
	p := mustPool(t, "172.16.0.0/18")
	n := p.Numbers(nil, nil, nil)
	for i := range 12 { // of 16 blocks the first is unused, and two large ones go first
		if _, err := n.Network(api.Network{UID: fmt.Sprint("u", i)}, 1); err != nil {
			if i < 7 {
				t.Fatalf("network %d: %v", i, err)
			}
			break
		}
	}
	_, err := n.Network(api.Network{UID: "large"}, smallBlock+1)
	want := fmt.Sprintf("subnet pool 172.16.0.0/18 has no room for another network of %d members: delete a cluster, or start the server with a larger pool (--network-pool)", smallBlock+1)
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
	if got, err := p.Numbers(nil, nil, nil).Network(api.Network{UID: "large"}, MaxMembers); err != nil || Room(&got) != MaxMembers {
		t.Errorf("the largest cluster got %s, %v", got.Prefix, err)
	}
}

func TestAnotherPoolGivesNoNumbersThatAreInUseSinceBefore(t *testing.T) {
	living := nth(129) // 10.72.16.0/20, which is the first large subnet of the new pool
	n := mustPool(t, "10.72.0.0/16").Numbers([]*api.Network{&living}, nil, nil)
	got, err := n.Network(api.Network{UID: "u"}, 10)
	if err != nil || got.Prefix.String() != "10.72.32.0/20" || got.Index != 1 {
		t.Errorf("got %s, index %d, %v, want the subnet after the one in use", got.Prefix, got.Index, err)
	}
}

func TestUserIDsOfQuarantinedMembersAreGivenToNobody(t *testing.T) {
	first, err := DefaultPool.Numbers(nil, nil, nil).UserIDs("u1")
	if err != nil {
		t.Fatal(err)
	}
	second, err := DefaultPool.Numbers(nil, []*api.ClusterRecord{{UID: "u1", UserIDs: first}, {UID: "pending"}}, nil).UserIDs("u2")
	if err != nil || second.First != first.First+first.Count || second.Count != 65536 {
		t.Errorf("beside %v: got %v, %v", first, second, err)
	}
	quarantined := []*api.Quarantine{{Assignment: api.Assignment{ClusterUID: "u1", UserIDs: first}}}
	third, err := DefaultPool.Numbers(nil, []*api.ClusterRecord{{UID: "u2", UserIDs: second}}, quarantined).UserIDs("u3")
	if err != nil || third == first || third == second {
		t.Errorf("beside %v and %v: got %v, %v", first, second, third, err)
	}
	last := api.IDRange{First: firstUserID + lastRange*userIDs, Count: userIDs}
	if end := uint64(last.First) + uint64(last.Count); end > 1<<31 {
		t.Errorf("the last range ends at %d", end)
	}
}

func TestMembersGetPortsOnTheNetworksOfTheirGroup(t *testing.T) {
	own, storage, fast := nth(1), nth(2), nth(3)
	own.UID, own.Name = "u", "c"
	storage.UID, storage.Name = "u.storage", "c:storage"
	fast.UID, fast.Name = "u.fast", "c:fast"
	d := Decision{
		ClusterUID: "u", Cluster: "c", Generation: 1, Networks: []api.Network{own, storage, fast},
		Further: map[string][]api.GroupNetwork{"a": api.OnNetworks("storage"), "b": api.OnNetworks("fast", "storage")},
	}
	got, err := Assign([]Placed{{Group: "a", Member: "a-0", Node: "n1"}, {Group: "b", Member: "b-0", Node: "n1"}, {Group: "c", Member: "c-0", Node: "n1"}}, d)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range got {
		for _, p := range a.Ports {
			lines = append(lines, a.Member+" "+p.Network+" "+p.Address.String()+" "+p.MAC)
		}
	}
	want := []string{
		"a-0 u 10.64.16.2 02:6e:00:01:00:02", "a-0 u.storage 10.64.32.2 02:6e:00:02:00:02",
		"b-0 u 10.64.16.3 02:6e:00:01:00:03", "b-0 u.storage 10.64.32.3 02:6e:00:02:00:03", "b-0 u.fast 10.64.48.2 02:6e:00:03:00:02",
		"c-0 u 10.64.16.4 02:6e:00:01:00:04",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("ports:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	kinds := map[api.Stack]api.PortKind{api.StackContainer: api.PortVeth, api.StackVM: api.PortTAP}
	for stack, kind := range kinds {
		got, err := Assign([]Placed{{Group: "c", Member: "c-0", Node: "n1", Stack: stack}}, d)
		if err != nil || got[0].Ports[0].Kind != kind {
			t.Errorf("a member of stack %s has ports %+v (%v), want one of kind %s", stack, got[0].Ports, err, kind)
		}
	}
	quality := api.Quality{MinRate: 2e8, MaxRate: 1e9, DSCP: "10"}
	d.Further["a"] = []api.GroupNetwork{{Name: "storage", Quality: quality}}
	if got, err := Assign([]Placed{{Group: "a", Member: "a-0", Node: "n1"}}, d); err != nil || got[0].Ports[0].Quality != (api.Quality{}) || got[0].Ports[1].Quality != quality {
		t.Errorf("a member with a quality of service on its second port has ports %+v (%v)", got[0].Ports, err)
	}
	d.Further["a"] = api.OnNetworks("nowhere")
	if _, err := Assign([]Placed{{Group: "a", Member: "a-0", Node: "n1"}}, d); err == nil {
		t.Error("a group on a network that the cluster has not was given a port")
	}
}
