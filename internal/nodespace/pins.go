package nodespace

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

// ensureDir makes the directory of pins, a private tmpfs. A mount namespace can only be pinned on a mount that is private, and
// detaching this one mount lets go of all pins.
func (s *site) ensureDir() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of node spaces: %w", err)
	}
	mounted, err := isMountPoint(s.dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount("nearmetal", s.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=1m"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %s: %w", s.dir, err)
		}
	}
	if err := unix.Mount("", s.dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making %s a private mount: %w", s.dir, err)
	}
	return nil
}

// removeDir lets go of all pins and removes the directory; namespaces without processes then end.
func (s *site) removeDir() error {
	for {
		mounted, err := isMountPoint(s.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !mounted {
			break
		}
		if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", s.dir, err)
		}
	}
	if err := os.Remove(s.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", s.dir, err)
	}
	return nil
}

// isMountPoint tells whether something is mounted on a directory: its device differs from its parent's.
func isMountPoint(dir string) (bool, error) {
	var here, parent unix.Stat_t
	if err := unix.Stat(dir, &here); err != nil {
		return false, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := unix.Stat(filepath.Dir(dir), &parent); err != nil {
		return false, &fs.PathError{Op: "stat", Path: filepath.Dir(dir), Err: err}
	}
	return here.Dev != parent.Dev, nil
}

// isPinned tells whether a namespace is mounted on path.
func isPinned(path string) (bool, error) {
	var stat unix.Statfs_t
	err := unix.Statfs(path, &stat)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("inspecting %s: %w", path, err)
	}
	return stat.Type == unix.NSFS_MAGIC, nil
}

// pinNamespace mounts the namespace that the file source is on path. The calling thread has to be in the mount namespace of
// the host.
func pinNamespace(source, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pinning a namespace on %s: %w", path, err)
	}
	return nil
}

// ErrInUse is the error of Remove while processes run in the node spaces; its text names them.
var ErrInUse = errors.New("node spaces can't be removed while processes run in them")

// refuseWhileInUse names the processes that are in the pinned network namespaces.
func (s *site) refuseWhileInUse() error {
	pins, err := filepath.Glob(filepath.Join(s.dir, "*", "net"))
	if err != nil {
		return err
	}
	nodes := map[uint64]string{}
	for _, pin := range pins {
		if pinned, err := isPinned(pin); err != nil || !pinned {
			continue
		}
		var stat unix.Stat_t
		if err := unix.Stat(pin, &stat); err == nil {
			nodes[stat.Ino] = filepath.Base(filepath.Dir(pin))
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var users []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var stat unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &stat) != nil {
			continue // it has ended
		}
		if node, ok := nodes[stat.Ino]; ok {
			comm, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "comm"))
			users = append(users, fmt.Sprintf("%s on %s (PID %d)", strings.TrimSpace(string(comm)), node, pid))
		}
	}
	if len(users) > 0 {
		slices.Sort(users)
		return fmt.Errorf("%w: %s; end them first", ErrInUse, strings.Join(users, ", "))
	}
	return nil
}
