package reflink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
)

// The kinds of a pool.
const (
	kindXFS   = "xfs"
	kindBtrfs = "btrfs"
	kindLoop  = "loop"
)

// leastLoopBytes is what mkfs.xfs makes a file system of.
const leastLoopBytes = 300 << 20

// logBytes is what an XFS takes for its log, which is no part of its room.
const logBytes = 64 << 20

// noCopyOnWrite is FS_NOCOW_FL: files in a directory of Btrfs with it keep their blocks when they are written to, unless these are shared.
const noCopyOnWrite = 0x00800000

func (s *Store) poolFile() string { return filepath.Join(s.cfg.Dir, "pool.img") }

// hasPoolFile reports whether the file is there. One that can't be looked at is there, too: it must not be made anew.
func (s *Store) hasPoolFile() bool {
	_, err := os.Lstat(s.poolFile())
	return !errors.Is(err, fs.ErrNotExist)
}

// kind returns the kind of pool that the directory has or would have.
func (s *Store) kind() (string, error) {
	if s.hasPoolFile() {
		return kindLoop, nil
	}
	dir := existing(s.cfg.Dir)
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return "", fmt.Errorf("looking at the file system of %s: %w", dir, err)
	}
	switch {
	case disk.Type == unix.XFS_SUPER_MAGIC && shares(dir):
		return kindXFS, nil
	case disk.Type == unix.BTRFS_SUPER_MAGIC && shares(dir):
		return kindBtrfs, nil
	}
	return kindLoop, nil
}

// shares reports whether files of a directory can share blocks. It tries with files that have no name.
func shares(dir string) bool {
	var fds [2]int
	for i := range fds {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return false
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	if _, err := unix.Write(fds[0], make([]byte, 4096)); err != nil {
		return false
	}
	return unix.IoctlFileClone(fds[1], fds[0]) == nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// open reports whether the images' directory is there; with wanted it makes it. An XFS in a file is mounted.
func (s *Store) open(wanted bool) (bool, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	kind, err := s.kind()
	if err != nil {
		return false, err
	}
	there := exists(s.dir())
	if kind == kindLoop {
		there = s.hasPoolFile()
	}
	if !there && !wanted {
		return false, nil
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o711); err != nil {
		return false, err
	}
	if err := os.Mkdir(s.dir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	switch {
	case kind == kindLoop && !there:
		if err := s.makePoolFile(); err != nil {
			return false, err
		}
	case kind == kindBtrfs:
		if err := keepInPlace(s.dir()); err != nil {
			return false, err
		}
	}
	if kind == kindLoop {
		return true, s.mountPoolFile()
	}
	return true, durablefile.SyncDir(s.cfg.Dir)
}

// keepInPlace makes new files of a directory on Btrfs keep their blocks when they are written to.
func keepInPlace(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer file.Close()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags|noCopyOnWrite)
	}
	if err != nil {
		return fmt.Errorf("turning copy on write off in %s: %w", dir, err)
	}
	return nil
}

// makePoolFile makes the file with an XFS.
func (s *Store) makePoolFile() error {
	if problems := s.loopProblems(); len(problems) > 0 {
		return errors.New(strings.Join(problems, "\n"))
	}
	draft := s.poolFile() + ".draft"
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = file.Truncate(s.cfg.LoopBytes); err == nil && !s.cfg.Sparse {
		err = unix.Fallocate(int(file.Fd()), 0, 0, s.cfg.LoopBytes)
	}
	failpoint.Hit("reflink.after-pool-allocation")
	if err == nil {
		// Without -K, its blocks would be given back.
		err = run("mkfs.xfs", "-q", "-K", "-m", "crc=1,reflink=1", "-l", fmt.Sprintf("size=%d", logBytes), draft)
	}
	failpoint.Hit("reflink.after-pool-format")
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		// It replaces nothing: what was there would be every volume of this node.
		err = unix.Renameat2(unix.AT_FDCWD, draft, unix.AT_FDCWD, s.poolFile(), unix.RENAME_NOREPLACE)
	}
	if err == nil {
		err = durablefile.SyncDir(s.cfg.Dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("making %s: %w", s.poolFile(), full(err)), os.Remove(draft))
	}
	failpoint.Hit("reflink.after-pool-commit")
	return nil
}

