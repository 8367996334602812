package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/homeserver"
)

const (
	// idleSettle is how long machines are left alone before they are watched, idleWatch how long they are.
	idleSettle = 15 * time.Second
	idleWatch  = 30 * time.Second
)

// idleCost is what machines take of their host while nothing is asked of them.
type idleCost struct {
	machines int
	// seconds of processor time a second, by what takes it; processes is their proportional memory in bytes, without what guests have touched of theirs.
	seconds   map[string]float64
	processes map[string]int64
	// guests is what guests have touched of their memory.
	guests int64
	// agentBefore is the node agent's memory without machines.
	agentBefore int64
}

// The kinds of processes.
const (
	kindQEMU    = "QEMU"
	kindLibvirt = "libvirtd"
	kindHome    = "servers of homes"
	kindAgent   = "node agent"
)

// helpersOf are the processes of a node agent beside its machines' QEMUs, by kind.
func helpersOf(agent int, machines []int) map[string][]int {
	kinds := map[string][]int{kindAgent: {agent}}
	for _, pid := range childrenOf(agent) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || slices.Contains(machines, pid) {
			continue
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		switch {
		case filepath.Base(name) == "libvirtd":
			kinds[kindLibvirt] = append(kinds[kindLibvirt], pid)
		case name == homeserver.Name:
			kinds[kindHome] = append(kinds[kindHome], pid)
			kinds[kindHome] = append(kinds[kindHome], childrenOf(pid)...)
		}
	}
	return kinds
}

// childrenOf are the children of a process, whichever thread started them.
func childrenOf(parent int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent)) // the pattern is well formed
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(children)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// machinesOf are the QEMUs of a cluster's members, by the name that libvirt gives them: the member's ID, which begins with the cluster's.
func machinesOf(cluster string) (pids []int, err error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range lines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		if strings.Contains(string(line), "\x00-name\x00guest="+cluster+".") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// watchIdle watches machines, and what else serves them, while they do nothing.
func watchIdle(ctx context.Context, machines []int, helpers map[string][]int) (c idleCost, err error) {
	if err := wait(ctx, idleSettle); err != nil {
		return c, err
	}
	c = idleCost{machines: len(machines), seconds: map[string]float64{}, processes: map[string]int64{}}
	kinds := map[string][]int{kindQEMU: machines}
	for kind, pids := range helpers {
		kinds[kind] = pids
	}
	begun := time.Now()
	before, err := processorTimes(kinds)
	if err != nil {
		return c, err
	}
	if err := wait(ctx, idleWatch); err != nil {
		return c, err
	}
	after, err := processorTimes(kinds)
	if err != nil {
		return c, err
	}
	took := time.Since(begun).Seconds()
	for kind, pids := range kinds {
		c.seconds[kind] = (after[kind] - before[kind]) / took
		for _, pid := range pids {
			guest := int64(0)
			if kind == kindQEMU {
				guest = vmMemory
			}
			m, err := memoryOf(pid, guest)
			if err != nil {
				return c, err
			}
			c.processes[kind] += m.proportional
			c.guests += m.guest
		}
	}
	return c, nil
}

func processorTimes(kinds map[string][]int) (map[string]float64, error) {
	sums := map[string]float64{}
	for kind, pids := range kinds {
		seconds, err := processorTimeOf(pids)
		if err != nil {
			return nil, err
		}
		sums[kind] = seconds
	}
	return sums, nil
}

// processorTimeOf is what processes have taken so far, in seconds. Unlike the time that passes it hardly depends on what else a machine does.
func processorTimeOf(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		seconds, err := processorTime(pid)
		if err != nil {
			return 0, err
		}
		sum += seconds
	}
	return sum, nil
}

// memoryUse is what a process holds, in bytes: proportional is its share (PSS) without what it holds as a guest's memory, and guest that.
type memoryUse struct{ proportional, guest int64 }

// memoryOf reads smaps of proc(5). A guest's memory is the mappings of exactly its size; guest is that, 0 for a process that is no machine.
func memoryOf(pid int, guest int64) (memoryUse, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return memoryUse{}, err
	}
	return readMemory(text, guest)
}

func readMemory(smaps []byte, guest int64) (use memoryUse, err error) {
	var size int64
	lines := bufio.NewScanner(bytes.NewReader(smaps))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "Size" && name != "Pss" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
		if err != nil {
			return use, fmt.Errorf("smaps: %q: %w", lines.Text(), err)
		}
		switch {
		case name == "Size":
			size = kib << 10
		case guest > 0 && size == guest:
			use.guest += kib << 10
		default:
			use.proportional += kib << 10
		}
	}
	return use, lines.Err()
}

// text tells what idle machines cost, for each of them.
func (c idleCost) text(side string) string {
	if c.machines == 0 {
		return ""
	}
	var b strings.Builder
	each := func(bytes int64) float64 { return float64(bytes) / float64(c.machines) / (1 << 20) }
	total, memory := 0.0, int64(0)
	var processor, held []string
	for _, kind := range []string{kindQEMU, kindLibvirt, kindHome, kindAgent} {
		seconds, there := c.seconds[kind]
		if !there {
			continue
		}
		total += seconds
		bytes := c.processes[kind]
		if kind == kindAgent {
			bytes -= c.agentBefore
		}
		memory += bytes
		processor = append(processor, fmt.Sprintf("%s %.2f%%", kind, 100*seconds/float64(c.machines)))
		held = append(held, fmt.Sprintf("%s %.1f", kind, each(bytes)))
	}
	fmt.Fprintf(&b, "  %s, idle: %.1f%% of a core in all; of a core for each machine: %s\n", side, 100*total, strings.Join(processor, ", "))
	fmt.Fprintf(&b, "  %s, beside the %.0f MiB that a guest has touched: %.1f MiB for each machine: %s\n", side, each(c.guests), each(memory), strings.Join(held, ", "))
	return b.String()
}

// availableBytes is how much memory programs can still get (MemAvailable of proc(5)).
func availableBytes() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
