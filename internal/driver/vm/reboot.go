package vm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// Reboot presses the machine's power button, takes its power once grace has passed, and starts the member anew; it implements
// driver.Rebooter. The machine is another one afterwards, so a reboot also applies what a running machine can't take.
func (d *Driver) Reboot(ctx context.Context, m driver.Member, grace time.Duration) error {
	if err := d.reboot(ctx, m, grace); err != nil {
		return fmt.Errorf("rebooting member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) reboot(ctx context.Context, m driver.Member, grace time.Duration) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	image, err := d.image(m) // before anything is ended: a member whose image is gone runs on
	if err != nil {
		return err
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	seen, err := d.look(ctx, host, id)
	if err != nil {
		return err
	}
	switch {
	case seen.state == driver.StateAbsent:
		return driver.ErrNotFound
	case seen.state == driver.StateSaved || seen.state == driver.StateHandedOver:
		return fmt.Errorf("the member is %s; a reboot would lose its memory", seen.state)
	case seen.alive() && !seen.hung && seen.member.Boot == m.Boot:
		return nil
	}
	if seen.alive() && !seen.hung && grace > 0 {
		if err := d.askToStop(ctx, host, id, seen, grace); err != nil {
			d.log.WarnContext(ctx, "a machine can't be asked to shut down; its power is taken", "member", id, "error", err)
		}
	}
	if err := d.endMachine(ctx, host, id); err != nil {
		return err
	}
	failpoint.Hit("vm.after-shutdown")
	write, launch := d.writeWithControl, d.launch
	if image.Disk != nil {
		write, launch = d.showForeign, d.launchForeign
	}
	if err := write(ctx, host, m, image); err != nil {
		return err
	}
	if err := launch(ctx, host, m, image); err != nil {
		killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		return errors.Join(err, d.endMachine(killCtx, host, id))
	}
	return nil
}
