package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Remount changes the mounts of a living member.
func (d *Driver) Remount(_ context.Context, m driver.Member) error {
	if err := d.host.remount(m); errors.Is(err, driver.ErrMountBusy) {
		return err
	} else if err != nil {
		return fmt.Errorf("changing the volumes of member %q: %w", m.Assignment.ID, err)
	}
	return nil
}

// HoldOpen scripts that a member has files open at a path, or no more.
func (h *Host) HoldOpen(id, path string, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b := h.behaviour(id)
	b.open = slices.DeleteFunc(b.open, func(o string) bool { return o == path })
	if open {
		b.open = append(b.open, path)
	}
}

func (h *Host) remount(m driver.Member) error {
	id := m.Assignment.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, "Remount "+id)
	old := h.members[id]
	switch {
	case old == nil:
		return driver.ErrNotFound
	case !old.alive():
		return fmt.Errorf("the member is %s", old.state)
	}
	mounts := slices.Clone(m.Mounts)
	var busy error
	for _, has := range old.config.Mounts {
		if slices.Contains(mounts, has) || !slices.Contains(h.behaviour(id).open, has.Path) {
			continue
		}
		mounts = append(mounts, has)
		busy = fmt.Errorf("%w: files of %s are still open in member %s", driver.ErrMountBusy, has.Path, m.Assignment.Member)
	}
	old.config.Mounts = mounts
	if busy != nil {
		return busy
	}
	old.config.Assignment.Volumes, old.config.Assignment.VolumesNumber = m.Assignment.Volumes, m.Assignment.VolumesNumber
	old.config.LayersNumber = m.LayersNumber
	return nil
}
