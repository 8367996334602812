package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// A snapshot of a member is a saved member with an ID of its own. Its directory has the two files of one (save.go) and nothing else. Members that
// go back to it begin with a hard link of its state: a state is never written after it is complete.

// Snapshot writes the memory and devices of a paused machine as a saved member of its own.
func (d *Driver) Snapshot(ctx context.Context, id, of string) error {
	if err := d.snapshot(ctx, id, of); err != nil {
		return fmt.Errorf("writing the state of member %q: %w", of, err)
	}
	return nil
}

func (d *Driver) snapshot(ctx context.Context, id, of string) error {
	switch {
	case !validName(id):
		return fmt.Errorf("%q is not a valid ID", id)
	case !d.has(of):
		return driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, of)
	if err != nil {
		return err
	}
	defer done()
	if taken, err := d.look(ctx, host, id); err != nil || taken.state == driver.StateSaved {
		return err
	}
	if seen.state != driver.StatePaused {
		return fmt.Errorf("it is %s, not paused", seen.state)
	}
	r, err := d.recallMovable(ctx, host, of, seen)
	if err != nil {
		return err
	}
	if err := surviveAll(r.Member, verbSnapshot); err != nil {
		return err
	}
	if err := d.stirred(ctx, host, of); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir(id), 0o711); err != nil {
		return err
	}
	return d.writeState(ctx, host, id, of, seen, r)
}

// writeState writes what of is at this moment as the saved member id, and ends the migration by which that leaves the machine.
func (d *Driver) writeState(ctx context.Context, host *daemon, id, of string, seen sight, r record) error {
	file, err := newStateFile(d.path(id, fileState), r.Member.Assignment.MemoryBytes())
	if err != nil {
		return err
	}
	out, err := d.leave(ctx, host, of, seen, file, false, driver.MoveLimits{})
	if err != nil {
		return errors.Join(err, file.drop())
	}
	s := saved{ID: id, Member: r.Member, Shape: *r.Shape, At: time.Now().UTC()}
	s.Member.Assignment.ID = id
	if s.Bytes, s.SHA256, err = file.finish(); err != nil {
		return errors.Join(err, out.cancel(ctx))
	}
	failpoint.Hit("vm.after-snapshot-state")
	if err := writeDurably(d.path(id, fileSaved), s); err != nil {
		return errors.Join(err, os.RemoveAll(d.path(id, fileSaved)), os.RemoveAll(d.path(id, fileState)), out.cancel(ctx))
	}
	failpoint.Hit("vm.after-snapshot")
	return out.cancel(ctx)
}

// stirred lets a paused machine run for an instant if its state has left it before, in vain or into another snapshot: QEMU refuses to write a state
// twice from one standstill (RUN_STATE_POSTMIGRATE).
func (d *Driver) stirred(ctx context.Context, host *daemon, id string) error {
	var status struct {
		Status string `json:"status"`
	}
	o := &outgoing{d: d, host: host, id: id}
	if err := o.tell(ctx, command{Execute: "query-status"}, &status); err != nil {
		return err
	}
	if status.Status == "paused" || status.Status == "running" {
		return nil
	}
	if err := d.goOn(ctx, host, id); err != nil {
		return err
	}
	return host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainSuspend(domain) })
}

// Verify reads a saved member's state, and compares its machine with what the same member would have on this host now.
func (d *Driver) Verify(ctx context.Context, id string) error {
	if err := d.verify(ctx, id); err != nil {
		return fmt.Errorf("verifying the state of member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) verify(ctx context.Context, id string) error {
	if !d.has(id) {
		return driver.ErrNotFound
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := d.savedHere(ctx, host, id)
	if err != nil {
		return err
	}
	if _, err := d.fitting(ctx, host, s.Member, s.Shape); err != nil {
		return err
	}
	return s.feed(d.path(id, fileState), endable{ctx, io.Discard})
}

// LayDown makes a saved member of the state of another one.
func (d *Driver) LayDown(ctx context.Context, id, from string) error {
	if err := d.layDown(ctx, id, from); err != nil {
		return fmt.Errorf("making member %q of the state of %q: %w", id, from, err)
	}
	return nil
}

func (d *Driver) layDown(ctx context.Context, id, from string) error {
	switch {
	case !validName(id) || id == from:
		return fmt.Errorf("%q is not a valid ID", id)
	case !d.has(from):
		return driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case seen.state == driver.StateSaved:
		return nil
	case seen.state != driver.StateAbsent && seen.state != driver.StatePrepared:
		return fmt.Errorf("it is %s here already", seen.state)
	}
	s, err := d.savedHere(ctx, host, from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir(id), 0o711); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(d.path(id, fileState)), os.Link(d.path(from, fileState), d.path(id, fileState))); err != nil {
		return err
	}
	failpoint.Hit("vm.after-link")
	s.ID, s.Member.Assignment.ID = id, id
	return writeDurably(d.path(id, fileSaved), s)
}
