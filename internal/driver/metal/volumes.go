package metal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// homePath is where members have their home.
const homePath = "/home"

// syncTime bounds how long what the machine has not yet written is waited for.
const syncTime = 30 * time.Second

// mountsOf are the directories of the host that a member has, its home among them if that is a volume.
func mountsOf(m *driver.Member) []driver.Mount {
	all := slices.Clone(m.Mounts)
	for _, c := range m.Assignment.Volumes {
		if path.Clean(c.Path) == homePath && m.HomeDir != "" {
			all = append(all, driver.Mount{Source: m.HomeDir, Path: homePath, ReadOnly: c.ReadOnly})
		}
	}
	return all
}

// mountVolumes mounts what a member has at its paths, unless it is there.
func (d *Driver) mountVolumes(m *driver.Member) error {
	for _, v := range mountsOf(m) {
		if err := d.mountVolume(v); err != nil {
			return fmt.Errorf("volume at %s: %w", v.Path, err)
		}
	}
	return nil
}

func (d *Driver) mountVolume(v driver.Mount) error {
	at := filepath.Join(d.cfg.Root, v.Path)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	there, err := mountedAt(at)
	if err != nil || there {
		return err
	}
	if err := unix.Mount(v.Source, at, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount", Path: at, Err: err}
	}
	if !v.ReadOnly {
		return nil
	}
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return errors.Join(&os.PathError{Op: "mount read-only", Path: at, Err: err}, unix.Unmount(at, unix.MNT_DETACH))
	}
	return nil
}

// unmountVolumes takes a member's volumes off its paths, after what was written there has reached their nodes. Programs that the machine's users still run
// keep what they have open.
func (d *Driver) unmountVolumes(ctx context.Context, m *driver.Member) error {
	all := mountsOf(m)
	slices.SortFunc(all, func(a, b driver.Mount) int { return strings.Compare(b.Path, a.Path) }) // what lies in another goes first
	var errs []error
	for _, v := range all {
		at := filepath.Join(d.cfg.Root, v.Path)
		there, err := mountedAt(at)
		if err != nil || !there {
			errs = append(errs, err)
			continue
		}
		d.sync(ctx, at)
		errs = append(errs, unix.Unmount(at, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}

// sync waits for what was written to a file system, by a process: the kernel waits for a node that is gone, and the process can be ended.
func (d *Driver) sync(ctx context.Context, at string) {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	_ = exec.CommandContext(ctx, "sync", "-f", at).Run()
}

// mountedAt reports whether something is mounted at a directory, by what this kernel knows of it without asking anybody (statx(2)).
func mountedAt(at string) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_DONT_SYNC, 0, &stat)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}
