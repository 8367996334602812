package hostsnapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// firstGroup is the lowest group that OwnGroup returns. No account and no ID range of members or containers reaches this far.
const firstGroup = 0x6e6d0000

// OwnGroup returns a group ID for the program that this process is about to observe. No other process has it. It returns 0 in
// a user namespace that does not map such groups.
func OwnGroup() uint32 {
	group := uint64(firstGroup + os.Getpid()) // PIDs end at 2^22 (proc(5), pid_max)
	text, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var inside, outside, count uint64
		if n, err := fmt.Sscan(line, &inside, &outside, &count); n == 3 && err == nil && group >= inside && group-inside < count {
			return uint32(group)
		}
	}
	return 0
}

// ReturnToGroup gives what was made with Options.Group below a path to another group. It is for what stays on purpose.
func ReturnToGroup(path string, from, to uint32) error {
	err := filepath.WalkDir(path, func(path string, _ os.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		var st unix.Stat_t
		if err != nil || unix.Lstat(path, &st) != nil || st.Gid != from {
			return err
		}
		return os.Lchown(path, -1, int(to))
	})
	if err != nil {
		return fmt.Errorf("changing the group of %s: %w", path, err)
	}
	return nil
}

// ours reports whether a path, or a directory above it, has the observed program's group. The program may give what it makes to other groups, but its own
// directories enclose it, and those of another program that is observed at the same time enclose what is that one's.
func (c *collector) ours(path string) bool {
	if c.opts.Group == 0 || !filepath.IsAbs(path) {
		return false
	}
	if group, of := c.observed(path); of {
		return group == c.opts.Group
	}
	return c.inOurs(filepath.Dir(path))
}

func (c *collector) inOurs(dir string) bool {
	known, seen := c.oursDirs[dir]
	if !seen {
		group, of := c.observed(dir)
		known = of && group == c.opts.Group || !of && dir != "/" && c.inOurs(filepath.Dir(dir))
		c.oursDirs[dir] = known
	}
	return known
}

// observed is the group of a path, and whether it is that of a program that is observed, by this process or another one.
func (c *collector) observed(path string) (group uint32, of bool) {
	var st unix.Stat_t
	if unix.Fstatat(unix.AT_FDCWD, path, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0, false
	}
	return st.Gid, st.Gid == c.opts.Group || st.Gid >= firstGroup && st.Gid < firstGroup+1<<22
}

func (c *collector) hasGroup(dir int, path string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, path, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Gid == c.opts.Group
}

// oursMount reports whether what is mounted, its source, or the file or directory that it covers has the observed program's
// group.
func (c *collector) oursMount(m mountLine) bool {
	return c.ours(m.target) || c.ours(m.source) || c.coversOurs(m.target)
}

// coversOurs reports whether the directory that a mount covers has the observed program's group. A copy of the mount around
// it, without those below, shows what is covered (open_tree(2)).
func (c *collector) coversOurs(target string) bool {
	if c.opts.Group == 0 {
		return false
	}
	around, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(target), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(around) }()
	return c.hasGroup(around, filepath.Base(target))
}
