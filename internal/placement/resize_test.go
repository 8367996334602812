package placement

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// twoSockets is a view of one node with four cores and 8 GiB on each of two memory nodes, which holds some assignments.
func twoSockets(t interface{ Fatal(...any) }, held ...api.Assignment) *View {
	capacity := api.NodeCapacity{
		MemoryBytes: 16 * gib, DiskBytes: 100 * gib, NUMANodes: []api.NUMANode{{ID: 0, MemoryBytes: 8 * gib}, {ID: 1, MemoryBytes: 8 * gib}},
	}
	for n := range 8 {
		capacity.Cores = append(capacity.Cores, api.Core{Slot: n, CPU: n, NUMANode: n / 4})
	}
	v := NewView()
	v.SetNode(api.NodeRecord{Name: "n1", Capacity: capacity}, Schedulable)
	for _, a := range held {
		if err := v.Take(a); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

func onNode(id string, memory []api.MemoryClaim, slots ...int) api.Assignment {
	a := api.Assignment{ID: id, Member: id, Node: "n1", Slots: slots, CPUs: slots, Memory: memory, Stack: api.StackVM}
	for _, s := range slots {
		if !slices.Contains(a.NUMANodes, s/4) {
			a.NUMANodes = append(a.NUMANodes, s/4)
		}
	}
	return a
}

func of(node int, bytes int64) []api.MemoryClaim {
	return []api.MemoryClaim{{NUMANode: node, Bytes: bytes}}
}

// machine is a group of virtual machines.
func machine(cores int, memory int64) *api.Group {
	return &api.Group{Name: "g", Size: 1, Stack: api.StackVM, Shape: api.Shape{Cores: cores, Memory: api.Bytes(memory)}}
}

func TestAMemberGrowsBesideWhatItHasAndShrinksWithinIt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		member api.Assignment
		others []api.Assignment
		group  *api.Group
		// slots and memory are those of the new size; held are the slots that it holds until it has that.
		slots, held []int
		memory      []api.MemoryClaim
	}{
		{"a core on its own socket", onNode("m", of(0, gib), 1), []api.Assignment{onNode("o", of(0, gib), 0)}, machine(2, gib), []int{1, 2}, []int{1, 2}, of(0, gib)},
		{
			"cores on the other socket once its own is full", onNode("m", of(0, gib), 0, 1),
			[]api.Assignment{onNode("o", of(0, gib), 2, 3)},
			machine(4, gib),
			[]int{0, 1, 4, 5},
			[]int{0, 1, 4, 5},
			of(0, gib),
		},
		{"memory near its cores", onNode("m", of(1, gib), 5), nil, machine(1, 3*gib), []int{5}, []int{5}, of(1, 3*gib)},
		{
			"memory of the other socket once its own is full", onNode("m", of(0, gib), 0),
			[]api.Assignment{onNode("o", of(0, 7*gib-256<<20), 1)},
			machine(1, 2*gib),
			[]int{0},
			[]int{0},
			[]api.MemoryClaim{{NUMANode: 0, Bytes: gib + 256<<20}, {NUMANode: 1, Bytes: gib - 256<<20}},
		},
		{"fewer cores among its own", onNode("m", of(0, gib), 0, 1, 2), nil, machine(1, gib), []int{0}, []int{0, 1, 2}, of(0, gib)},
		{
			"less memory, far from its cores first", onNode("m", []api.MemoryClaim{{NUMANode: 0, Bytes: gib}, {NUMANode: 1, Bytes: gib}}, 0), nil, machine(1, gib),
			[]int{0},
			[]int{0},
			of(0, gib),
		},
		{"more cores and less memory", onNode("m", of(0, 3*gib), 0), nil, machine(2, gib), []int{0, 1}, []int{0, 1}, of(0, gib)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := twoSockets(t, append(tt.others, tt.member)...).Sketch()
			if _, reason, _ := s.FitResize(&tt.member, tt.group); reason != "" {
				t.Fatal(reason)
			}
			hold, to, err := s.LayOutResize(&tt.member, tt.group)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.slots, to.Slots); diff != "" {
				t.Errorf("slots (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.held, hold.Slots); diff != "" {
				t.Errorf("slots held (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.memory, to.Memory); diff != "" {
				t.Errorf("memory (-want +got):\n%s", diff)
			}
			if to.Number != 1 || to.ReserveBytes != resource.Reserve(tt.group) {
				t.Errorf("the new size is number %d with a reserve of %d bytes", to.Number, to.ReserveBytes)
			}
		})
	}
}

