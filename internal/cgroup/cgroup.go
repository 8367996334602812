// Package cgroup makes, limits and removes the control groups of a node's members, with version 1 and 2 of the kernel's interface.
//
// It must never remember: which groups there are, and which processes are in them, is what the kernel says, so it is right after any crash. Only
// nearmetal, the node's own group below it, and those of members below that are ever made or removed. Start with Find, then Groups.Make.
package cgroup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/pidfd"
	"golang.org/x/sys/unix"
)

// parentName is the control group below which every node's members are.
const parentName = "nearmetal"

// neededControllers are those without which a member's share of the machine can't be enforced.
var neededControllers = []string{"cpuset", "memory", "pids"}

// welcomeControllers are handed down to members where the kernel has them.
var welcomeControllers = []string{"cpu", "io"}

// hierarchy is one mounted control group tree.
type hierarchy struct {
	mountPoint string
	v2         bool
	// controllers are those of a v1 tree; a v2 tree tells them in cgroup.controllers.
	controllers []string
}

// Groups are the control groups of one node's members. With cgroup v1 a member has a directory in every tree, with v2 in
// the one; only these directories, nearmetal/GROUP and nearmetal are ever made or removed.
type Groups struct {
	trees []hierarchy
	// hybrid is where an empty v2 tree is mounted beside v1 trees, else "". runc makes groups there, too; crun can't.
	hybrid string
	// group is the node's own group below nearmetal.
	group string
}

// Find reads how control groups are mounted.
func Find(group string) (*Groups, error) {
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding control groups: %w", err)
	}
	defer file.Close()
	return parse(file, group)
}

// parse picks the control group trees out of a mountinfo file, proc_pid_mountinfo(5).
func parse(mountinfo io.Reader, group string) (*Groups, error) {
	c := &Groups{group: group}
	var v2 []string
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		mountPoint := left[4]
		switch right[0] {
		case "cgroup2":
			v2 = append(v2, mountPoint)
		case "cgroup":
			known := slices.ContainsFunc(c.trees, func(h hierarchy) bool { return h.mountPoint == mountPoint })
			if !known && strings.HasPrefix(mountPoint, "/sys/fs/cgroup/") {
				c.trees = append(c.trees, hierarchy{mountPoint: mountPoint, controllers: controllersOf(right[2])})
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("finding control groups: %w", err)
	}
	switch {
	case len(c.trees) == 0 && slices.Contains(v2, "/sys/fs/cgroup"):
		c.trees = []hierarchy{{mountPoint: "/sys/fs/cgroup", v2: true}}
	case len(c.trees) == 0:
		return nil, errors.New("no control groups are mounted at /sys/fs/cgroup; run: mount -t cgroup2 none /sys/fs/cgroup")
	case len(v2) > 0:
		c.hybrid = v2[0]
	}
	return c, nil
}

// controllersOf returns the controllers among a v1 tree's mount options.
func controllersOf(options string) []string {
	return slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "rw" || o == "ro" })
}

// NodeGroup names the control group of a node. Two installations on one machine may each have a node n1, and neither must take
// the other's members for its own debris, so the state directory is in the name: its path, since debris of a directory that
// was removed must be found by the one that takes its place.
func NodeGroup(node, stateDir string) string {
	sum := sha256.Sum256([]byte(resolve(stateDir)))
	return node + "-" + hex.EncodeToString(sum[:4])
}

// resolve follows the links in a path, as far as it exists.
func resolve(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil || path == "/" {
		return resolved
	}
	return filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
}

// V2 reports whether there is one tree, of version 2.
func (c *Groups) V2() bool { return c.trees[0].v2 }

// Hybrid returns where an empty tree of version 2 is mounted beside those of version 1, else "".
func (c *Groups) Hybrid() string { return c.hybrid }

// RuntimePath is a member's control group as the OCI runtime wants it (cgroupsPath).
func (c *Groups) RuntimePath(id string) string {
	return filepath.Join("/", parentName, c.group, id)
}

