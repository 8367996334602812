package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// Stop presses the machine's power button (ACPI), which the boot agent in it obeys, and takes its power once grace has passed.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	if err := d.stop(ctx, id, grace); err != nil {
		return fmt.Errorf("stopping member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) stop(ctx context.Context, id string, grace time.Duration) error {
	if !d.has(id) {
		return nil
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	if grace > 0 {
		grace = max(grace, d.shutdownTime(id))
	}
	return d.shutDown(ctx, host, id, seen, grace)
}

// shutdownTime is how long an orderly shutdown may take. In this product's environments the boot agent gives programs 5 s, kills the rest, and
// writes the home's data back. Other systems stop their services first. A machine that goes off earlier is not waited for.
func (d *Driver) shutdownTime(id string) time.Duration {
	if d.isForeign(id) {
		return 30 * time.Second
	}
	return 10 * time.Second
}

// shutDown ends a machine, which is asked first if it can hear and grace is not 0.
func (d *Driver) shutDown(ctx context.Context, host *daemon, id string, seen sight, grace time.Duration) error {
	if seen.alive() && !seen.hung && grace > 0 {
		if err := d.askToStop(ctx, host, id, seen, grace); err != nil {
			d.log.WarnContext(ctx, "a machine can't be asked to shut down; its power is taken", "member", id, "error", err)
		}
	}
	return d.endMachine(ctx, host, id)
}

// askToStop presses the power button and waits for what comes of it.
func (d *Driver) askToStop(ctx context.Context, host *daemon, id string, seen sight, grace time.Duration) error {
	err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error {
		if seen.state == driver.StatePaused {
			if err := rpc.DomainResume(domain); err != nil {
				return err
			}
		}
		return rpc.DomainShutdownFlags(domain, libvirt.DomainShutdownAcpiPowerBtn)
	})
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := waitProcess(patience, seen.pid); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

// endMachine takes a machine's power, whatever it is in, and returns once none of its processes is left. What libvirt lost is ended without it.
func (d *Driver) endMachine(ctx context.Context, host *daemon, id string) error {
	d.forget(id)
	defer d.closeConsole(id)
	err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainDestroy(domain) })
	if err != nil && !libvirt.IsNotFound(err) && !invalidOperation(err) {
		d.log.WarnContext(ctx, "libvirt can't end a machine; its process is killed", "member", id, "error", err)
	}
	for _, pid := range d.processes(id) {
		if err := pidfd.Kill(ctx, pid, func() bool { return d.isMachine(pid, id) }); err != nil {
			return fmt.Errorf("ending process %d of its machine: %w", pid, err)
		}
	}
	if err := d.endHome(ctx, id); err != nil {
		return err
	}
	return gone(ctx, host, id)
}

// killTimeout bounds ending a machine by force.
const killTimeout = 30 * time.Second

// kill is endMachine also after the end of the caller's time.
func (d *Driver) kill(ctx context.Context, host *daemon, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	return d.endMachine(ctx, host, id)
}

// gone returns once libvirt knows nothing of a machine any more, as it does a moment after its process has ended.
func gone(ctx context.Context, host *daemon, id string) error {
	for {
		_, _, active, err := domainState(ctx, host, id)
		if err != nil || !active {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("libvirt still has the machine: %w", ctx.Err())
		}
	}
}

// invalidOperation is libvirt's answer when a machine is in the asked state already.
func invalidOperation(err error) bool {
	var problem libvirt.Error
	return errors.As(err, &problem) && problem.Code == uint32(libvirt.ErrOperationInvalid)
}

// Clean removes all the member left on the host, and verifies it by looking.
func (d *Driver) Clean(ctx context.Context, id string) error {
	if err := d.clean(ctx, id); err != nil {
		return fmt.Errorf("cleaning member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) clean(ctx context.Context, id string) error {
	if !validName(id) {
		return nil
	}
	defer d.rest()
	if !isMissing(d.dir(id)) {
		host, done, err := d.use(ctx)
		if err != nil {
			return err
		}
		defer done()
		if err := d.endMachine(ctx, host, id); err != nil {
			return err
		}
		failpoint.Hit("vm.after-end")
		if err := host.do(func() error { return hide(viewOf(id)) }); err != nil {
			return err
		}
		if err := os.RemoveAll(d.logFile(id)); err != nil {
			return err
		}
	}
	if err := d.giveGPUs(ctx, id); err != nil {
		return err
	}
	if err := d.cfg.Attacher.Detach(ctx, id); err != nil {
		return fmt.Errorf("detaching it from its network: %w", err)
	}
	failpoint.Hit("vm.after-detach")
	d.closeConsole(id) // that of somebody who attached a moment ago
	if err := d.unconfine(ctx, id); err != nil {
		return err
	}
	if left := d.processes(id); len(left) > 0 {
		return fmt.Errorf("processes %v of its machine are left", left)
	}
	return os.RemoveAll(d.dir(id))
}
