package container

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// LimitIO holds a running member to its limits of I/O, by its control group and the block devices of its volumes. A device has another number whenever
// a volume is attached anew, so the limits are found by the directories.
func (d *Driver) LimitIO(_ context.Context, m driver.Member) error {
	id := m.Assignment.ID
	h, err := d.host()
	if err != nil {
		return err
	}
	if _, err := d.recall(id); err != nil {
		return err
	}
	if seen := d.look(h, id); !seen.alive() {
		return fmt.Errorf("limiting the I/O of member %q: the member is %s", id, seen.state)
	}
	return h.limitIO(m)
}

func (h *host) limitIO(m driver.Member) error {
	limits := make([]cgroup.IOLimit, 0, len(m.IOLimits))
	for _, l := range m.IOLimits {
		limits = append(limits, cgroup.IOLimit{Dir: l.Source, BytesPerSecond: l.BytesPerSecond})
	}
	if err := h.cgroups.LimitIO(m.Assignment.ID, limits); err != nil {
		return fmt.Errorf("limiting the I/O of member %q: %w", m.Assignment.ID, err)
	}
	return nil
}
