package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// memoryEvents are the files that count the processes which the kernel ended as their group ran out of memory: with cgroup v2 and
// v1 (cgroup-v2.rst; cgroup-v1/memory.rst, where oom_kill came with Linux 4.13).
var memoryEvents = []string{"memory.events", "memory.oom_control"}

// OutOfMemory returns how many processes of a member the kernel has ended for want of memory; it implements driver.MemoryAccountant.
func (d *Driver) OutOfMemory(id string) (int, error) {
	if !validName(id) {
		return 0, nil
	}
	h, err := d.host()
	if err != nil {
		return 0, err
	}
	return h.cgroups.outOfMemory(id)
}

func (c *cgroups) outOfMemory(id string) (int, error) {
	for _, dir := range c.dirs(id) {
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

// memoryText is what people are told of a member that ran out of memory; empty when it did not.
func (s sight) memoryText() string {
	if s.oomKills == 0 || s.member == nil {
		return ""
	}
	return fmt.Sprintf("; it ran out of memory: its limit is %s, and the kernel killed some of its processes (%d)", api.Bytes(s.member.Assignment.MemoryBytes()), s.oomKills)
}
