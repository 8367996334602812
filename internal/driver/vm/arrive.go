package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// arrival is a member that goes on here where another was.
type arrival struct {
	d     *Driver
	host  *daemon
	m     driver.Member
	image environment.Image
	shape shape
}

// arrival finds out what the member's machine is here, and changes nothing.
func (d *Driver) arrival(ctx context.Context, host *daemon, m driver.Member) (*arrival, error) {
	image, err := d.image(m)
	if err != nil {
		return nil, err
	}
	if err := d.checkModel(ctx, m.Assignment.CPUModel); err != nil {
		return nil, err
	}
	s, err := d.shapeOf(ctx, host, m, image)
	return &arrival{d, host, m, image, s}, err
}

// fitting is arrival of a member whose machine had another shape until now, which must fit.
func (d *Driver) fitting(ctx context.Context, host *daemon, m driver.Member, had shape) (*arrival, error) {
	a, err := d.arrival(ctx, host, m)
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
	d.refresh(context.WithoutCancel(ctx), a.m)
	// Only now, so that the guest sees its member agent's connection end before it comes again.
	pid, err := d.pid(id)
	if err != nil || pid == 0 {
		return err
	}
	return d.link(pid, a.m)
}

// link shows the member agent's socket to a QEMU that does not see it yet, whichever libvirtd started it.
func (d *Driver) link(pid int, m driver.Member) error {
	at := viewOf(m.Assignment.ID).control()
	if !isMissing(filepath.Join("/proc", strconv.Itoa(pid), "root", at, "agent.sock")) {
		return nil
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
	if err := d.attach(ctx, a.m, queuesOf(&a.m.Assignment)); err != nil {
		return fmt.Errorf("attaching it to its network: %w", err)
	}
	text, err := newDomain(a.m, a.image, viewOf(id), uuidText(d.domainUUID(id)), d.hardware()).xml()
	if err != nil {
		return err
	}
	if err := d.confine(&a.m.Assignment); err != nil {
		return err
	}
	if err := d.keepHome(a.m); err != nil {
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
	if err := renameDurably(d.path(id, fileComing), d.path(id, fileMember)); err != nil { // which counts without that, too
		d.log.WarnContext(ctx, "a member's record can't be renamed", "member", id, "error", err)
	}
	return nil
}

// fileComing is the record of a member that is about to go on here. It counts once there is a fileOrigin.
const fileComing = "coming.json"

const (
	// refreshPatience is for a guest that goes on to take its files and the time, refreshTry for the first attempt, and twice that for the next: the
	// guest may hear of the new connection before it knows that the last one has ended.
	refreshPatience = 2 * time.Minute
	refreshTry      = 2 * time.Second
	refreshPause    = 300 * time.Millisecond
)

// refresh gives a guest that went on its files, which may be others now, and the time. One that does not take them goes on with what it has: the
// next Update brings its files, or finds that it is dead.
func (d *Driver) refresh(ctx context.Context, m driver.Member) {
	id := m.Assignment.ID
	setup, err := d.setupOf(m)
	ctx, cancel := context.WithTimeout(ctx, refreshPatience)
	defer cancel()
	for patience := refreshTry; err == nil; patience *= 2 {
		select {
		case <-time.After(refreshPause):
		case <-d.lifetime.Done():
		}
		setup.Clock = time.Now()
		tried := d.refreshOnce(ctx, id, setup, patience)
		if tried == nil {
			return
		}
		d.forget(id)
		if ctx.Err() != nil || d.lifetime.Err() != nil {
			err = tried
		}
	}
	d.log.WarnContext(ctx, "a member that goes on has not taken its files and the time", "member", id, "error", err)
}

func (d *Driver) refreshOnce(ctx context.Context, id string, setup guestlink.Setup, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	g := d.guest(id)
	return g.send(ctx, g.next(), setup)
}
