package agent

import (
	"context"
	"errors"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// awaitReady waits, for a member that has no agent in it, until its driver has seen it answer. It ends with the member, whose state is looked at by
// watch.
func (a *Agent) awaitReady(ctx context.Context, m *memberState) {
	prober, ok := m.driver.(driver.Prober)
	if !ok || m.ready || m.probed {
		return
	}
	m.probed = true
	id, instance := m.id, m.instance
	go func() {
		err := prober.AwaitReady(ctx, id)
		if ctx.Err() != nil || errors.Is(err, driver.ErrSpeaks) {
			return
		}
		a.post(ctx, func() {
			m := a.members[id]
			if m == nil || m.instance != instance || !alive(m.state) {
				return
			}
			// It was never ready, but it is over with waiting: a member that can't be used is replaced.
			m.ready, m.problem = true, ""
			if err != nil {
				m.unhealthy = err.Error()
				a.cfg.Log.WarnContext(ctx, "a member is not ready", "member", id, "error", err)
			}
		})
	}()
}
