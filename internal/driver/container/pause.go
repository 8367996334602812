package container

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// Pause freezes the member's control group: the kernel gives none of its processes any time, until Resume.
func (d *Driver) Pause(ctx context.Context, id string) error {
	if err := d.freeze(ctx, id, true); err != nil {
		return fmt.Errorf("pausing member %q: %w", id, err)
	}
	return nil
}

// Resume thaws the member's control group.
func (d *Driver) Resume(ctx context.Context, id string) error {
	if err := d.freeze(ctx, id, false); err != nil {
		return fmt.Errorf("resuming member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) freeze(ctx context.Context, id string, frozen bool) error {
	if !validName(id) {
		return driver.ErrNotFound
	}
	h, err := d.host()
	if err != nil {
		return err
	}
	switch seen := d.look(h, id); {
	case seen.state == driver.StateAbsent:
		return driver.ErrNotFound
	case !seen.alive():
		return fmt.Errorf("the member is %s", seen.state)
	}
	if frozen {
		err = h.cgroups.Freeze(ctx, id)
	} else {
		err = h.cgroups.Thaw(ctx, id)
	}
	failpoint.Hit("container.after-freeze")
	return err
}
