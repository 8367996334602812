package demo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// killMember ends the first process of a member, as a crash would: from outside, without a word to anyone. It returns its process ID.
func killMember(uid, member string) (int, error) {
	pid, err := firstProcess("/proc", uid, member)
	if err != nil {
		return 0, err
	}
	p, err := os.FindProcess(pid) // a handle (pidfd_open(2)): what is killed is what is looked at from here on
	if err != nil {
		return 0, fmt.Errorf("the first process of %s: %w", member, err)
	}
	defer func() { _ = p.Release() }()
	again, err := firstProcess("/proc", uid, member)
	if err == nil && again != pid {
		err = fmt.Errorf("member %s was replaced before it was killed: its first process was %d, and is %d now", member, pid, again)
	}
	if err != nil {
		return 0, err
	}
	return pid, p.Kill()
}

// firstProcess finds the first process of a member by its control group, whose name begins with the cluster's UID and the member's
// name, and by its parent (PPid in proc_pid_status(5)), which alone is in none of them.
func firstProcess(proc, uid, member string) (int, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, err
	}
	parents := map[int]int{} // of the member's processes
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		if strings.Contains(read(filepath.Join(dir, "cgroup")), "/"+uid+"."+member+".") {
			parents[pid] = parentOf(read(filepath.Join(dir, "status")))
		}
	}
	var found []int
	for pid, parent := range parents {
		if _, inside := parents[parent]; !inside {
			found = append(found, pid)
		}
	}
	switch len(found) {
	case 0:
		return 0, errors.New("no process of this machine is the first one of member " + member)
	case 1:
		return found[0], nil
	default:
		slices.Sort(found)
		return 0, fmt.Errorf("processes %v all look like the first one of member %s", found, member)
	}
}

// parentOf reads the parent of a process; 0 when it has ended.
func parentOf(status string) int {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, _ := strconv.Atoi(strings.TrimSpace(text)) // digits
			return parent
		}
	}
	return 0
}
