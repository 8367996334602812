// Package mounts reads which mounts are below a directory, and makes those of file systems that clusters have: with owners of their own.
//
// It looks at the kernel's list each time and remembers nothing. Start with Below.
package mounts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// Mount is one in this process's namespace.
type Mount struct {
	Path     string
	ReadOnly bool
	// Mapped: its owners are those of a user namespace.
	Mapped bool
}

// Below returns the mounts at a directory and below it, in the order in which they were made.
func Below(dir string) ([]Mount, error) {
	// Mounts are listed by their paths without links.
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	all, err := parse(file)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m Mount) bool { return m.Path != dir && !strings.HasPrefix(m.Path, dir+"/") }), nil
}

// escapes are how the kernel writes what would end a field.
var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// parse reads mountinfo, proc_pid_mountinfo(5).
func parse(r io.Reader) (all []Mount, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return nil, fmt.Errorf("mountinfo has the line %q", lines.Text())
		}
		options := strings.Split(fields[5], ",")
		all = append(all, Mount{
			Path: escapes.Replace(fields[4]), ReadOnly: slices.Contains(options, "ro"), Mapped: slices.Contains(options, "idmapped"),
		})
	}
	return all, lines.Err()
}

// Map shows a mounted directory at another place, with the owners that are in its files mapped to a range of this host's: 0 to its first.
func Map(from, at string, ids api.IDRange, readOnly bool) error {
	owners, err := userNamespace(ids)
	if err != nil {
		return fmt.Errorf("making a user namespace with %d IDs from %d: %w", ids.Count, ids.First, err)
	}
	defer owners.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", from, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Userns_fd: uint64(owners.Fd())}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mapping the owners of %s: %w", from, err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %s: %w", at, err)
	}
	return nil
}

// ErrBusy reports that files of a mount are open on this host.
var ErrBusy = errors.New("files in it are open on this host")

// The pauses and the end of waiting for a mount that something passes through at the moment: a look at it, or a program between fork and exec.
const (
	unmountEvery = 10 * time.Millisecond
	unmountMost  = time.Second
)

// Unmount takes one mount away. It returns ErrBusy when the mount stays in use. Nothing mounted there is no error.
func Unmount(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, unmountMost)
	defer cancel()
	tick := time.NewTicker(unmountEvery)
	defer tick.Stop()
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if err == nil || errors.Is(err, unix.EINVAL) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("unmounting %s: %w", path, ErrBusy)
		}
	}
}

// userNamespace returns a user namespace with these IDs. A process is in it until it is open.
func userNamespace(ids api.IDRange) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	mapping := []syscall.SysProcIDMap{{HostID: int(ids.First), Size: int(ids.Count)}}
	cmd := exec.Command("/bin/cat") // reads the pipe until it is closed
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, write.Close())
	}
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err := errors.Join(err, write.Close(), cmd.Wait()); err != nil {
		if namespace != nil {
			_ = namespace.Close()
		}
		return nil, err
	}
	return namespace, nil
}

// FirstOwner returns the first ID of the range that a mapped mount has, from what owns a directory there and in its file system. A tenant may give
// the directory away at any time, so that it is looked at until it stays.
func FirstOwner(dir, shown string) (uint32, error) {
	for range 100 {
		var before, mapped, after unix.Stat_t
		if err := errors.Join(unix.Lstat(dir, &before), unix.Lstat(shown, &mapped), unix.Lstat(dir, &after)); err != nil {
			return 0, err
		}
		if before.Uid == after.Uid && before.Ctim == after.Ctim {
			return mapped.Uid - before.Uid, nil
		}
	}
	return 0, fmt.Errorf("the owner of %s changes all the time", dir)
}
