package placement

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// drawNodes draws a small site: nodes of mixed size, some labelled, some oversubscribed, some without the environment.
func drawNodes(t *rapid.T) []NodeState {
	nodes := make([]NodeState, rapid.IntRange(0, 8).Draw(t, "nodes"))
	for i := range nodes {
		cores := rapid.IntRange(0, 12).Draw(t, "cores")
		rec := testNode(fmt.Sprintf("n%d", i+1), cores, rapid.IntRange(1, 3).Draw(t, "numa"), int64(rapid.IntRange(0, 16).Draw(t, "memory")))
		if rapid.Bool().Draw(t, "labelled") {
			rec.Labels = map[string]string{"rack": rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rack")}
		}
		if rapid.IntRange(0, 4).Draw(t, "shared") == 0 {
			for c := range rec.Capacity.Cores {
				rec.Capacity.Cores[c].CPU /= 2
				rec.Capacity.Cores[c].Slot += 3
			}
		}
		rec.Environments[0].OK = rapid.IntRange(0, 9).Draw(t, "environment") > 0
		nodes[i] = NodeState{rec, rapid.SampledFrom([]Availability{Schedulable, Schedulable, Schedulable, Unknown, Down, Drained}).Draw(t, "availability")}
	}
	return nodes
}

func drawGroups(t *rapid.T) []api.Group {
	groups := make([]api.Group, rapid.IntRange(1, 3).Draw(t, "groups"))
	for i := range groups {
		groups[i] = group(fmt.Sprintf("g%d", i), rapid.IntRange(1, 6).Draw(t, "size"), rapid.IntRange(1, 5).Draw(t, "cores"),
			int64(rapid.IntRange(0, 4).Draw(t, "memory")))
		if rapid.IntRange(0, 3).Draw(t, "selects") == 0 {
			groups[i].NodeSelector = map[string]string{"rack": "r1"}
		}
	}
	return groups
}

func viewWith(nodes []NodeState) *View {
	v := NewView()
	for _, n := range nodes {
		v.SetNode(n.Record, n.Availability)
	}
	return v
}

func assign(t interface{ Fatal(...any) }, placed []Placed, name string) []api.Assignment {
	network := nth(7)
	assignments, err := Assign(placed, Decision{ClusterUID: name, Cluster: name, Generation: 1, Networks: []api.Network{network}})
	if err != nil {
		t.Fatal(err)
	}
	return assignments
}

// checkSound checks what every view must keep, from the assignments alone: no slot twice, no more memory than there is,
// everything as it was asked for.
func checkSound(t *rapid.T, nodes []NodeState, live []api.Assignment) {
	memory, slots := map[string]int64{}, map[string]string{}
	for _, n := range nodes {
		memory[n.Record.Name] = n.Record.Capacity.MemoryBytes
		for _, c := range n.Record.Capacity.Cores {
			slots[fmt.Sprintf("%s/%d/%d", n.Record.Name, c.Slot, c.CPU)] = ""
		}
	}
	for _, a := range live {
		if memory[a.Node] -= a.NodeMemoryBytes(); memory[a.Node] < 0 {
			t.Fatalf("%s: the memory of %s is allocated twice", a.ID, a.Node)
		}
		for i, s := range a.Slots {
			key := fmt.Sprintf("%s/%d/%d", a.Node, s, a.CPUs[i])
			if holder, ok := slots[key]; !ok || holder != "" {
				t.Fatalf("%s: slot %s is allocated twice or does not exist (holder %q)", a.ID, key, holder)
			}
			slots[key] = a.ID
		}
	}
}

func TestNothingIsEverAllocatedTwiceAndEverythingReturns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		v := viewWith(nodes)
		start := dump(v)
		var live []api.Assignment
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				a := live[i]
				if err := v.Free(a.ID); err == nil {
					t.Fatalf("freed %s, which is in use", a.ID)
				}
				free(t, v, a)
				live = slices.Delete(live, i, i+1)
				continue
			}
			groups := drawGroups(t)
			before := dump(v)
			placed, refusal := Place(v, Request{Cluster: "c", Groups: groups})
			if diff := cmp.Diff(before, dump(v)); diff != "" {
				t.Fatalf("Place changed the view:\n%s", diff)
			}
			if refusal != nil {
				continue
			}
			checkAnswer(t, nodes, groups, placed)
			for _, a := range assign(t, placed, fmt.Sprint("c", step)) {
				if err := v.Take(a); err != nil {
					t.Fatalf("what was placed can't be taken: %v", err)
				}
				live = append(live, a)
			}
			checkSound(t, nodes, live)
		}
		held := make([]Held, 0, len(live))
		for _, a := range live {
			held = append(held, Held{Assignment: a})
		}
		replayed, err := Build(nodes, held, nil)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(dump(v), dump(replayed)); diff != "" {
			t.Fatalf("the replayed view differs (-live +replayed):\n%s", diff)
		}
		for _, a := range live {
			free(t, v, a)
		}
		if diff := cmp.Diff(start, dump(v)); diff != "" {
			t.Fatalf("freeing all does not return to the start:\n%s", diff)
		}
	})
}

