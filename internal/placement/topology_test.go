package placement

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// atLeaf is a place under a leaf switch of an InfiniBand fabric of 100 Gbit/s.
func atLeaf(leaf, pod string) api.NodePlace {
	return api.NodePlace{Cell: "ib0", Technology: api.FabricInfiniBand, Switch: leaf, Pod: pod, RateBitsPerSecond: 100e9, RDMA: true}
}

// leafView is a site of nodes n0, n1 ... with 8 cores, each under the leaf switch that its turn says; "" is of an unknown one.
func leafView(tb testing.TB, leaves ...string) *View {
	tb.Helper()
	v := NewView()
	for i, l := range leaves {
		rec := testNode(fmt.Sprintf("n%d", i), 8, 1, 64)
		if l != "" {
			pod, _, _ := strings.Cut(l, "/")
			rec.Places = []api.NodePlace{atLeaf(l, pod)}
		}
		v.SetNode(rec, Schedulable)
	}
	return v
}

// nodesOf are the nodes of placed members in rank order, each once in a row.
func nodesOf(placed []Placed) []string {
	var names []string
	for _, p := range placed {
		names = append(names, p.Node)
	}
	return slices.Compact(names)
}

func TestAGroupGoesUnderAsFewLeafSwitchesAsItCan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		leaves []string
		size   int // of members of 8 cores: one a node
		want   []string
	}{
		{"the leaf that it fits under most tightly", []string{"a", "b", "a", "b", "a", "c"}, 2, []string{"n1", "n3"}},
		{"two leaves rather than three", []string{"a", "b", "b", "c", "c", "d"}, 4, []string{"n1", "n2", "n3", "n4"}},
		{"the rest under the leaf where it fits most tightly", []string{"a", "a", "a", "b", "b", "c"}, 4, []string{"n0", "n1", "n2", "n5"}},
		{"one pod rather than the roomiest leaves", []string{"p/a", "q/d", "q/d", "p/b", "p/c", "q/e", "r/f", "r/f"}, 3, []string{"n0", "n3", "n4"}},
		{"unknown leaves last", []string{"", "", "", "a", "a"}, 3, []string{"n3", "n4", "n0"}},
		{"ranks follow switches, not names", []string{"a", "b", "a", "b"}, 4, []string{"n0", "n2", "n1", "n3"}},
		{"no leaf is known", []string{"", "", ""}, 2, []string{"n0", "n1"}},
	} {
		placed, refusal := Place(leafView(t, tt.leaves...), Request{Cluster: "c", Groups: []api.Group{group("c", tt.size, 8, 1)}})
		if refusal != nil {
			t.Errorf("%s: %s", tt.name, refusal.Message)
			continue
		}
		if diff := cmp.Diff(tt.want, nodesOf(placed)); diff != "" {
			t.Errorf("%s: nodes in rank order (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestGroupsOfOneClusterMeetUnderOneLeafSwitch(t *testing.T) {
	t.Parallel()
	v := leafView(t, "a", "b", "b", "b", "b")
	placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{group("head", 1, 4, 1), group("work", 3, 8, 1)}})
	if refusal != nil {
		t.Fatal(refusal.Message)
	}
	if diff := cmp.Diff([]string{"n4", "n1", "n2", "n3"}, nodesOf(placed)); diff != "" {
		t.Errorf("nodes (-want +got)\n%s", diff)
	}
}

func TestANodeAtABadLinkIsUsedLast(t *testing.T) {
	t.Parallel()
	v := leafView(t, "a", "a", "a", "b")
	rec := testNode("n0", 8, 1, 64)
	bad := atLeaf("a", "")
	bad.Fault = "link between switch a port 1 and node n0: 120 symbol errors in 60 s"
	rec.Places = []api.NodePlace{bad}
	v.SetNode(rec, Schedulable)
	for size, want := range map[int][]string{2: {"n1", "n2"}, 3: {"n1", "n2", "n3"}, 4: {"n0", "n1", "n2", "n3"}} {
		placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{group("c", size, 8, 1)}})
		if refusal != nil {
			t.Fatal(refusal.Message)
		}
		got := nodesOf(placed)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d members (-want +got)\n%s", size, diff)
		}
	}
	// The cable was replaced.
	rec.Places = []api.NodePlace{atLeaf("a", "")}
	v.SetNode(rec, Schedulable)
	if placed, _ := Place(v, Request{Cluster: "c", Groups: []api.Group{group("c", 3, 8, 1)}}); cmp.Diff([]string{"n0", "n1", "n2"}, nodesOf(placed)) != "" {
		t.Errorf("nodes %v, want all three of leaf a", nodesOf(placed))
	}
}

