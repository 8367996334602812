package fake

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Resize grows the disk of a living member. Other cores or another memory need a reboot.
func (d VM) Resize(_ context.Context, m driver.Member) error {
	if err := d.host.resize(m); err != nil {
		return fmt.Errorf("resizing member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

func (h *Host) resize(m driver.Member) error {
	id := m.Assignment.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Resize "+id)
	old := h.members[id]
	switch {
	case old == nil:
		return driver.ErrNotFound
	case !old.alive():
		return fmt.Errorf("the member is %s", old.state)
	}
	has, wants := old.config.Assignment.Held(), m.Assignment.Held()
	has.DiskBytes = max(has.DiskBytes, wants.DiskBytes)
	fits := has.Same(wants)
	if fits {
		has.Number = wants.Number
	}
	old.config.Assignment = old.config.Assignment.Sized(has)
	if !fits {
		return driver.ErrNeedsReboot
	}
	return nil
}