func free(t *rapid.T, v *View, a api.Assignment) {
	if err := errors.Join(v.Release(a.ID), v.Free(a.ID)); err != nil {
		t.Fatal(err)
	}
}

// checkAnswer checks that members are what was asked for, on nodes that suit, in order.
func checkAnswer(t *rapid.T, nodes []NodeState, groups []api.Group, placed []Placed) {
	rank := 0
	for _, g := range groups {
		seen := map[string]bool{}
		last := ""
		for i := range g.Size {
			p := placed[rank]
			if p.Rank != rank || p.Member != fmt.Sprintf("%s-%d", g.Name, i) || len(p.Slots) != g.Cores || p.MemoryBytes() != int64(g.Memory) {
				t.Fatalf("member %d of %+v is %+v", i, g, p)
			}
			n := nodes[slices.IndexFunc(nodes, func(n NodeState) bool { return n.Record.Name == p.Node })]
			if n.Availability != Schedulable || !selects(g.NodeSelector, n.Record.Labels) || !n.Record.Environments[0].OK {
				t.Fatalf("member %+v is on a node that does not suit: %+v", p, n)
			}
			if p.Node != last && seen[p.Node] {
				t.Fatalf("members of group %s on node %s have no adjacent ranks", g.Name, p.Node)
			}
			seen[p.Node], last = true, p.Node
			rank++
		}
	}
	if rank != len(placed) {
		t.Fatalf("%d members were asked for, %d placed", rank, len(placed))
	}
}

func TestTheOrderInWhichNodesWereSetDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, groups := drawNodes(t), drawGroups(t)
		shuffled := rapid.Permutation(nodes).Draw(t, "order")
		one, refusedOne := Place(viewWith(nodes), Request{Cluster: "c", Groups: groups})
		v := viewWith(shuffled)
		if len(nodes) > 0 {
			// A node that left and came back is no different either.
			back := rapid.SampledFrom(nodes).Draw(t, "back")
			v.RemoveNode(back.Record.Name)
			v.SetNode(back.Record, back.Availability)
		}
		other, refusedOther := Place(v, Request{Cluster: "c", Groups: groups})
		if diff := cmp.Diff(one, other); diff != "" {
			t.Fatalf("members differ:\n%s", diff)
		}
		if diff := cmp.Diff(refusedOne, refusedOther); diff != "" {
			t.Fatalf("refusals differ:\n%s", diff)
		}
	})
}

// canEver searches exhaustively for any way to put all members on the nodes, as if all were up and empty.
func canEver(nodes []NodeState, groups []api.Group) bool {
	type room struct {
		cores  int
		memory int64
	}
	rooms := make([]room, len(nodes))
	for i, n := range nodes {
		rooms[i] = room{len(n.Record.Capacity.Cores), n.Record.Capacity.MemoryBytes}
	}
	var members []api.Group
	for _, g := range groups {
		for range g.Size {
			members = append(members, g)
		}
	}
	var try func(m, from int) bool
	try = func(m, from int) bool {
		if m == len(members) {
			return true
		}
		g := members[m]
		for i := from; i < len(nodes); i++ {
			suits := selects(g.NodeSelector, nodes[i].Record.Labels) && nodes[i].Record.Environments[0].OK
			if !suits || rooms[i].cores < g.Cores || rooms[i].memory < int64(g.Memory) {
				continue
			}
			rooms[i].cores, rooms[i].memory = rooms[i].cores-g.Cores, rooms[i].memory-int64(g.Memory)
			next := 0
			if m+1 < len(members) && members[m+1].Name == g.Name {
				next = i // like members are interchangeable
			}
			if try(m+1, next) {
				return true
			}
			rooms[i].cores, rooms[i].memory = rooms[i].cores+g.Cores, rooms[i].memory+int64(g.Memory)
		}
		return false
	}
	return try(0, 0)
}

func TestWhatIsRefusedAsNeverIsImpossibleAndWhatFitsAloneIsPlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := drawNodes(t)
		nodes = nodes[:min(len(nodes), 4)]
		groups := drawGroups(t)
		groups = groups[:min(len(groups), 2)]
		_, refusal := Place(viewWith(nodes), Request{Cluster: "c", Groups: groups})
		possible := canEver(nodes, groups)
		switch {
		case refusal != nil && refusal.Never && possible:
			t.Fatalf("refused as never possible, yet it is: %s", refusal.Message)
		case len(groups) > 1:
			return
		case refusal != nil && !refusal.Never && !possible:
			t.Fatalf("refused as not possible now, yet it never is: %s", refusal.Message)
		case refusal == nil && !possible:
			t.Fatal("placed what is impossible")
		}
		for i := range nodes {
			nodes[i].Availability = Schedulable
		}
		if _, refusal := Place(viewWith(nodes), Request{Cluster: "c", Groups: groups}); possible != (refusal == nil) {
			t.Fatalf("on the empty site, a single group is placed when it is possible (%t): %v", possible, refusal)
		}
	})
}
