package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// places are where machines by hand run: on the CPUs of the site's machines, in turn, and as deep in the tree of CPU control groups as those.
// On a busy computer the tree decides what a process gets.
type places struct {
	// of are the CPUs of the site's first machine, all those of the computer.
	of, all []int
	// groups is the directory of the machines' control groups; empty where the site's machines have none for CPUs.
	groups string
}

// learnPlaces takes over where a QEMU of the site runs.
func learnPlaces(pid int, cpus []int) (p places, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return p, err
	}
	for cpu := 0; len(p.all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			p.all = append(p.all, cpu)
		}
	}
	p.of = cpus
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return p, err
	}
	at := filepath.Dir(cpuGroup(string(groups)))
	// The group of a member is two levels below that of all nodes: nearmetal/NODE/MEMBER.
	if top := filepath.Dir(filepath.Dir(at)); strings.HasPrefix(top, "/sys/fs/cgroup/") {
		p.groups = filepath.Join(top, fmt.Sprintf("by-hand-%d", os.Getpid()))
	}
	return p, nil
}

// cpus returns where the n-th machine runs: the site gives its slots to machines in turn.
func (p places) cpus(n int) string {
	var words []string
	for _, cpu := range p.of {
		i := max(0, slices.Index(p.all, cpu))
		words = append(words, strconv.Itoa(p.all[(i+n*len(p.of))%len(p.all)]))
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), ",")
}

// join puts the n-th machine into a CPU control group of its own.
func (p places) join(pid, n int) error {
	if p.groups == "" {
		return nil
	}
	group := filepath.Join(p.groups, strconv.Itoa(n))
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	// Version 2 has the controller in a group only where its parent passes it on.
	control := filepath.Join(p.groups, "cgroup.subtree_control")
	if err := os.WriteFile(control, []byte("+cpu"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// leave removes the group of the n-th machine, whose process has ended, and those above it with the last machine.
func (p places) leave(n int) {
	if p.groups != "" {
		_ = os.Remove(filepath.Join(p.groups, strconv.Itoa(n)))
		_ = os.Remove(p.groups) // while others are in it, it stays
		_ = os.Remove(filepath.Dir(p.groups))
	}
}
