package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// withMachines is a node of 8 cores and 4 GiB that carries virtual machines, with its memory on two nodes.
func withMachines() api.NodeRecord {
	node := testNode("n1", 8, 2, 4)
	node.Stacks = append(node.Stacks, api.StackCheck{Stack: api.StackVM, OK: true})
	node.Environments[0].Stacks = append(node.Environments[0].Stacks, api.StackVM)
	node.Capacity.NUMANodes = []api.NUMANode{{ID: 0, MemoryBytes: 2 * gib}, {ID: 1, MemoryBytes: 2 * gib}}
	return node
}

func machines(size int) api.Group {
	g := group("m", size, 1, 1)
	g.Stack = api.StackVM
	return g
}

// TestANodeIsNotFilledWithMachinesThatNeedMemoryBesides: four guests of 1 GiB would fit, their four QEMUs would not.
func TestANodeIsNotFilledWithMachinesThatNeedMemoryBesides(t *testing.T) {
	v := viewOf(t, withMachines())
	_, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{machines(4)}})
	if refusal == nil || refusal.Constraint != ConstraintMemory || refusal.Fits != 3 || !strings.Contains(refusal.Message, "4 members with 1 core and 1GiB each (and each machine 136MiB for itself)") {
		t.Fatalf("got %+v", refusal)
	}
	if refusal.Largest == nil || refusal.Largest.Memory < 820<<20 || refusal.Largest.Memory > 890<<20 {
		t.Errorf("of what would fit it says %+v, want four guests with what 1 GiB leaves", refusal.Largest)
	}
	if placed, refusal := Place(v, Request{Cluster: "c1", Groups: []api.Group{group("g", 4, 1, 1)}}); len(placed) != 4 {
		t.Errorf("containers take nothing besides: %v", refusal)
	}
	held := place(t, v, "c1", machines(3))
	for _, a := range held {
		if a.MemoryBytes() != gib || a.ReserveBytes != 136<<20 || a.NodeMemoryBytes() != gib+136<<20 {
			t.Errorf("%s holds %d bytes and %d besides", a.Member, a.MemoryBytes(), a.ReserveBytes)
		}
	}
	if got, want := v.rows[0].freeMemory, int64(4*gib-3*(gib+136<<20)); got != want {
		t.Errorf("%d bytes are free, want %d", got, want)
	}
	free, sum := memoryOf(v.nodes[0], nil), int64(0)
	for _, bytes := range free {
		sum += bytes
	}
	if want := int64(4*gib - 3*(gib+136<<20)); sum != want {
		t.Errorf("of the memory nodes %v are free, want %d in all", free, want)
	}
}

func TestGroupsPlacedTogetherCountEachOthersMachines(t *testing.T) {
	a, b := machines(1), machines(2)
	a.Name, b.Name = "a", "b"
	b.Memory = 1390 << 20 // two of these have room beside a guest of 1 GiB, and not beside its QEMU as well
	if _, refusal := Place(viewOf(t, withMachines()), Request{Cluster: "c1", Groups: []api.Group{b}}); refusal != nil {
		t.Fatal(refusal.Message)
	}
	if _, refusal := Place(viewOf(t, withMachines()), Request{Cluster: "c1", Groups: []api.Group{a, b}}); refusal == nil {
		t.Error("three machines were placed where two of them fit")
	}
}
