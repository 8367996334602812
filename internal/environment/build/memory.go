package build

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// groupParent is the control group below which the program has all of its own.
const groupParent = "nearmetal"

// memoryGroup is the control group that a build runs in, with all that it starts: it bounds their memory together. One build of a name can
// run at a time.
type memoryGroup struct {
	dir   string
	bytes int64
	// The files of cgroup v1 (memory.rst) or v2 (cgroup-v2.rst) that bound memory, and memory with swap or swap alone.
	limit, swap, swapLimit string
	// events is the file that counts what the kernel has ended.
	events string
}

// makeGroup makes a build's group; nil when there is no limit to keep.
func makeGroup(name string, bytes int64) (*memoryGroup, error) {
	if name == "" || bytes == 0 {
		return nil, nil
	}
	limit := strconv.FormatInt(bytes, 10)
	g := &memoryGroup{bytes: bytes, limit: "memory.limit_in_bytes", swap: "memory.memsw.limit_in_bytes", swapLimit: limit, events: "memory.oom_control"}
	tree, v2 := "/sys/fs/cgroup/memory", false
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		tree, v2 = "/sys/fs/cgroup", true
		g.limit, g.swap, g.swapLimit, g.events = "memory.max", "memory.swap.max", "0", "memory.events"
	}
	g.dir = filepath.Join(tree, groupParent, name)
	if err := g.remove(); err != nil { // of a build whose agent was killed; it has counted what happened then
		return nil, err
	}
	var err error
	for range 10 {
		if err = makeDirs(tree, name, v2); !errors.Is(err, fs.ErrNotExist) {
			break // "not there": an agent that has nothing more in the parent has just removed it
		}
	}
	if err == nil {
		err = g.write(g.limit, limit)
	}
	if err == nil {
		if err = g.write(g.swap, g.swapLimit); errors.Is(err, fs.ErrNotExist) {
			err = nil // this kernel does not count swap
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("limit the memory of a build: %w", err), g.remove())
	}
	return g, nil
}

func makeDirs(tree, name string, v2 bool) error {
	dir := tree
	for _, child := range []string{groupParent, name} {
		if v2 { // children have the controllers that their parents hand down
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				return err
			}
		}
		dir = filepath.Join(dir, child)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (g *memoryGroup) write(file, text string) error {
	return os.WriteFile(filepath.Join(g.dir, file), []byte(text), 0)
}

// path is what joinGroup takes.
func (g *memoryGroup) path() string {
	if g == nil {
		return ""
	}
	return g.dir
}

// joinGroup moves this process into a group; what it starts from then on is there too.
func joinGroup(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join the build's control group: %w", err)
	}
	return nil
}

// exceeded is the failure of a build of which the kernel ended something because it needed more than it may have; nil when it did not.
func (g *memoryGroup) exceeded() error {
	if g == nil {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		return nil //nolint:nilerr // nobody knows; the build's own error tells what there is to tell
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok && n != "0" {
			return failf("the build needed more than the %d MiB of memory that a build may use on this node; run fewer commands in parallel, "+
				"or build it on a node with more memory", g.bytes>>20)
		}
	}
	return nil
}

// remove removes the group; all that was in it must have ended.
func (g *memoryGroup) remove() error {
	if g == nil {
		return nil
	}
	// The kernel says EBUSY for a moment after the last process was seen to end.
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(g.dir)
		switch {
		case err == nil:
			_ = unix.Rmdir(filepath.Dir(g.dir)) // others may have groups there
			return nil
		case errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || wait > time.Second:
			return fmt.Errorf("remove the build's control group %s: %w", g.dir, err)
		}
		time.Sleep(wait)
	}
}
