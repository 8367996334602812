package agent

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

func noSaver(d driver.Driver) error {
	return fmt.Errorf("members of stack %q can't be saved with their memory", d.Stack())
}

// save lays a member down on disk with its memory. What its jobs do stands still with it.
func (a *Agent) save(ctx context.Context, m *memberState) {
	a.run(ctx, m, "save", saveDeadline, a.ifKnown(m, func(ctx context.Context) error {
		saver, ok := m.driver.(driver.Saver)
		if !ok {
			return noSaver(m.driver)
		}
		return saver.Save(ctx, m.id)
	}), func(m *memberState) { m.state, m.ready, m.holds = driver.StateSaved, false, false })
}
