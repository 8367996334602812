package vm

import (
	"context"
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
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case seen.state == driver.StateAbsent:
		return driver.ErrNotFound
	case seen.state == driver.StateSaved || seen.state == driver.StateHandedOver:
		return fmt.Errorf("the member is %s; a reboot would lose its memory", seen.state)
	case seen.alive() && !seen.hung && seen.member.Boot == m.Boot:
		return nil
	}
	if err := d.shutDown(ctx, host, id, seen, grace); err != nil {
		return err
	}
	failpoint.Hit("vm.after-shutdown")
	return d.begin(ctx, host, m, image, d.showForeign) // its files stay
}
