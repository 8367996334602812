package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// arrival is a member that goes on here where another was.
type arrival struct {
	d     *Driver
	host  *daemon
	m     driver.Member
	image environment.Image
	shape shape
}

// arrival finds out what the member's machine in a chassis is here, and changes nothing.
func (d *Driver) arrival(ctx context.Context, host *daemon, m driver.Member, c *chassis) (*arrival, error) {
	image, err := d.image(m)
	if err != nil {
		return nil, err
	}
	if err := d.checkModel(ctx, m.Assignment.CPUModel); err != nil {
		return nil, err
	}
	s, err := d.shapeOf(ctx, host, m, image, c)
	return &arrival{d, host, m, image, s}, err
}

// fitting is arrival of a member whose machine had another shape until now, which must fit.
func (d *Driver) fitting(ctx context.Context, host *daemon, m driver.Member, had shape) (*arrival, error) {
	a, err := d.arrival(ctx, host, m, had.Chassis)
	if err != nil {
		return nil, err
	}
	return a, had.fits(a.shape)
}

// arrive makes the machine, gives it the state that feed writes, and lets it go on once commit has made it this host's, which runs says. Without
// commit, nothing of it runs when it returns.
func (a *arrival) arrive(ctx context.Context, feed func(io.Writer) error, commit func() error, runs func()) error {
	d, id := a.d, a.m.Assignment.ID
	if err := d.endMachine(ctx, a.host, id); err != nil {
		return fmt.Errorf("removing the remains of an earlier attempt: %w", err)
	}
	if err := a.load(ctx, feed, commit); err != nil {
		return errors.Join(err, d.kill(ctx, a.host, id))
	}
	// It is here whatever happens now.
	if err := d.goOn(context.WithoutCancel(ctx), a.host, id); err != nil {
		return fmt.Errorf("it is here and stands still, as if it was paused: %w", err)
	}
	runs()
	d.mu.Lock()
	d.arrived[id] = true // Update gives it its files, the time, and the connection of its member agent
	d.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	err := d.parkFunctions(ctx, a.m)
	d.plugOrLater(ctx, a.host, a.m)
	return err
}

// link shows the member agent's socket to a QEMU that does not see it yet, whichever libvirtd started it. A guest that arrived here sees the end of its
// member agent's last connection first.
func (d *Driver) link(ctx context.Context, pid int, m driver.Member) error {
	at := viewOf(m.Assignment.ID).control()
	if !isMissing(filepath.Join("/proc", strconv.Itoa(pid), "root", at, "agent.sock")) {
		return nil
	}
	if err := d.awaitHungUp(ctx, m.Assignment.ID, agentChannel); err != nil {
		return err
	}
	if err := showTo(pid, shown{path: m.ControlDir, at: at, readOnly: true}); err != nil {
		return fmt.Errorf("connecting its member agent: %w", err)
	}
	return nil
}

// load is arrive up to commit.
func (a *arrival) load(ctx context.Context, feed func(io.Writer) error, commit func() error) error {
	d, id := a.d, a.m.Assignment.ID
	if err := d.write(ctx, a.host, a.m, a.image); err != nil {
		return err
	}
	if err := d.attach(ctx, a.m, a.shape.Chassis.queues(&a.m.Assignment)); err != nil {
		return fmt.Errorf("attaching it to its network: %w", err)
	}
	text, err := newDomain(a.m, a.image, viewOf(id), uuidText(d.domainUUID(id)), d.hardware(), a.shape.Chassis).xml()
	if err != nil {
		return err
	}
	if err := d.confine(&a.m.Assignment); err != nil {
		return err
	}
	if err := d.keepHome(ctx, a.m); err != nil {
		return err
	}
	in, err := d.receive(ctx, a.host, id, text, int(a.m.Assignment.UserIDs.First))
	if err != nil {
		return err
	}
	if err := d.join(&a.m.Assignment); err != nil { // before it takes memory for the guest
		return errors.Join(err, in.cancel(ctx))
	}
	if err := feed(in); err != nil {
		return errors.Join(err, in.cancel(ctx))
	}
	if _, err := d.console(id); err != nil { // what it prints first is not lost
		return errors.Join(err, in.cancel(ctx))
	}
	if err := in.complete(ctx); err != nil {
		return fmt.Errorf("the machine does not take its state: %w", err)
	}
	r := record{Member: a.m, Shape: &a.shape}
	r.Member.Files = nil
	if err := writeDurably(d.path(id, fileComing), r); err != nil {
		return err
	}
	if err := commit(); err != nil {
		return err
	}
	failpoint.Hit("vm.after-arrival")
	if err := durablefile.Rename(d.path(id, fileComing), d.path(id, fileMember)); err != nil { // which counts without that, too
		d.log.WarnContext(ctx, "a member's record can't be renamed", "member", id, "error", err)
	}
	return nil
}

// fileComing is the record of a member that is about to go on here. It counts once there is a fileOrigin.
const fileComing = "coming.json"