// mountPoolFile mounts the file system in the file, unless it is mounted.
func (s *Store) mountPoolFile() error {
	all, err := mounts.Below(s.dir())
	if err != nil || len(all) > 0 {
		return err
	}
	device, err := loopdev.Open(s.poolFile())
	if err != nil {
		return err
	}
	err = unix.Mount(device.Name(), s.dir(), "xfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if errors.Is(err, unix.ENODEV) {
		_ = exec.Command("modprobe", "xfs").Run()
		err = unix.Mount(device.Name(), s.dir(), "xfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err != nil {
		err = fmt.Errorf("mounting %s at %s: %w", s.poolFile(), s.dir(), err)
	}
	return errors.Join(err, device.Close())
}

// Close unmounts the file system in the file; nothing on it may be in use.
func (s *Store) Close(ctx context.Context) error {
	s.opening.Lock()
	defer s.opening.Unlock()
	if !s.hasPoolFile() {
		return nil
	}
	all, err := mounts.Below(s.dir())
	if err != nil {
		return err
	}
	for range all {
		if err := mounts.Unmount(ctx, s.dir()); err != nil {
			return err
		}
	}
	// Without the directory, the kernel takes away copies of the mount that other namespaces have.
	if err := os.Remove(s.dir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return loopdev.Await(ctx, s.poolFile())
}

// Describe tells what the directory has for images. It makes nothing, but for mounting what is there.
func (s *Store) Describe(context.Context) api.VolumePool {
	kind, err := s.kind()
	if err != nil {
		return api.VolumePool{Problems: []string{err.Error()}}
	}
	problems := loopdev.Problems()
	if kind == kindLoop {
		problems = append(problems, s.loopProblems()...)
	}
	if len(problems) > 0 {
		return api.VolumePool{Problems: problems}
	}
	there, err := s.open(false)
	if err != nil {
		return api.VolumePool{Problems: []string{err.Error()}}
	}
	var r Room
	switch {
	case there:
		r, err = s.look()
	case kind == kindLoop:
		r = unmade(s.cfg.LoopBytes)
	default:
		var disk unix.Statfs_t
		if err = unix.Statfs(existing(s.cfg.Dir), &disk); err == nil {
			r = Room{TotalBytes: int64(disk.Blocks) * disk.Bsize, FreeBytes: int64(disk.Bavail) * disk.Bsize}
		}
	}
	if err != nil {
		return api.VolumePool{Problems: []string{err.Error()}}
	}
	return api.VolumePool{Kind: kind, CapacityBytes: r.CapacityBytes(), HeldBytes: r.HeldBytes()}
}

// unmade is the room that an XFS in a file of so many bytes will have.
func unmade(bytes int64) Room {
	total := bytes - logBytes
	return Room{TotalBytes: total, FreeBytes: total, Alone: true}
}

// existing is the nearest directory upwards that exists.
func existing(dir string) string {
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// loopProblems are what keeps a host from having an XFS in a file.
func (s *Store) loopProblems() (problems []string) {
	if text, err := os.ReadFile("/proc/filesystems"); err == nil && !slices.Contains(strings.Fields(string(text)), "xfs") && exec.Command("modprobe", "xfs").Run() != nil {
		problems = append(problems, "the kernel has no XFS; boot one that has, or put the state directory on Btrfs")
	}
	if s.hasPoolFile() {
		return problems
	}
	if s.cfg.LoopBytes < leastLoopBytes {
		return append(problems, fmt.Sprintf("%s is on neither Btrfs nor an XFS with reflinks, and a file of %d MiB can't be a pool (the least is %d MiB)", s.cfg.Dir, s.cfg.LoopBytes>>20, leastLoopBytes>>20))
	}
	if _, err := program("mkfs.xfs"); err != nil {
		problems = append(problems, "mkfs.xfs is not installed; run: apt-get install xfsprogs")
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(existing(s.cfg.Dir), &disk); err != nil {
		problems = append(problems, err.Error())
	} else if free := int64(disk.Bavail) * disk.Bsize; free < s.cfg.LoopBytes && !s.cfg.Sparse {
		problems = append(problems, fmt.Sprintf("the pool of %d MiB does not fit on the disk of %s, which has %d MiB free", s.cfg.LoopBytes>>20, s.cfg.Dir, free>>20))
	}
	return problems
}

// program finds a system program; a user's PATH lacks their directories.
func program(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// run runs a system program.
func run(name string, args ...string) error {
	path, err := program(name)
	if err != nil {
		return err
	}
	if output, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(output)))
	}
	return nil
}
