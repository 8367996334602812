package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are a member's share of the machine.
type Limits struct {
	MemoryBytes int64
	// CPUs and MemoryNodes are those that its processes may use.
	CPUs, MemoryNodes []int
}

// setting is a file of a control group and what is written to it.
type setting struct {
	name, value string
	// optional: not every kernel has it.
	optional bool
}

// settings are those of a tree, in the order in which they are written.
func (l Limits) settings(h hierarchy) []setting {
	memory, cpuset := strconv.FormatInt(l.MemoryBytes, 10), slices.Contains(h.controllers, "cpuset")
	var all []setting
	switch {
	case h.v2:
		// Swapped out, a member's memory would be slow at a moment that nobody can foresee.
		all, cpuset = []setting{{"memory.max", memory, false}, {"memory.swap.max", "0", true}}, true
	case slices.Contains(h.controllers, "memory"):
		// A limit that grows must not exceed the one of memory and swap together, so that is lifted first.
		all = []setting{{"memory.memsw.limit_in_bytes", "-1", true}, {"memory.limit_in_bytes", memory, false}, {"memory.memsw.limit_in_bytes", memory, true}}
	}
	if cpuset {
		all = append(all, setting{"cpuset.cpus", list(l.CPUs), false}, setting{"cpuset.mems", list(l.MemoryNodes), false})
	}
	return all
}

// limiting reports whether a tree limits members that no OCI runtime starts, or is systemd's, which would end them with the agent's service.
func (h hierarchy) limiting() bool {
	return h.v2 || slices.ContainsFunc(h.controllers, func(c string) bool { return c == "memory" || c == "cpuset" || c == "blkio" || c == "name=systemd" })
}

// Make makes a member's groups below the node's own and limits them. The node's own may go with its last member meanwhile, and are made again then.
func (c *Groups) Make(id string, l Limits) (err error) {
	for range 10 {
		if err = c.make(id, l); !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return err
}

func (c *Groups) make(id string, l Limits) error {
	if err := c.MakeParents(); err != nil {
		return err
	}
	for i, h := range c.trees {
		if !h.limiting() {
			continue
		}
		dir := c.Dirs(id)[i]
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("making control group %s: %w", dir, err)
		}
		for _, s := range l.settings(h) {
			err := os.WriteFile(filepath.Join(dir, s.name), []byte(s.value), 0)
			if s.optional && (errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)) { // it can't be made by writing
				continue
			}
			if err != nil {
				return fmt.Errorf("limiting control group %s, %s to %s: %w", dir, s.name, s.value, err)
			}
		}
	}
	return nil
}

// Join moves a process with all its threads into a member's groups. Memory that it has by then stays charged to the group that it came from.
func (c *Groups) Join(id string, pid int) error {
	for i, h := range c.trees {
		if !h.limiting() {
			continue
		}
		dir := c.Dirs(id)[i]
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("moving process %d into control group %s: %w", pid, dir, err)
		}
	}
	return nil
}

// list writes numbers in the list format of cpuset(7).
func list(numbers []int) string {
	words := make([]string, 0, len(numbers))
	for _, n := range numbers {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ",")
}
