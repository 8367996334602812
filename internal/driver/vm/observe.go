package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// sight is what is seen of one member on the host.
type sight struct {
	state driver.State
	pid   int
	// member is what it was started with, nil where that is not on the host.
	member *driver.Member
	// hung: its watchdog has fired.
	hung bool
	// stateBytes is the size of the state of a saved one. holds: it still holds functions.
	stateBytes int64
	holds      bool
}

func (s sight) alive() bool { return s.state == driver.StateRunning || s.state == driver.StatePaused }

// look finds out what there is of a member.
func (d *Driver) look(ctx context.Context, host *daemon, id string) (sight, error) {
	if !validName(id) {
		return sight{state: driver.StateAbsent}, nil
	}
	pid, err := d.pid(id)
	if err != nil {
		return sight{}, err
	}
	state, reason, active, err := domainState(ctx, host, id)
	if err != nil {
		return sight{}, err
	}
	r, err := d.recall(id)
	known := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.WarnContext(ctx, "a member's record can't be read; it counts as debris", "member", id, "error", err)
	}
	if s, err := d.recallSaved(id); err == nil {
		return sight{state: driver.StateSaved, member: &s.Member, stateBytes: s.Bytes, holds: d.holds(id)}, nil
	}
	switch {
	case known && !isMissing(d.path(id, fileHanded)):
		return handedOver(active && pid != 0, &r.Member), nil
	case known && active && pid != 0 && hasFired(state, reason): // nobody has paused it, and nobody can resume it
		return sight{state: driver.StateRunning, pid: pid, member: &r.Member, hung: true}, nil
	case known && active && pid != 0 && state == libvirt.DomainPaused:
		return sight{state: driver.StatePaused, pid: pid, member: &r.Member}, nil
	case known && active && pid != 0 && state != libvirt.DomainShutoff && state != libvirt.DomainCrashed:
		return sight{state: driver.StateRunning, pid: pid, member: &r.Member}, nil
	case known:
		return sight{state: driver.StateExited, member: &r.Member}, nil
	case active || pid != 0 || !isMissing(d.dir(id)):
		return sight{state: driver.StatePrepared}, nil
	}
	return sight{state: driver.StateAbsent}, nil
}

// handedOver is a member that was sent to another host: once its machine here has ended, nothing but debris is left of it.
func handedOver(alive bool, m *driver.Member) sight {
	if !alive {
		return sight{state: driver.StatePrepared}
	}
	return sight{state: driver.StateHandedOver, member: m}
}

// domainState asks libvirt of a machine.
func domainState(ctx context.Context, host *daemon, id string) (state libvirt.DomainState, reason int32, active bool, err error) {
	var number int32
	err = host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) (err error) {
		number, reason, err = rpc.DomainGetState(domain, 0)
		return err
	})
	if libvirt.IsNotFound(err) {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("libvirt can't tell about machine %s: %w", id, err)
	}
	return libvirt.DomainState(number), reason, true, nil
}

// Observe lists the members that have a directory here. Clean removes that last, so there is no machine without one; while there is none, nobody
// asks libvirt, which does not run then.
func (d *Driver) Observe(ctx context.Context) ([]driver.Observation, error) {
	ids, err := d.members()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var all []driver.Observation
	for _, id := range ids {
		seen, err := d.look(ctx, host, id)
		if err != nil {
			return nil, err
		}
		d.readConsole(id, seen)
		if seen.alive() && !d.isForeign(id) {
			if err := d.findHome(*seen.member); err != nil {
				d.log.WarnContext(ctx, "the home of a member is not served", "member", id, "error", err)
			}
		}
		if seen.state != driver.StateAbsent {
			all = append(all, d.observation(id, seen))
		}
	}
	return all, nil
}

func (d *Driver) members() ([]string, error) {
	entries, err := os.ReadDir(d.machines)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if validName(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func (d *Driver) observation(id string, s sight) driver.Observation {
	o := driver.Observation{ID: id, State: s.state, PID: s.pid, Member: s.member, StateBytes: s.stateBytes, Holds: s.holds}
	switch s.state {
	case driver.StatePrepared:
		o.Message = "the virtual machine was not started completely"
	case driver.StateExited:
		o.Message = "the virtual machine is off"
		if s.member != nil {
			o.Message += d.memoryText(id, &s.member.Assignment)
		}
	case driver.StateSaved:
		o.Message = "the virtual machine is saved with its memory"
	case driver.StateHandedOver:
		o.Message = "the virtual machine was sent to another host; whether it runs there is unknown here"
	}
	return o
}

// Wait returns when the member's machine is off.
func (d *Driver) Wait(ctx context.Context, id string) (driver.Observation, error) {
	seen, err := d.lookAt(ctx, id)
	if err != nil {
		return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, err)
	}
	if seen.state == driver.StateAbsent {
		return driver.Observation{}, driver.ErrNotFound
	}
	if seen.alive() {
		if err := waitProcess(ctx, seen.pid); err != nil {
			return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, err)
		}
		seen = sight{state: driver.StateExited, member: seen.member}
	}
	if ctx.Err() != nil {
		return driver.Observation{}, ctx.Err()
	}
	return d.observation(id, seen), nil
}

// lookAt looks at one member. libvirt is not asked for one that has no directory.
func (d *Driver) lookAt(ctx context.Context, id string) (sight, error) {
	if !d.has(id) {
		return sight{state: driver.StateAbsent}, nil
	}
	_, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return sight{}, err
	}
	done()
	return seen, nil
}

// meet looks at one member before something is done about it. It returns libvirtd besides, and done, which the caller calls when it no longer needs
// libvirtd.
func (d *Driver) meet(ctx context.Context, id string) (host *daemon, seen sight, done func(), err error) {
	host, done, err = d.use(ctx)
	if err != nil {
		return nil, seen, nil, err
	}
	if seen, err = d.look(ctx, host, id); err != nil {
		done()
		return nil, seen, nil, err
	}
	return host, seen, done, nil
}

// has reports whether a member has a directory here. libvirtd is not started for one that has none.
func (d *Driver) has(id string) bool { return validName(id) && !isMissing(d.dir(id)) }