func TestAMemberThatDoesNotFitOnItsNodeIsGivenTheReason(t *testing.T) {
	t.Parallel()
	member, other := onNode("m", of(0, gib), 0), onNode("o", of(0, 14*gib), 1, 2, 3, 4, 5, 6)
	tests := []struct {
		name      string
		available Availability
		group     *api.Group
		want      string
		undecided bool
	}{
		{"too many cores", Schedulable, machine(3, gib), "node n1 has no room for it (2 cores more needed, 1 core free)", false},
		{"too much memory", Schedulable, machine(1, 3*gib), "GiB of memory more needed", false},
		{"a drained node", Drained, machine(2, gib), "node n1 is drained", false},
		{"a silent node", Unknown, machine(2, gib), "node n1 is not reporting", true},
		{"a shrink on a drained node needs nothing", Drained, machine(1, gib/2), "", false},
	}
	for _, tt := range tests {
		v := twoSockets(t, member, other)
		v.SetAvailability("n1", tt.available)
		m := member
		m.ReserveBytes = resource.Reserve(tt.group) // made by this version
		_, reason, undecided := v.Sketch().FitResize(&m, tt.group)
		if !strings.Contains(reason, tt.want) || tt.want == "" && reason != "" || undecided != tt.undecided {
			t.Errorf("%s: %q, undecided %t; want %q", tt.name, reason, undecided, tt.want)
		}
	}
}

// TestNoResizeTakesWhatOthersHold resizes members again and again, confirmed or not, beside each other: what each holds can be taken, covers both of
// its sizes, and is the group's size in the end.
func TestNoResizeTakesWhatOthersHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		held := map[string]api.Assignment{"a": onNode("a", of(0, gib), 0), "b": onNode("b", of(1, gib), 4)}
		view := func() *View { return twoSockets(t, held["a"], held["b"]) }
		for range rapid.IntRange(1, 8).Draw(t, "resizes") {
			m := held[rapid.SampledFrom([]string{"a", "b"}).Draw(t, "member")]
			if m.Resizing != nil && rapid.Bool().Draw(t, "confirmed") {
				m = m.Sized(m.Resizing.To)
				held[m.ID] = m
			}
			g := machine(rapid.IntRange(1, 7).Draw(t, "cores"), int64(rapid.IntRange(1, 14).Draw(t, "gib"))*gib)
			s := view().Sketch()
			if _, reason, _ := s.FitResize(&m, g); reason != "" {
				continue
			}
			hold, to, err := s.LayOutResize(&m, g)
			if err != nil {
				t.Fatal(err)
			}
			if to.Shape() != g.Shape {
				t.Fatalf("the new size is %+v, want %+v", to.Shape(), g.Shape)
			}
			from := m.Has()
			next := m.Sized(hold)
			next.Resizing = &api.Resizing{From: from, To: to}
			held[m.ID] = next
			for _, part := range []api.Size{from, to} {
				for _, slot := range part.Slots {
					if !slices.Contains(hold.Slots, slot) {
						t.Fatalf("slot %d of %+v is not held: %+v", slot, part, hold)
					}
				}
				for _, claim := range part.Memory {
					if i := slices.IndexFunc(hold.Memory, func(o api.MemoryClaim) bool { return o.NUMANode == claim.NUMANode }); i < 0 || hold.Memory[i].Bytes < claim.Bytes {
						t.Fatalf("%+v of %+v is not held: %+v", claim, part, hold)
					}
				}
			}
			view() // all can be taken beside each other
		}
	})
}
