package vm

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// LimitIO holds a machine to its limits of I/O: the server of its home is in the machine's control groups (serveHome).
func (d *Driver) LimitIO(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if _, err := d.running(ctx, id); err != nil {
		return fmt.Errorf("limiting the I/O of member %q: %w", id, err)
	}
	groups, err := d.groups()
	if err != nil {
		return err
	}
	limits := make([]cgroup.IOLimit, 0, len(m.IOLimits))
	for _, l := range m.IOLimits {
		limits = append(limits, cgroup.IOLimit{Dir: l.Source, BytesPerSecond: l.BytesPerSecond})
	}
	if err := groups.LimitIO(id, limits); err != nil {
		return fmt.Errorf("limiting the I/O of member %q: %w", id, err)
	}
	return nil
}
