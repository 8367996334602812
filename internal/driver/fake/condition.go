package fake

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// conditioned is what happens to what a member sends, and why it can't be changed.
type conditioned struct {
	is  *api.NetworkCondition
	why error
}

// SetCondition notes the condition of a living member.
func (d *Driver) SetCondition(_ context.Context, m driver.Member) error {
	id := m.Assignment.ID
	h := d.host
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "SetCondition "+id)
	old := h.members[id]
	switch {
	case old == nil:
		return driver.ErrNotFound
	case !old.alive():
		return fmt.Errorf("the network condition of member %q: the member is %s", id, old.state)
	}
	if why := old.condition.why; why != nil {
		old.condition.is = nil
		return fmt.Errorf("the network condition of member %q: %w", id, why)
	}
	old.condition.is = nil
	if m.Condition != nil {
		is := *m.Condition
		old.condition.is = &is
	}
	return nil
}

// FailConditions scripts that the condition of a running member can't be set; nil: it can.
func (h *Host) FailConditions(id string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members[id].condition.why = err
}

// Condition returns what happens to what a member sends; nil: nothing.
func (h *Host) Condition(id string) *api.NetworkCondition {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil && m.alive() {
		return m.condition.is
	}
	return nil
}

// EndConditions is the end of the process that made the conditions of members.
func (h *Host) EndConditions() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.members {
		m.condition.is = nil
	}
}
