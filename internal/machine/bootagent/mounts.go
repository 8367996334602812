package bootagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountPoint is a file system that the kernel makes.
type mountPoint struct {
	kind, target, options string
	flags                 uintptr
	// optional: a kernel may lack it.
	optional bool
}

const noExec = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

// firstMounts are what the boot agent itself works with.
func firstMounts() []mountPoint {
	return []mountPoint{
		{kind: "devtmpfs", target: "/dev", options: "mode=755", flags: unix.MS_NOSUID},
		{kind: "proc", target: "/proc", flags: noExec},
		{kind: "sysfs", target: "/sys", flags: noExec},
		{kind: "tmpfs", target: "/run", options: "mode=755", flags: unix.MS_NOSUID | unix.MS_NODEV},
	}
}

// laterMounts are what the image's programs expect besides, as any init mounts them.
func laterMounts() []mountPoint {
	return []mountPoint{
		{kind: "devpts", target: "/dev/pts", options: "mode=620,ptmxmode=666,gid=5", flags: unix.MS_NOSUID | unix.MS_NOEXEC},
		{kind: "tmpfs", target: "/dev/shm", options: "mode=1777", flags: unix.MS_NOSUID | unix.MS_NODEV},
		{kind: "mqueue", target: "/dev/mqueue", flags: noExec, optional: true},
		{kind: "hugetlbfs", target: "/dev/hugepages", flags: unix.MS_NOSUID | unix.MS_NODEV, optional: true},
		{kind: "tmpfs", target: "/tmp", options: "mode=1777", flags: unix.MS_NOSUID | unix.MS_NODEV},
		{kind: "tmpfs", target: "/run/lock", options: "mode=1777", flags: noExec},
		{kind: "cgroup2", target: "/sys/fs/cgroup", options: "nsdelegate", flags: noExec},
		{kind: "securityfs", target: "/sys/kernel/security", flags: noExec, optional: true},
		{kind: "debugfs", target: "/sys/kernel/debug", options: "mode=700", flags: noExec, optional: true},
	}
}

// prepareForPrograms gives the image's programs what any init does: mounts, device links and nodes, limits.
func prepareForPrograms() error {
	if err := mountAll(laterMounts()); err != nil {
		return err
	}
	for link, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		path := filepath.Join("/dev", link)
		_ = os.Remove(path)
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	modules, err := modulesDir()
	if err != nil {
		return err
	}
	if err := makeStaticNodes("/dev", filepath.Join(modules, "modules.devname")); err != nil {
		return err
	}
	// RDMA pins memory, and large jobs open many files.
	unlimited := syscall.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	files := syscall.Rlimit{Cur: 1 << 16, Max: 1 << 20}
	return errors.Join(syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited), syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files))
}

func mountAll(points []mountPoint) error {
	for _, p := range points {
		_ = os.MkdirAll(p.target, 0o755)
		err := unix.Mount(p.kind, p.target, p.kind, p.flags, p.options)
		if err != nil && !p.optional && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", p.target, err)
		}
	}
	return nil
}

// mountEFIVariables lets inspection read the firmware's variables, and a cleaning change them; machines with BIOS have none. flags are MS_RDONLY or 0.
func mountEFIVariables(flags uintptr) {
	const dir = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(dir); err == nil {
		_ = unix.Mount("efivarfs", dir, "efivarfs", noExec|flags, "")
	}
}

// Where the parts of the root are put together before the switch; all on the initial RAM disk, which they cover afterwards.
const (
	newRoot   = "/root"
	layersDir = "/run/nearmetal/layers"
	upperDir  = "/run/nearmetal/upper"
)

// overlay mounts a writable root in RAM over the layers, the lowest first. fill makes files in its upper directory before; nil: it is empty.
func overlay(layers []string, fill func(upper string) error) error {
	_ = os.MkdirAll(upperDir, 0o700)
	if err := unix.Mount("tmpfs", upperDir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount the file system for the root's writes: %w", err)
	}
	for _, dir := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(upperDir, dir), 0o755); err != nil {
			return err
		}
	}
	if fill != nil {
		if err := fill(filepath.Join(upperDir, "upper")); err != nil {
			return err
		}
	}
	lower := ""
	for _, dir := range layers {
		// The first named lies on top.
		if lower != "" {
			lower = ":" + lower
		}
		lower = dir + lower
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", lower, upperDir)
	if err := unix.Mount("overlay", newRoot, "overlay", 0, options); err != nil {
		return fmt.Errorf("assemble the root: %w", err)
	}
	return nil
}

// switchRoot makes the new root the root of all and frees the initial RAM disk.
func switchRoot() error {
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run"} {
		target := filepath.Join(newRoot, dir)
		_ = os.MkdirAll(target, 0o755)
		if err := unix.Mount(dir, target, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s into the root: %w", dir, err)
		}
	}
	// What is left below / is the initial RAM disk; nothing of it is needed, and it is memory.
	for _, name := range []string{"lib", "init", "sbin"} {
		_ = os.RemoveAll("/" + name)
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("switch to the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("switch to the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Members' mounts must reach their namespaces, as under any init.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}
