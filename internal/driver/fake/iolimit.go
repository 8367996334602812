package fake

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// limited is what a member's I/O is held to, and why it can be held to nothing else.
type limited struct {
	limits []driver.IOLimit
	why    error
}

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
	if old.why != nil {
		return fmt.Errorf("limiting the I/O of member %q: %w", id, old.why)
	}
	old.limits = slices.Clone(m.IOLimits)
	return nil
}

// FailLimits scripts that limits of a running member's I/O can't be set; nil: they can.
func (h *Host) FailLimits(id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members[id].why = err
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
