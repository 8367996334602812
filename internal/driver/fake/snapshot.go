package fake

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Snapshot keeps the progress of a paused member as a saved member of its own.
func (d VM) Snapshot(ctx context.Context, id, of string) error {
	if err := d.snapshot(ctx, id, of); err != nil {
		return fmt.Errorf("writing the state of member %q: %w", of, err)
	}
	return nil
}

func (d VM) snapshot(ctx context.Context, id, of string) error {
	delay, err := d.host.called("Snapshot", of, func(b *Behaviour) *int { return &b.FailSnapshots })
	if err == nil {
		err = sleep(ctx, delay)
	}
	if err != nil {
		return err
	}
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	switch m := d.host.members[of]; {
	case m == nil:
		return driver.ErrNotFound
	case d.host.saved(id):
		return nil
	case m.state != driver.StatePaused:
		return fmt.Errorf("it is %s, not paused", m.state)
	default:
		d.host.keep(id, m)
		return nil
	}
}

// saved reports whether a member is saved. The caller holds mu.
func (h *Host) saved(id string) bool {
	m := h.members[id]
	return m != nil && m.state == driver.StateSaved
}

// keep makes a saved member with the progress of another. The caller holds mu.
func (h *Host) keep(id string, of *member) {
	config := of.config
	config.Assignment.ID = id
	h.members[id] = &member{config: config, state: driver.StateSaved, message: "saved with its memory", progress: of.progress}
}

// Verify reports whether a saved member is there, as its script says.
func (d VM) Verify(_ context.Context, id string) error {
	_, err := d.host.called("Verify", id, func(b *Behaviour) *int { return &b.FailVerifications })
	if err == nil {
		d.host.mu.Lock()
		defer d.host.mu.Unlock()
		if !d.host.saved(id) {
			err = driver.ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("verifying the state of member %q: %w", id, err)
	}
	return nil
}

// LayDown makes a saved member of another.
func (d VM) LayDown(_ context.Context, id, from string) error {
	_, err := d.host.called("LayDown", id, func(b *Behaviour) *int { return &b.FailLayDowns })
	if err == nil {
		d.host.mu.Lock()
		defer d.host.mu.Unlock()
		if !d.host.saved(from) {
			err = driver.ErrNotFound
		} else if !d.host.saved(id) {
			d.host.keep(id, d.host.members[from])
		}
	}
	if err != nil {
		return fmt.Errorf("making member %q of the state of %q: %w", id, from, err)
	}
	return nil
}
