package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// Remount brings what a running machine has mounted of volumes to m.Mounts; it implements driver.Mounter. The server of its files is replaced by one that
// serves the volumes of both, the guest mounts and unmounts, and then another one serves no more than it is to have: whatever the guest says, it
// gets at no other volume. The guest's kernel repeats what a server did not answer.
//
// The record names all that may be served, so that the next call finds what a crash left. It names a volume for as long as a server may have it.
func (d *Driver) Remount(ctx context.Context, m driver.Member) error {
	switch err := d.remount(ctx, m); {
	case errors.Is(err, guestlink.ErrBusy):
		text := strings.TrimPrefix(err.Error(), guestlink.ErrBusy.Error()+": ")
		return fmt.Errorf("%w: in member %s, %s", driver.ErrMountBusy, m.Assignment.Member, text)
	case err != nil && !errors.Is(err, driver.ErrMountLater):
		return fmt.Errorf("changing the volumes of member %q: %w", m.Assignment.ID, err)
	default:
		return err
	}
}

func (d *Driver) remount(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	seen, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	r, err := d.recall(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return driver.ErrNotFound
	case err != nil:
		return err
	case r.Foreign != nil:
		return errors.New("it has the disk of another system, without an agent to mount volumes")
	case seen.state == driver.StatePaused:
		return fmt.Errorf("%w: a virtual machine mounts its volumes itself; resume its cluster", driver.ErrMountLater)
	}
	leaving := slices.DeleteFunc(slices.Clone(r.Member.Mounts), func(has driver.Mount) bool { return slices.Contains(m.Mounts, has) })
	for _, has := range leaving {
		if slices.ContainsFunc(m.Mounts, func(w driver.Mount) bool { return w.Path == has.Path }) {
			return fmt.Errorf("%s is to be another volume than it is, or the same in another way; it has to be detached first", has.Path)
		}
	}
	r.Member.Mounts = slices.Concat(leaving, m.Mounts)
	keepsFrontEnds(&m, r.Member)
	_, closeTrees, err := d.openServed(ctx, r.Member) // before anything is changed: what can't be opened leaves the guest what it has
	if err != nil {
		return err
	}
	closeTrees()
	if err := d.writeRecord(id, r); err != nil {
		return err
	}
	failpoint.Hit("vm.before-remount")
	if err := d.serveAnew(ctx, r.Member); err != nil {
		return err
	}
	if err := d.guest(id).client.Volumes(ctx, guestlink.Volumes{All: volumesOf(m)}); err != nil {
		return err
	}
	failpoint.Hit("vm.after-mount")
	r.Member.Mounts, r.Member.Assignment.Volumes, r.Member.Assignment.VolumesNumber = m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber
	r.Member.LayersNumber = m.LayersNumber
	if err := d.serveAnew(ctx, r.Member); err != nil {
		return err
	}
	return d.writeRecord(id, r)
}

// serveAnew has a member served all that it has, and nothing else.
func (d *Driver) serveAnew(ctx context.Context, m driver.Member) error {
	serves, err := d.exportsNow(m.Assignment.ID)
	if err != nil {
		return err
	}
	if want := exportsOf(m); slices.Equal(serves, want) {
		return nil
	}
	return d.replaceHome(ctx, m)
}

// volumesOf are what a member's guest mounts besides the home: its volumes, and the front ends of its remote GPUs.
func volumesOf(m driver.Member) []guestlink.Volume {
	var all []guestlink.Volume
	for _, v := range m.Mounts {
		all = append(all, guestlink.Volume{Path: v.Path, ReadOnly: v.ReadOnly})
	}
	if m.GPUServer != nil {
		all = append(all, guestlink.Volume{Path: frontEndsDir, ReadOnly: true})
	}
	return all
}
