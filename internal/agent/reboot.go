package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// rebootGrace is how long the system of a member is asked to shut down before it is reset.
const rebootGrace = 30 * time.Second

// reboot boots a member again where it is. Its jobs end with the boot in which they ran. The end of that boot is expected, so the watch on
// it no longer counts. A hard reboot that is requested meanwhile ends the wait for an orderly shutdown, which is no failure.
func (a *Agent) reboot(ctx context.Context, m *memberState, grace time.Duration) {
	rebooter, ok := m.driver.(driver.Rebooter)
	if !ok {
		m.attempts = m.attempts.Fail(fmt.Sprintf("members of stack %q can't reboot", m.driver.Stack()), a.cfg.Clock.Now())
		a.wakeAt(m.attempts.NextTry)
		return
	}
	if m.control == nil {
		if err := a.listen(ctx, m); err != nil {
			m.attempts = m.attempts.Fail(err.Error(), a.cfg.Clock.Now())
			a.wakeAt(m.attempts.NextTry)
			return
		}
	}
	deadline := startDeadline
	if slow, ok := m.driver.(driver.SlowStarter); ok {
		deadline = slow.StartTime()
	}
	want, digest := m.want.Member, m.wanted
	m.instance++
	m.watched, m.probed, m.ready, m.recovered, m.startedAt = false, false, false, time.Time{}, time.Now()
	m.unhealthy, m.cut, m.hung, m.exit, m.digest = "", "", "", "", ""
	m.loseJobs(a.cfg.Clock.Now())
	do := task{what: "reboot", life: ctx, deadline: grace + deadline, slots: a.slots}
	if grace > 0 {
		do.life = m.revocably(ctx, func(w *agentstream.Member) bool { return w == nil || !w.HardReboot || w.Boot == want.Boot })
	}
	do.call = a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-reboot")
		return a.changeFiles(m.id, digest, func() error { return rebooter.Reboot(ctx, want, grace) })
	})
	counted := a.counting(ctx, m, func(m *memberState) {
		m.state, m.digest, m.neverRan, m.boot = driver.StateRunning, digest, false, want.Boot
		m.size, m.condition = want.Assignment.SizeNumber, networkCondition{}
	})
	a.perform(ctx, m, do, func(err error) {
		if err != nil && m.want != nil && m.want.Boot != want.Boot {
			a.look(ctx, m)
			return
		}
		counted(err)
	})
}
