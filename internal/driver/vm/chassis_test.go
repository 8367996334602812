package vm

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// sizeOf is an assignment of these CPUs of the host, and of so many MiB on its memory nodes 0, 1 and so on.
func sizeOf(cpus []int, mib ...int64) *api.Assignment {
	a := &api.Assignment{Slots: cpus, CPUs: cpus}
	for node, m := range mib {
		if m > 0 {
			a.Memory = append(a.Memory, api.MemoryClaim{NUMANode: node, Bytes: m << 20})
		}
	}
	return a
}

func TestAMachineIsBuiltToGrowWithinItsHost(t *testing.T) {
	huge, odd := sizeOf([]int{0}, 512), sizeOf([]int{0}, 512)
	huge.Memory[0].PageBytes = 2 << 20
	odd.Memory[0].Bytes++
	twoNodes := map[int]int{0: 0, 1: 1}
	for _, c := range []struct {
		name string
		size *api.Assignment
		host hardware
		want *chassis
	}{
		{"a small host bounds a machine", sizeOf([]int{0}, 512), hardware{Processors: 4, MemoryBytes: 1<<30 + 1}, &chassis{4, 1, 512 << 20, 512 << 20}},
		{"a large host does not", sizeOf([]int{0, 1}, 512), hardware{Processors: 64, MemoryBytes: 1 << 40}, &chassis{18, 2, 512 << 20, 3 * 512 << 20}},
		{"a machine that is larger than its host has no room", sizeOf([]int{0, 0, 0}, 512), hardware{Processors: 2, MemoryBytes: 1 << 28}, &chassis{3, 3, 512 << 20, 0}},
		{"addresses bound a machine's memory", sizeOf([]int{0}, 400<<10), hardware{Processors: 1, MemoryBytes: 2 << 40}, &chassis{1, 1, 400 << 30, 112 << 30}},
		{"memory that libvirt rounds does not grow", odd, hardware{Processors: 1, MemoryBytes: 1 << 40}, &chassis{1, 1, 512<<20 + 1, 0}},
		{"memory of huge pages does not grow", huge, hardware{Processors: 2, MemoryBytes: 1 << 40}, &chassis{2, 1, 512 << 20, 0}},
		{"the size of a guest with two NUMA nodes is fixed", sizeOf([]int{0, 1}, 512, 512), hardware{NUMANodes: twoNodes, Processors: 8, MemoryBytes: 1 << 40}, nil},
		{"a guest on one of two NUMA nodes grows", sizeOf([]int{1}, 0, 512), hardware{NUMANodes: twoNodes, Processors: 2, MemoryBytes: 1 << 30}, &chassis{2, 1, 512 << 20, 512 << 20}},
	} {
		if diff := cmp.Diff(c.want, newChassis(c.size, c.host)); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", c.name, diff)
		}
	}
}

func TestAMachineTakesOnlySizesThatItWasBuiltFor(t *testing.T) {
	built := &chassis{Processors: 2, Queues: 1, BootBytes: 512 << 20, RoomBytes: 512 << 20}
	huge := sizeOf([]int{0}, 512)
	huge.Memory[0].PageBytes = 2 << 20
	odd := sizeOf([]int{0}, 512)
	odd.Memory[0].Bytes++
	nodes := map[int]int{0: 0, 1: 0, 2: 1, 3: 1}
	for _, c := range []struct {
		name     string
		chassis  *chassis
		has      *api.Assignment
		wants    *api.Assignment
		nodes    map[int]int
		possible bool
	}{
		{"another processor", built, sizeOf([]int{0}, 512), sizeOf([]int{0, 1}, 512), nil, true},
		{"more processors than it has places for", built, sizeOf([]int{0}, 512), sizeOf([]int{0, 1, 2}, 512), nil, false},
		{"all the memory that it has room for", built, sizeOf([]int{0}, 512), sizeOf([]int{0}, 1024), nil, true},
		{"more memory than it has room for", built, sizeOf([]int{0}, 512), sizeOf([]int{0}, 1026), nil, false},
		{"less memory than it had when it booted", built, sizeOf([]int{0}, 1024), sizeOf([]int{0}, 510), nil, false},
		{"a part of a block of memory", built, sizeOf([]int{0}, 512), odd, nil, false},
		{"huge pages instead of ordinary ones", built, sizeOf([]int{0}, 512), huge, nil, false},
		{"a machine whose size is fixed", nil, sizeOf([]int{0}, 512), sizeOf([]int{0, 1}, 512), nil, false},
		{"a processor of its NUMA node", built, sizeOf([]int{0}, 512), sizeOf([]int{0, 1}, 768), nodes, true},
		{"memory of another NUMA node", built, sizeOf([]int{0}, 512), sizeOf([]int{0}, 512, 256), nodes, false},
		{"processors and memory of two NUMA nodes", built, sizeOf([]int{0}, 512), sizeOf([]int{0, 2}, 512, 512), nodes, false},
	} {
		if got := c.chassis.takes(c.has, c.wants, c.nodes); got != c.possible {
			t.Errorf("%s: taken without a reboot: %t, want %t", c.name, got, c.possible)
		}
	}
}

// TestAMachineThatGrewFitsTheChassisThatItHas: its successor's description has the present size, and is the same but for that.
func TestAMachineThatGrewFitsTheChassisThatItHas(t *testing.T) {
	h := hardware{Processors: 4, MemoryBytes: 4 << 30}
	m := goldenMember()
	c := newChassis(&m.Assignment, h)
	first, err := newShape(m, goldenImage(), h, c)
	if err != nil {
		t.Fatal(err)
	}
	m.Assignment = m.Assignment.Sized(api.Size{Number: 1, Slots: []int{2, 3, 4}, CPUs: []int{2, 3, 4}, Memory: []api.MemoryClaim{{Bytes: 2 << 30}}})
	// The other host is larger, and would build another chassis.
	grown, err := newShape(m, goldenImage(), hardware{Processors: 64, MemoryBytes: 1 << 40}, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.sized(&m.Assignment).fits(grown); err != nil {
		t.Errorf("a machine that grew does not fit its own chassis: %v", err)
	}
	if err := first.fits(grown); err == nil {
		t.Error("a machine of the former size fits the new one")
	}
}

func TestProcessorsComeAndGoInTheOrderOfTheGuest(t *testing.T) {
	at := func(core int, processor string) place {
		return place{Type: "max-x86_64-cpu", Where: map[string]any{"core-id": float64(core), "socket-id": float64(0)}, Processor: processor}
	}
	add := func(core int) command {
		return command{"device_add", map[string]any{"driver": "max-x86_64-cpu", "id": fmt.Sprint("vcpu", core), "core-id": float64(core), "socket-id": float64(0)}}
	}
	remove := func(core int) command { return command{"device_del", map[string]any{"id": fmt.Sprint("vcpu", core)}} }
	listed := places{at(3, ""), at(2, ""), at(1, "/machine/peripheral/vcpu1"), at(0, "/machine/unattached/device[0]")} // as QEMU lists them
	if got := listed.taken(); got != 2 {
		t.Errorf("%d processors were counted, want 2", got)
	}
	for wants, want := range map[int][]command{1: {remove(1)}, 2: nil, 3: {add(2)}, 4: {add(3), add(2)}} {
		if diff := cmp.Diff(want, listed.commands(wants)); diff != "" {
			t.Errorf("%d processors: want (-), got (+):\n%s", wants, diff)
		}
	}
}
