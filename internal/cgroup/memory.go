package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// memoryEvents are the files that count the processes which the kernel ended as their group ran out of memory: with cgroup v2 and
// v1 (cgroup-v2.rst; cgroup-v1/memory.rst, where oom_kill came with Linux 4.13).
var memoryEvents = []string{"memory.events", "memory.oom_control"}

// OutOfMemory returns how many processes of a member the kernel has ended for want of memory, as long as its group is there.
func (c *Groups) OutOfMemory(id string) (int, error) {
	for _, dir := range c.Dirs(id) {
		for _, name := range memoryEvents {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return 0, fmt.Errorf("reading how often member %q ran out of memory: %w", id, err)
			}
			return oomKills(string(text)), nil
		}
	}
	return 0, nil
}

// oomKills picks the count out of such a file.
func oomKills(text string) int {
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, _ := strconv.Atoi(n) // digits
			return kills
		}
	}
	return 0
}

// SharedBytes is what a member has in memory that can be shared: System V segments, and files of tmpfs and memfd. Both versions of control groups
// count it alike (memory.stat in cgroup-v1/memory.rst and cgroup-v2.rst).
func (c *Groups) SharedBytes(id string) (int64, error) {
	for _, dir := range c.Dirs(id) {
		text, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reading how much memory member %q shares: %w", id, err)
		}
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(strings.TrimSpace(line), "shmem "); ok {
				return strconv.ParseInt(n, 10, 64)
			}
		}
	}
	return 0, nil
}
