package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// conditionDeadline bounds a change of a member's network condition: where many packets are lost after a long delay, it takes long to measure.
const conditionDeadline = 2 * time.Minute

// networkCondition is that of what a member sends.
type networkCondition struct {
	// number is that of the condition which the driver has reported in force (agentstream.Member.ConditionNumber). It is 0, as after a restart of the agent
	// or of the member, while that is not known.
	number int64
	// problem is why it is not the one that it should be, and attempts how often setting that failed.
	problem  string
	attempts lifecycle.Attempts
}

// conditionWanted reports whether a member is to have another condition than it is known to have, and the pause after the last failure is over.
func (a *Agent) conditionWanted(m *memberState, now time.Time) bool {
	switch {
	case m.part() || !alive(m.state) || m.condition.number == m.want.ConditionNumber:
		return false
	case now.Before(m.condition.attempts.NextTry):
		a.wakeAt(m.condition.attempts.NextTry)
		return false
	default:
		return true
	}
}

// changeCondition has the driver give a member its condition.
func (a *Agent) changeCondition(ctx context.Context, m *memberState) {
	want, number := m.want.Member, m.want.ConditionNumber
	conditioner, ok := m.driver.(driver.Conditioner)
	switch {
	case !ok && want.Condition == nil:
		m.condition = networkCondition{number: number}
		return
	case !ok:
		m.condition.problem = fmt.Sprintf("its network has no condition: members on stack %q have none", m.driver.Stack())
		return
	case want.Condition != nil && !a.cfg.Conditions:
		m.condition.problem = fmt.Sprintf("node %q forwards no packets for network conditions; its operator can allow it: start its agent with --conditions", a.cfg.Node.Name)
		return
	}
	call := a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-condition")
		return conditioner.SetCondition(ctx, want)
	})
	a.perform(ctx, m, task{"network condition", ctx, conditionDeadline, a.slots, call}, func(err error) {
		switch {
		case err == nil:
			m.condition = networkCondition{number: number}
		case errors.Is(err, errNotKnown):
		default:
			m.condition.number, m.condition.problem = 0, "the condition of its network is not in force: "+err.Error()
			m.condition.attempts = m.condition.attempts.Fail(err.Error(), a.cfg.Clock.Now())
			a.cfg.Log.WarnContext(ctx, "a member's network condition can't be set", "member", m.id, "error", err, "attempt", m.condition.attempts.Count)
			a.look(ctx, m) // it may have ended
			return
		}
		if alive(m.state) {
			a.watch(ctx, m) // an end that was noticed meanwhile is noticed again
		}
	})
}

// unconditioned is why a member that runs does not have the condition of its cluster, "" where it has.
func (m *memberState) unconditioned() string {
	if !alive(m.state) || m.want == nil || m.condition.number == m.want.ConditionNumber {
		return ""
	}
	return m.condition.problem
}
