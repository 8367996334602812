package metal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/openfiles"
)

// Remount implements driver.Mounter. The record names all that may be mounted, so that the next call finds what a crash left. Programs anywhere on the
// machine count as the member's: it has all of it.
func (d *Driver) Remount(ctx context.Context, m driver.Member) error {
	r, err := d.known(m.Assignment.ID)
	if err != nil {
		return err
	}
	if !r.runs() {
		return fmt.Errorf("member %q does not run", m.Assignment.ID)
	}
	if err := driver.CheckMounts(m.Mounts); err != nil {
		return err
	}
	leaving := slices.DeleteFunc(slices.Clone(r.Member.Mounts), func(has driver.Mount) bool { return slices.Contains(m.Mounts, has) })
	for _, has := range leaving {
		if slices.ContainsFunc(m.Mounts, func(w driver.Mount) bool { return w.Path == has.Path }) {
			return fmt.Errorf("%s is to be something else than it is; it has to be removed first", has.Path)
		}
	}
	r.Member.Mounts = slices.Concat(leaving, m.Mounts)
	if err := d.remember(*r); err != nil {
		return err
	}
	var errs []error
	for _, v := range m.Mounts {
		if err := d.mountVolume(v); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", v.Path, err))
		}
	}
	for _, v := range leaving {
		if err := d.unmount(ctx, &m, v); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.Member.Mounts, r.Member.Assignment.Volumes, r.Member.Assignment.VolumesNumber = m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber
	r.Member.LayersNumber = m.LayersNumber
	return d.remember(*r)
}

// unmount takes a mount from the member, unless programs have files of it open.
func (d *Driver) unmount(ctx context.Context, m *driver.Member, v driver.Mount) error {
	at := filepath.Join(d.cfg.Root, v.Path)
	there, err := mountedAt(at)
	if err != nil || !there {
		return err
	}
	if !v.ReadOnly {
		d.sync(ctx, at)
	}
	switch err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW); {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %s", driver.ErrMountBusy, openfiles.Text(processes(), at, "member "+m.Assignment.Member))
	case err != nil:
		return &fs.PathError{Op: "unmount", Path: at, Err: err}
	}
	_ = os.Remove(at) // it was made for the mount; users may have put files there before
	return nil
}

// processes are the IDs of the machine's processes.
func processes() []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