// Dirs are the directories of a member's control groups, whether they exist or not; "" stands for the node's own.
func (c *Groups) Dirs(id string) []string {
	dirs := make([]string, 0, len(c.trees)+1)
	for _, h := range c.trees {
		dirs = append(dirs, filepath.Join(h.mountPoint, parentName, c.group, id))
	}
	if c.hybrid != "" {
		dirs = append(dirs, filepath.Join(c.hybrid, parentName, c.group, id))
	}
	return dirs
}

// missing returns the needed controllers this host doesn't offer.
func (c *Groups) missing() []string {
	var have []string
	for _, h := range c.trees {
		if !h.v2 {
			have = append(have, h.controllers...)
			continue
		}
		text, _ := os.ReadFile(filepath.Join(h.mountPoint, "cgroup.controllers"))
		have = append(have, strings.Fields(string(text))...)
	}
	return slices.DeleteFunc(slices.Clone(neededControllers), func(n string) bool { return slices.Contains(have, n) })
}

// Check returns what of control groups this host lacks to limit members.
func (c *Groups) Check() error {
	if missing := c.missing(); len(missing) > 0 {
		return fmt.Errorf("control group controllers are missing: %s; boot with cgroup_enable=%s, or mount them below /sys/fs/cgroup",
			strings.Join(missing, ", "), strings.Join(missing, ","))
	}
	return nil
}

// MakeParents makes the node's own groups, so that runtimes started at once need not race for them, and hands the controllers
// down to them. Other agents of this machine make and remove /nearmetal at the same time.
func (c *Groups) MakeParents() error {
	for _, h := range c.trees {
		var err error
		for range 10 {
			if err = h.makeParent(c.group); !errors.Is(err, fs.ErrNotExist) {
				break // done, or a real error; "not there" means that another agent has just removed /nearmetal
			}
		}
		if err != nil {
			return fmt.Errorf("making control group /%s/%s: %w", parentName, c.group, err)
		}
	}
	return nil
}

func (h hierarchy) makeParent(group string) error {
	dir := h.mountPoint
	for _, name := range []string{parentName, group} {
		if h.v2 {
			if err := enableControllers(dir); err != nil {
				return err
			}
		}
		parent := dir
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if slices.Contains(h.controllers, "cpuset") {
			if err := inheritCpuset(parent, dir); err != nil {
				return err
			}
		}
	}
	if h.v2 {
		return enableControllers(dir)
	}
	return nil
}

// enableControllers hands the controllers of a v2 group down to its children (cgroup-v2.rst, "Controlling Controllers"). The
// needed ones must work; others are welcome: without io, members are held to no limits of I/O, which LimitIO reports.
func enableControllers(dir string) error {
	path := filepath.Join(dir, "cgroup.subtree_control")
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	enabled := strings.Fields(string(have))
	for _, name := range slices.Concat(welcomeControllers, neededControllers) {
		if slices.Contains(enabled, name) {
			continue
		}
		if err := os.WriteFile(path, []byte("+"+name), 0); err != nil && !slices.Contains(welcomeControllers, name) {
			return fmt.Errorf("controller %q can't be used below %s (the kernel lacks it, or a process is in that group): %w", name, dir, err)
		}
	}
	return nil
}

// inheritCpuset gives a new v1 cpuset its parent's CPUs and memory nodes; a v1 cpuset starts empty and holds no process then.
func inheritCpuset(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(have)) > 0 {
			continue
		}
		value, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// SwapLimit tells whether this kernel can limit swap; call it after makeParents.
func (c *Groups) SwapLimit() bool {
	for _, dir := range c.Dirs("") {
		for _, name := range []string{"memory.swap.max", "memory.memsw.limit_in_bytes"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return true
			}
		}
	}
	return false
}

// Members lists the IDs that have a control group in any tree.
func (c *Groups) Members() ([]string, error) {
	names, err := c.children()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, ".") }), nil
}

