package fake

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// LimitIO notes the limits of a living member's I/O.
func (d *Driver) LimitIO(_ context.Context, m driver.Member) error {
	id := m.Assignment.ID
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "LimitIO "+id)
	old := h.members[id]
	switch {
	case old == nil:
		return driver.ErrNotFound
	case !old.alive():
		return fmt.Errorf("limiting the I/O of member %q: the member is %s", id, old.state)
	}
	if err := h.behaviour(id).unlimited; err != nil {
		return fmt.Errorf("limiting the I/O of member %q: %w", id, err)
	}
	old.limits = slices.Clone(m.IOLimits)
	return nil
}

// FailLimits scripts that limits of a member's I/O can't be set; nil: they can.
func (h *Host) FailLimits(id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behaviour(id).unlimited = err
}

// IOLimits returns the limits that a member's I/O is held to.
func (h *Host) IOLimits(id string) []driver.IOLimit {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		return slices.Clone(m.limits)
	}
	return nil
}
