package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

const gib = 1 << 30

// testNode is a node with cores core slots, split evenly over numa NUMA nodes, that offers containers and environment "local".
func testNode(name string, cores, numa int, memoryGiB int64) api.NodeRecord {
	rec := api.NodeRecord{
		Name:         name,
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	rec.Capacity.MemoryBytes = memoryGiB * gib
	for i := range cores {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i, CPU: i, NUMANode: i * numa / cores})
	}
	return rec
}

func viewOf(t testing.TB, recs ...api.NodeRecord) *View {
	t.Helper()
	v := NewView()
	for _, r := range recs {
		v.SetNode(r, Schedulable)
	}
	return v
}

func group(name string, size, cores int, memoryGiB int64) api.Group {
	return api.Group{
		Name: name, Size: size, Shape: api.Shape{Cores: cores, Memory: api.Bytes(memoryGiB * gib)},
		Stack: api.StackContainer, Environment: "local",
	}
}

// place places and takes the groups as cluster name, and fails the test when that is refused.
func place(t testing.TB, v *View, name string, groups ...api.Group) []api.Assignment {
	t.Helper()
	placed, refusal := Place(v, Request{Cluster: name, Groups: groups})
	if refusal != nil {
		t.Fatalf("refused: %s", refusal.Message)
	}
	network := nth(1)
	assignments, err := Assign(placed, Decision{ClusterUID: "uid-" + name, Cluster: name, Generation: 1, Networks: []api.Network{network}})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range assignments {
		if err := v.Take(a); err != nil {
			t.Fatal(err)
		}
	}
	return assignments
}

// sketch writes one line a member: rank, name, node and CPUs.
func sketch(assignments []api.Assignment) []string {
	var lines []string
	for _, a := range assignments {
		lines = append(lines, fmt.Sprintf("%d %s %s %v", a.Rank, a.Member, a.Node, a.CPUs))
	}
	return lines
}

