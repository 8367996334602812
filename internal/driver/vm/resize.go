package vm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Resize gives a running machine its new processors, memory and private disk; it implements driver.Resizer. Processors and memory need a reboot
// where the machine's chassis or its guest does not take them. Reboot builds the machine anew from its assignment, in a chassis of that size.
func (d *Driver) Resize(ctx context.Context, m driver.Member) error {
	if err := d.resize(ctx, m); err != nil {
		return fmt.Errorf("resizing member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) resize(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	seen, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	if seen.hung {
		return errHung
	}
	r, err := d.recall(id)
	if err != nil {
		return err
	}
	has, wants := r.Member.Assignment.Held(), m.Assignment.Held()
	if r.Foreign != nil && wants.DiskBytes > has.DiskBytes {
		if err := d.growRunning(ctx, &m.Assignment, *r.Foreign); err != nil {
			return err
		}
		has.DiskBytes = wants.DiskBytes
	}
	now := r.Member.Assignment.Sized(has)
	live := d.fitLive(ctx, seen, &r, &now, &m.Assignment)
	if live == nil {
		now = now.Sized(wants)
	}
	r.Member.Assignment = now
	if r.Shape != nil {
		*r.Shape = r.Shape.sized(&now)
	}
	return errors.Join(live, d.writeRecord(id, r))
}

func (d *Driver) growRunning(ctx context.Context, a *api.Assignment, disk api.ForeignDisk) error {
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	return d.growDisk(ctx, host, a, disk)
}

// growDisk makes the disk of a machine that is there as large as its member's assignment says. QEMU must be allowed to write so much first.
func (d *Driver) growDisk(ctx context.Context, host *daemon, a *api.Assignment, disk api.ForeignDisk) error {
	if err := d.boundDisk(a); err != nil {
		return fmt.Errorf("bounding its disk: %w", err)
	}
	err := host.domain(ctx, a.ID, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error {
		return rpc.DomainBlockResize(domain, diskTarget(disk), uint64(a.DiskBytes), libvirt.DomainBlockResizeBytes)
	})
	if err != nil {
		return fmt.Errorf("growing its disk to %s: %w", api.Bytes(a.DiskBytes), err)
	}
	return nil
}

// diskTarget is the name of the private disk in a machine's description.
func diskTarget(disk api.ForeignDisk) string {
	if disk.OS == api.SystemLinux {
		return "vda"
	}
	return "sda"
}

// overlaySize reads the size of the disk in a private disk's file.
func overlaySize(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	var head [32]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(head[24:])), nil
}

// fitDisk grows the disk of a machine that has not begun to run, when its member was given a larger one meanwhile.
func (d *Driver) fitDisk(ctx context.Context, host *daemon, a *api.Assignment, disk api.ForeignDisk) error {
	size, err := overlaySize(d.path(a.ID, fileDisk))
	if err != nil || a.DiskBytes <= size {
		return err
	}
	return d.growDisk(ctx, host, a, disk)
}
