package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// hardware is what a machine's description needs to know of its host.
type hardware struct {
	// KVM: processors are virtualized; emulated otherwise.
	KVM bool
	// NUMANodes are those of the host's CPUs; empty on a host of one node.
	NUMANodes map[int]int
	// SpareCPUs are offered to no member: QEMU's own work goes there.
	SpareCPUs []int
	// Processors is how many CPUs members can have, MemoryBytes the host's memory: no machine grows beyond them.
	Processors  int
	MemoryBytes int64
}

func (d *Driver) hardware() hardware {
	nodes, err := inventory.NUMANodes("/")
	if err != nil {
		d.log.Warn("guests see no NUMA nodes", "error", err)
	}
	h := hardware{KVM: d.cfg.Accelerate() == nil, NUMANodes: nodes, SpareCPUs: d.cfg.SpareCPUs}
	cpus, err := inventory.UsableCPUs()
	var info unix.Sysinfo_t
	if err := errors.Join(err, unix.Sysinfo(&info)); err != nil {
		d.log.Warn("guests can't grow while they run", "error", err)
		return h
	}
	h.Processors = len(slices.DeleteFunc(cpus, func(cpu int) bool { return slices.Contains(h.SpareCPUs, cpu) }))
	h.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	return h
}

// cell is a NUMA node of a guest: processors, and memory that is bound to nodes of the host.
type cell struct {
	ID        int
	CPUs      []int // of the guest
	Bytes     int64
	HostNodes []int
}

// cellUnit is what libvirt rounds a cell's memory up to.
const cellUnit = 1 << 20

// cellsOf returns a guest's NUMA nodes: one for each memory node that its member has both CPUs and memory of, the first of which has the rest.
// Without a choice of nodes on the host there are none.
func cellsOf(a *api.Assignment, nodes map[int]int) []cell {
	if len(nodes) == 0 || len(a.Memory) == 0 {
		return nil
	}
	var cells []cell
	for _, claim := range a.Memory {
		c := cell{Bytes: claim.Bytes, HostNodes: []int{claim.NUMANode}}
		for n, cpu := range vcpus(a) {
			if nodes[cpu] == claim.NUMANode {
				c.CPUs = append(c.CPUs, n)
			}
		}
		cells = append(cells, c)
	}
	// The cell with the lowest processor comes first: a guest boots on processor 0.
	slices.SortStableFunc(cells, func(x, y cell) int { return lowest(x.CPUs) - lowest(y.CPUs) })
	first := &cells[0]
	for _, c := range cells[1:] {
		if len(c.CPUs) == 0 {
			first.Bytes, first.HostNodes = first.Bytes+c.Bytes, append(first.HostNodes, c.HostNodes...)
		}
	}
	slices.Sort(first.HostNodes)
	cells = slices.DeleteFunc(cells, func(c cell) bool { return len(c.CPUs) == 0 && !slices.Equal(c.HostNodes, first.HostNodes) })
	for n := range vcpus(a) {
		if !slices.ContainsFunc(cells, func(c cell) bool { return slices.Contains(c.CPUs, n) }) {
			cells[0].CPUs = append(cells[0].CPUs, n)
		}
	}
	slices.Sort(cells[0].CPUs)
	for n := range cells {
		cells[n].ID = n
		if n > 0 { // what rounding takes goes to the first, so that the sum is the guest's memory
			cut := cells[n].Bytes % max(cellUnit, a.Memory[0].PageBytes)
			cells[n].Bytes, cells[0].Bytes = cells[n].Bytes-cut, cells[0].Bytes+cut
		}
	}
	return cells
}

func lowest(cpus []int) int {
	if len(cpus) == 0 {
		return 1 << 30
	}
	return slices.Min(cpus)
}

// topology is how a guest's processors are arranged: sockets of like cores. A socket for each cell, where cells have as many processors each, one
// after the other; one socket otherwise, as a guest would place threads by a boundary that is none.
func topology(processors int, cells []cell) (sockets, cores int) {
	if len(cells) < 2 || processors%len(cells) != 0 {
		return 1, processors
	}
	each := processors / len(cells)
	for n, c := range cells {
		if len(c.CPUs) != each || c.CPUs[0] != n*each || c.CPUs[each-1] != (n+1)*each-1 {
			return 1, processors
		}
	}
	return len(cells), each
}

// pinThreads keeps each processor of a machine on its CPU of the host, and QEMU's other threads, from Linux 6.4 on vhost's among them, on the spare CPUs where there
// are some. libvirt does so for those that it knows, before the control group that QEMU joins then gives each thread all its CPUs again.
func pinThreads(pid int, cpus, spare []int) error {
	if len(spare) == 0 {
		spare = cpus
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		return err
	}
	for _, file := range threads {
		name, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		thread, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return err
		}
		on := spare
		if n, ok := processorOf(string(name)); ok && n < len(cpus) {
			on = cpus[n : n+1]
		}
		var set unix.CPUSet
		for _, cpu := range on {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(thread, &set); err != nil && err != unix.ESRCH {
			return fmt.Errorf("keeping thread %s of a machine on CPUs %v: %w", strings.TrimSpace(string(name)), on, err)
		}
	}
	return nil
}

// processorOf returns which processor of the guest a thread of QEMU is, by the name that it gives it: "CPU 3/KVM".
func processorOf(name string) (int, bool) {
	number, _, ok := strings.Cut(strings.TrimPrefix(name, "CPU "), "/")
	if !ok || !strings.HasPrefix(name, "CPU ") {
		return 0, false
	}
	n, err := strconv.Atoi(number)
	return n, err == nil && n >= 0
}

// mostQueues bounds the queues of a NIC: each costs QEMU buffers, and one for each processor is enough.
const mostQueues = 16

// queuesOf is how many queues each NIC of a member's machine has.
func queuesOf(a *api.Assignment) int { return min(len(vcpus(a)), mostQueues) }