// children lists the groups below the node's own in any tree: members and sandboxes.
func (c *Groups) children() ([]string, error) {
	var ids []string
	for _, dir := range c.Dirs("") {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listing control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	return ids, nil
}

// Processes lists the host's PIDs of a member's processes, in whichever tree they are found.
func (c *Groups) Processes(id string) ([]int, error) {
	var pids []int
	for _, dir := range c.Dirs(id) {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue // ENODEV: removed between open and read
		}
		if err != nil {
			return nil, fmt.Errorf("listing the processes of member %q: %w", id, err)
		}
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Contains tells whether a live process belongs to a member; this is what makes a reused PID never count as the member.
func (c *Groups) Contains(id string, pid int) bool {
	pids, err := c.Processes(id)
	return err == nil && slices.Contains(pids, pid)
}

// Kill ends every process of a member by force and returns when they are gone.
func (c *Groups) Kill(ctx context.Context, id string) error {
	for {
		pids, err := c.Processes(id)
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d processes of member %q did not end: %w", len(pids), id, err)
		}
		if err := c.killAtOnce(ctx, id); err != nil {
			return err
		}
		for _, pid := range pids {
			if err := pidfd.Kill(ctx, pid, func() bool { return c.Contains(id, pid) }); err != nil {
				return fmt.Errorf("ending process %d of member %q: %w", pid, id, err)
			}
		}
	}
}

// killAtOnce signals all processes of a member at one moment, where the kernel can, so that none gets away by forking: with cgroup v2 by
// cgroup.kill (Linux 5.14), else while they are frozen.
func (c *Groups) killAtOnce(ctx context.Context, id string) error {
	if c.V2() {
		_ = os.WriteFile(filepath.Join(c.Dirs(id)[0], "cgroup.kill"), []byte("1"), 0)
		return nil
	}
	f, err := c.freezer(id)
	if err != nil {
		return nil // signalled one by one
	}
	pids, err := c.Processes(id)
	if err != nil || len(pids) < 2 || !isThere(f.path) {
		return err
	}
	err = f.set(ctx, true)
	if err == nil {
		pids, err = c.Processes(id)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // frozen, so that no other process can have its number by now
		}
	}
	return errors.Join(err, c.Thaw(context.WithoutCancel(ctx), id))
}

// Remove removes a member's control groups from every tree and verifies by looking.
func (c *Groups) Remove(ctx context.Context, id string) error {
	for _, dir := range c.Dirs(id) {
		if err := removeTree(ctx, dir); err != nil {
			return fmt.Errorf("removing control group %s: %w", dir, err)
		}
	}
	return nil
}

// removeTree removes a control group and those below it; files in them can't and needn't be removed.
func removeTree(ctx context.Context, dir string) error {
	err := rmdirWhenFree(ctx, dir)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return rmdirWhenFree(ctx, dir)
}

// rmdirWhenFree removes a control group. The kernel says EBUSY for a moment after the last process was seen to end, and
// offers nothing to wait on with cgroup v1.
func rmdirWhenFree(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > 256*time.Millisecond {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// RemoveParents removes the node's own groups when nothing is left in them; others' groups keep /nearmetal.
func (c *Groups) RemoveParents() {
	for _, dir := range c.Dirs("") {
		if unix.Rmdir(dir) == nil {
			_ = unix.Rmdir(filepath.Dir(dir))
		}
	}
}

// Sandboxes lists the groups of sandboxes in any tree.
func (c *Groups) Sandboxes() ([]string, error) {
	names, err := c.children()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, ".") }), nil
}

// Enter makes a sandbox' group and puts it there. One tree is enough to find it by, and each costs a move: that of systemd, which would end it
// with the agent's service; else the first.
func (c *Groups) Enter(group string, pid int) error {
	i := max(0, slices.IndexFunc(c.trees, func(h hierarchy) bool { return slices.Contains(h.controllers, "name=systemd") }))
	dir := c.Dirs(group)[i]
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making control group %s: %w", dir, err)
	}
	if slices.Contains(c.trees[i].controllers, "cpuset") {
		if err := inheritCpuset(filepath.Dir(dir), dir); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("moving process %d into control group %s: %w", pid, dir, err)
	}
	return nil
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
