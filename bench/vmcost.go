package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/homeserver"
)

// The kinds of processes.
const (
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