func TestAnInterconnectIsRefusedWithWhatNodesHave(t *testing.T) {
	t.Parallel()
	v := leafView(t, "a", "a", "")
	for _, tt := range []struct {
		name string
		size int
		on   api.Interconnect
		want string
	}{
		{"a fabric that is there", 2, api.Interconnect{Technology: api.FabricInfiniBand, MinRate: 100e9, RDMA: true}, ""},
		{"either fabric", 2, api.Interconnect{MinRate: 100e9}, ""},
		{"too many members", 3, api.Interconnect{Technology: api.FabricInfiniBand}, "too few nodes are there with a port in a cell as requested: infiniband (node n2 is in no cell whose topology is known)"},
		{"too fast", 1, api.Interconnect{Technology: api.FabricInfiniBand, MinRate: 200e9}, "infiniband at 200Gbit (node n0 is in ib0 (infiniband) at 100Gbit"},
		{"another technology", 1, api.Interconnect{Technology: api.FabricEthernet}, "no node is there with a port in a cell as requested: ethernet"},
	} {
		g := group("c", tt.size, 8, 1)
		g.Interconnect = tt.on
		_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{g}})
		switch {
		case tt.want == "" && refusal != nil:
			t.Errorf("%s: refused: %s", tt.name, refusal.Message)
		case tt.want != "" && (refusal == nil || !strings.Contains(refusal.Message, tt.want) || refusal.Constraint != ConstraintFabric || !refusal.Never):
			t.Errorf("%s: got %+v, want %q", tt.name, refusal, tt.want)
		}
	}
}

func TestWithoutSwitchesClosesWholeFailureDomains(t *testing.T) {
	t.Parallel()
	s := leafView(t, "a", "a", "b", "").Sketch()
	restore, any := s.WithoutSwitches([]string{"n0"})
	_, room, ok := s.Fit([]api.Group{group("c", 3, 8, 1)})
	if !any || ok || room != 2 {
		t.Errorf("room for %d members, want 2: those of leaf b and of no known leaf", room)
	}
	restore()
	if _, _, ok := s.Fit([]api.Group{group("c", 4, 8, 1)}); !ok {
		t.Error("the nodes are still closed")
	}
}

// fewestLeaves is the least number of leaves under which n members fit, by trying.
func fewestLeaves(room map[string]int, n int) int {
	var all []int
	for _, r := range room {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b int) int { return b - a })
	for i, r := range all {
		if n -= r; n <= 0 {
			return i + 1
		}
	}
	return -1
}

func TestRandomGroupsUseNoLeafMoreThanTheyMust(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 7))
		leaves := make([]string, 4+random.IntN(40))
		for i := range leaves {
			leaves[i] = string(rune('a' + random.IntN(6)))
		}
		v := leafView(t, leaves...)
		room, leafOfNode := map[string]int{}, map[string]string{}
		for i, l := range leaves {
			name := fmt.Sprintf("n%d", i)
			leafOfNode[name] = l
			if held := random.IntN(3) * 2; held > 0 {
				a := api.Assignment{ID: name, Node: name}
				for s := range held {
					a.Slots = append(a.Slots, s)
				}
				if err := v.Take(a); err != nil {
					t.Fatal(err)
				}
				room[l] += (8 - held) / 2
			} else {
				room[l] += 4
			}
		}
		total := 0
		for _, r := range room {
			total += r
		}
		size := 5 + random.IntN(max(1, total-5)) // more than one node holds
		placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{group("c", size, 2, 0)}})
		if refusal != nil {
			if size <= total {
				t.Errorf("seed %d: %d members in room for %d: %s", seed, size, total, refusal.Message)
			}
			continue
		}
		used, order := map[string]bool{}, []string{}
		for _, p := range placed {
			used[leafOfNode[p.Node]] = true
			order = append(order, leafOfNode[p.Node])
		}
		if want := fewestLeaves(room, size); len(used) != want || len(placed) != size {
			t.Errorf("seed %d: %d of %d members under %d leaves, want %d", seed, len(placed), size, len(used), want)
		}
		if runs := slices.Compact(order); len(runs) != len(used) {
			t.Errorf("seed %d: ranks don't follow switches: %v", seed, runs)
		}
	}
}
