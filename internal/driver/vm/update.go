package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// Update gives a running guest its files anew. A paused one gets them when it goes on.
func (d *Driver) Update(ctx context.Context, m driver.Member) error {
	if err := d.update(ctx, m); err != nil {
		return fmt.Errorf("updating member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) update(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	seen, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	r, err := d.recall(id)
	if err != nil || r.Foreign != nil {
		return err // nobody in it takes files: it has those of its start
	}
	m.Boot = r.Member.Boot // new files are no new boot, no other volumes, nor another size
	m.Mounts, m.Assignment.Volumes, m.Assignment.VolumesNumber = r.Member.Mounts, r.Member.Assignment.Volumes, r.Member.Assignment.VolumesNumber
	m.LayersNumber = r.Member.LayersNumber
	keepsFrontEnds(&m, r.Member)
	m.Assignment = m.Assignment.Sized(r.Member.Assignment.Held())
	r.Member = m
	setup, err := d.setupOf(m)
	if err != nil {
		return err
	}
	g := d.guest(id)
	number := g.next()
	if seen.state == driver.StatePaused {
		go func() {
			if err := g.send(g.life, number, setup); err != nil && g.life.Err() == nil {
				d.log.Warn("a member that was paused has not taken its files", "member", id, "error", err)
			}
		}()
		return d.writeRecord(id, r)
	}
	if err := g.send(ctx, number, setup); err != nil {
		return err
	}
	if err := d.welcome(ctx, id, g, setup); err != nil {
		return err
	}
	if err := d.link(ctx, seen.pid, m); err != nil {
		return err
	}
	return d.writeRecord(id, r)
}

// welcome sets the clock of a guest that has arrived here, and its volumes. The guest is reached already, so that the time is not old when it comes.
func (d *Driver) welcome(ctx context.Context, id string, g *guest, setup guestlink.Setup) error {
	d.mu.Lock()
	arrived := d.arrived[id]
	delete(d.arrived, id)
	d.mu.Unlock()
	if !arrived {
		return nil
	}
	setup.Clock = time.Now()
	if err := g.send(ctx, g.next(), setup); err != nil {
		return err
	}
	// Its volumes may have changed while it was on its way. What it has beyond them is served no more.
	err := g.client.Volumes(ctx, guestlink.Volumes{All: setup.Volumes, Gone: true})
	if errors.Is(err, guestlink.ErrOld) && len(setup.Volumes) == 0 {
		return nil // it never had any
	}
	return err
}

// running looks at a member that must be alive.
func (d *Driver) running(ctx context.Context, id string) (sight, error) {
	seen, err := d.lookAt(ctx, id)
	switch {
	case err != nil:
		return seen, err
	case seen.state == driver.StateAbsent:
		return seen, driver.ErrNotFound
	case !seen.alive():
		return seen, fmt.Errorf("%w: it is %s", errNotRunning, seen.state)
	}
	return seen, nil
}

// Pause stops the machine's processors.
func (d *Driver) Pause(ctx context.Context, id string) error {
	if err := d.freeze(ctx, id, true); err != nil {
		return fmt.Errorf("pausing member %q: %w", id, err)
	}
	return nil
}

// Resume lets the machine's processors go on.
func (d *Driver) Resume(ctx context.Context, id string) error {
	if err := d.freeze(ctx, id, false); err != nil {
		return fmt.Errorf("resuming member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) freeze(ctx context.Context, id string, frozen bool) error {
	seen, err := d.running(ctx, id)
	if err != nil {
		return err
	}
	if seen.hung {
		return errHung
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	want := driver.StateRunning
	if frozen {
		want = driver.StatePaused
	}
	err = host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error {
		if frozen {
			return rpc.DomainSuspend(domain)
		}
		return rpc.DomainResume(domain)
	})
	if err != nil && !invalidOperation(err) {
		return err
	}
	seen, err = d.look(ctx, host, id)
	if err == nil && seen.state != want {
		err = fmt.Errorf("read back, it is %s", seen.state)
	}
	return err
}

// Dial connects to a TCP port of the member through its boot agent, past all networks. A service that listens on its loopback only is reached, too.
func (d *Driver) Dial(ctx context.Context, id string, port int) (net.Conn, error) {
	conn, err := d.dial(ctx, id, port)
	if err != nil {
		return nil, fmt.Errorf("connecting to port %d of member %q: %w", port, id, err)
	}
	return conn, nil
}

func (d *Driver) dial(ctx context.Context, id string, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("a port is a number from 1 to 65535, not %d", port)
	}
	seen, err := d.running(ctx, id)
	if err != nil {
		return nil, err
	}
	if seen.state == driver.StatePaused {
		return nil, fmt.Errorf("the member is paused; resume its cluster first")
	}
	r, err := d.recall(id)
	if err != nil {
		return nil, err
	}
	if r.Foreign != nil {
		return d.dialForeign(ctx, id, r.Member, port)
	}
	return d.guest(id).client.Dial(ctx, port)
}

// Mend makes ports anew whose device is there and off its bridge, and plugs in functions that the machine lacks. A port whose device is gone can't be
// made: QEMU has the one that was removed.
func (d *Driver) Mend(ctx context.Context, id string) error {
	if err := d.mend(ctx, id); err != nil {
		return fmt.Errorf("repairing the port of member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) mend(ctx context.Context, id string) error {
	if !d.has(id) {
		return driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case seen.state == driver.StateAbsent:
		return driver.ErrNotFound
	case seen.state != driver.StateRunning:
		return fmt.Errorf("%w: it is %s", errNotRunning, seen.state)
	}
	r, err := d.recall(id)
	if err != nil {
		return err
	}
	queues := r.chassis().queues(&r.Member.Assignment)
	if r.Foreign != nil {
		queues = foreignQueues(&r.Member.Assignment, *r.Foreign)
	}
	if err := d.attach(ctx, *seen.member, queues); err != nil {
		return err
	}
	if r.Foreign == nil {
		if err := d.plugAgain(ctx, host, *seen.member); err != nil {
			return err
		}
	}
	return d.usesPorts(*seen.member)
}