func TestMembersArePackedOnAsFewNodesAsCanBe(t *testing.T) {
	tests := []struct {
		name  string
		nodes []api.NodeRecord
		group api.Group
		want  []string
	}{
		{
			"one member goes to the node it fits most tightly",
			[]api.NodeRecord{testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64), testNode("n3", 2, 1, 64)},
			group("c", 1, 3, 1),
			[]string{"0 c-0 n2 [0 1 2]"},
		},
		{
			"all members go to one node that holds them, not to two smaller ones",
			[]api.NodeRecord{testNode("n1", 2, 1, 64), testNode("n2", 2, 1, 64), testNode("n3", 4, 1, 64)},
			group("c", 2, 2, 1),
			[]string{"0 c-0 n3 [0 1]", "1 c-1 n3 [2 3]"},
		},
		{
			"the roomiest node is filled, the rest goes where it fits most tightly",
			[]api.NodeRecord{testNode("n1", 4, 1, 64), testNode("n2", 8, 1, 64), testNode("n10", 2, 1, 64)},
			group("c", 5, 2, 1),
			[]string{"0 c-0 n2 [0 1]", "1 c-1 n2 [2 3]", "2 c-2 n2 [4 5]", "3 c-3 n2 [6 7]", "4 c-4 n10 [0 1]"},
		},
		{
			"memory bounds a node as cores do, and ranks follow the natural order of nodes",
			[]api.NodeRecord{testNode("n10", 8, 1, 2), testNode("n9", 8, 1, 4)},
			group("c", 3, 1, 2),
			[]string{"0 c-0 n9 [0]", "1 c-1 n9 [1]", "2 c-2 n10 [0]"},
		},
		{
			"no memory limit asks for none",
			[]api.NodeRecord{testNode("n1", 2, 1, 0)},
			group("c", 2, 1, 0),
			[]string{"0 c-0 n1 [0]", "1 c-1 n1 [1]"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := sketch(place(t, viewOf(t, tt.nodes...), "c1", tt.group))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCoresOfAMemberLieWithinOneNUMANodeWhenTheyFit(t *testing.T) {
	v := viewOf(t, testNode("n1", 8, 2, 64))
	got := sketch(place(t, v, "c1", group("a", 1, 3, 1)))
	// 1 core is left on NUMA node 0: the next pair goes to node 1 whole, and a single core fills the gap.
	got = append(got, sketch(place(t, v, "c2", group("b", 1, 2, 1)))...)
	got = append(got, sketch(place(t, v, "c3", group("c", 1, 1, 1)))...)
	want := []string{"0 a-0 n1 [0 1 2]", "0 b-0 n1 [4 5]", "0 c-0 n1 [3]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	v = viewOf(t, testNode("n1", 12, 3, 64))
	wide := place(t, v, "c1", group("a", 1, 6, 1))
	if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(wide[0].CPUs, want) || !slices.Equal(wide[0].NUMANodes, []int{0, 1}) {
		t.Errorf("6 cores over NUMA nodes of 4: got CPUs %v on NUMA nodes %v, want %v on [0 1]", wide[0].CPUs, wide[0].NUMANodes, want)
	}
}

func TestGroupsOfOneClusterShareNodesWithoutSharingCores(t *testing.T) {
	v := viewOf(t, testNode("n1", 8, 1, 64), testNode("n2", 4, 1, 64))
	got := sketch(place(t, v, "c1", group("small", 4, 1, 1), group("big", 1, 8, 1)))
	want := []string{"0 small-0 n2 [0]", "1 small-1 n2 [1]", "2 small-2 n2 [2]", "3 small-3 n2 [3]", "4 big-0 n1 [0 1 2 3 4 5 6 7]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestAGroupWithFewNodesToChooseFromDoesNotLoseThemToAnother(t *testing.T) {
	rec := testNode("n1", 4, 1, 64)
	rec.Labels = map[string]string{"rack": "r1"}
	tied := group("tied", 1, 4, 1)
	tied.NodeSelector = rec.Labels
	got := sketch(place(t, viewOf(t, rec, testNode("n2", 4, 1, 64)), "c1", group("free", 1, 4, 1), tied))
	want := []string{"0 free-0 n2 [0 1 2 3]", "1 tied-0 n1 [0 1 2 3]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}

func TestNodesWithCPUsOfTheirOwnComeBeforeOversubscribedOnes(t *testing.T) {
	shared := testNode("n1", 4, 1, 64)
	shared.Oversubscribed = true
	v := viewOf(t, shared, testNode("n2", 2, 1, 64), testNode("n3", 2, 1, 64))
	first := place(t, v, "c1", group("a", 3, 1, 1))
	if diff := cmp.Diff([]string{"0 a-0 n2 [0]", "1 a-1 n2 [1]", "2 a-2 n3 [0]"}, sketch(first)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	second := place(t, v, "c2", group("b", 2, 1, 1))
	if diff := cmp.Diff([]string{"0 b-0 n1 [0]", "1 b-1 n3 [1]"}, sketch(second)); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	if !second[0].Oversubscribed || second[1].Oversubscribed || first[0].Oversubscribed {
		t.Errorf("the member on n1, and no other, shares CPUs: got %v", second)
	}
}

func TestAGroupThatAsksForItSharesNoMemory(t *testing.T) {
	with := func(name string, share *bool) api.Group {
		g := group(name, 1, 1, 1)
		g.ShareMemory = share
		return g
	}
	yes, no := true, false
	for _, p := range place(t, viewOf(t, testNode("n1", 4, 1, 64)), "c1", with("default", nil), with("asked", &yes), with("apart", &no)) {
		if p.SharesMemory != (p.Group != "apart") {
			t.Errorf("the member of group %s shares memory: %v", p.Group, p.SharesMemory)
		}
	}
}

func TestTheLeastSharedCPUsOfAnOversubscribedNodeComeFirst(t *testing.T) {
	rec := testNode("n1", 0, 1, 64)
	for i := range 8 {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i + 1, CPU: i / 2})
	}
	v := viewOf(t, rec)
	got := sketch(place(t, v, "c1", group("a", 3, 1, 1)))
	got = append(got, sketch(place(t, v, "c2", group("b", 1, 3, 1)))...)
	// Slots 1, 3, 5 stand for CPUs 0, 1, 2. Then CPU 3 is idle, and CPUs 0 and 1 get their second member.
	want := []string{"0 a-0 n1 [0]", "1 a-1 n1 [1]", "2 a-2 n1 [2]", "0 b-0 n1 [0 1 3]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
}
