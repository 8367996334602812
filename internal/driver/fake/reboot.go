package fake

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Reboot ends the member's first process and starts another one. A stubborn member uses up its grace.
func (d VM) Reboot(ctx context.Context, m driver.Member, grace time.Duration) error {
	if d.host.stubborn(m.Assignment.ID) {
		if err := sleep(ctx, grace); err != nil {
			return fmt.Errorf("rebooting member %q: %w", m.Assignment.ID, err)
		}
	}
	proceed, err := d.endBoot(m)
	if err != nil {
		return fmt.Errorf("rebooting member %q: %w", m.Assignment.ID, err)
	}
	if !proceed {
		return nil
	}
	return d.Start(ctx, m)
}

// stubborn notes a call of Reboot, and reports whether the member ends only by force.
func (h *Host) stubborn(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Reboot "+id)
	return h.behaviour(id).Stubborn
}

// endBoot ends the present boot of a member. It reports whether another one is to begin.
func (d VM) endBoot(m driver.Member) (proceed bool, err error) {
	h, id := d.host, m.Assignment.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	old := h.members[id]
	switch {
	case old == nil:
		return false, driver.ErrNotFound
	case old.keepsMemory():
		return false, fmt.Errorf("it is %s", old.state)
	case old.alive() && old.config.Boot == m.Boot:
		return false, nil
	}
	old.end(0)
	return true, nil
}
