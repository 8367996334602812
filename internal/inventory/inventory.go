// Package inventory finds out what a machine offers to members: cores with their NUMA nodes, and memory.
//
// It reads sysfs and procfs and changes nothing. Start with Discover.
package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/offer"
)

// Request says what of the machine is offered.
type Request struct {
	// CPUs limits the physical CPUs; empty: all that this process may use.
	CPUs []int
	// Slots is the number of core slots; 0: one for each CPU. More slots than CPUs oversubscribe them.
	Slots int
	// MemoryBytes limits the memory; 0: what is left after a reserve for the host.
	MemoryBytes int64
	// HugePages is the part of the reserved huge pages that is offered.
	HugePages Part
}

// Discover reads the machine below root ("/" but for tests). Only CPUs that are online and that this process may use count.
func Discover(root string, usable []int, r Request) (api.NodeCapacity, error) {
	numa, memory, err := readNUMA(root)
	if err != nil {
		return api.NodeCapacity{}, err
	}
	cpus := usable
	if len(r.CPUs) > 0 {
		for _, cpu := range r.CPUs {
			if !slices.Contains(usable, cpu) {
				return api.NodeCapacity{}, fmt.Errorf("CPU %d can't be offered: this process may use only CPUs %s", cpu, FormatList(usable))
			}
		}
		cpus = r.CPUs
	}
	if len(cpus) == 0 {
		return api.NodeCapacity{}, errors.New("no usable CPU found")
	}
	slots := r.Slots
	if slots == 0 {
		slots = len(cpus)
	}
	out := api.NodeCapacity{NUMANodes: memory}
	for slot := range slots {
		cpu := cpus[slot%len(cpus)]
		out.Cores = append(out.Cores, api.Core{Slot: slot, CPU: cpu, NUMANode: numa[cpu]})
	}
	if err := readHugePages(root, out.NUMANodes, r.HugePages); err != nil {
		return api.NodeCapacity{}, err
	}
	for _, n := range out.NUMANodes {
		out.MemoryBytes += n.MemoryBytes
	}
	out.MemoryBytes = offer.LessReserve(out.MemoryBytes)
	if r.MemoryBytes > 0 {
		out.MemoryBytes = min(out.MemoryBytes, r.MemoryBytes)
	}
	return out, nil
}

// NUMANodes returns which memory node each CPU belongs to; nothing where there is one node, or the kernel knows of none.
func NUMANodes(root string) (map[int]int, error) {
	of, nodes, err := readNUMA(root)
	if err != nil || len(nodes) < 2 {
		return nil, err
	}
	return of, nil
}

// readNUMA reads which NUMA node a CPU belongs to, and how much memory each node has. A kernel without NUMA is one node.
func readNUMA(root string) (map[int]int, []api.NUMANode, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "sys/devices/system/node/node[0-9]*"))
	if err != nil {
		return nil, nil, err
	}
	of := map[int]int{}
	var nodes []api.NUMANode
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "cpulist"))
		if err != nil {
			return nil, nil, fmt.Errorf("read the CPUs of NUMA node %d: %w", id, err)
		}
		cpus, err := ParseList(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, nil, fmt.Errorf("%s/cpulist: %w", dir, err)
		}
		for _, cpu := range cpus {
			of[cpu] = id
		}
		bytes, err := memTotal(filepath.Join(dir, "meminfo"))
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, api.NUMANode{ID: id, MemoryBytes: bytes})
	}
	if len(nodes) == 0 {
		nodes = []api.NUMANode{{ID: 0}}
	}
	total, err := memTotal(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(nodes, func(a, b api.NUMANode) int { return a.ID - b.ID })
	return of, ShareMemory(total, nodes), nil
}

// memTotal reads the line "MemTotal: N kB" (proc(5)), which in a NUMA node's file begins with "Node N".
func memTotal(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the memory size: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		for i, f := range fields {
			if f == "MemTotal:" && i+1 < len(fields) {
				kib, err := strconv.ParseInt(fields[i+1], 10, 64)
				return kib << 10, err
			}
		}
	}
	return 0, fmt.Errorf("%s has no MemTotal", path)
}

// ParseList reads a list of CPUs like "0-3,8" (cpuset(7), list format).
func ParseList(s string) ([]int, error) {
	var out []int
	if s == "" {
		return out, nil
	}
	for _, part := range strings.Split(s, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(last)
		}
		if err != nil || from < 0 || to < from || to > 1<<16 {
			return nil, fmt.Errorf("%q is not a list of CPUs; write one like 0-3,8", s)
		}
		for cpu := from; cpu <= to; cpu++ {
			out = append(out, cpu)
		}
	}
	return out, nil
}

// FormatList writes a list of CPUs as ParseList reads it.
func FormatList(cpus []int) string {
	parts := make([]string, 0, len(cpus))
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", cpus[i], cpus[j]))
		} else {
			parts = append(parts, strconv.Itoa(cpus[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}
