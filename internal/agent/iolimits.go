package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// limitDeadline bounds a change of a member's limits of I/O.
const limitDeadline = 30 * time.Second

// limits are those that a member's I/O with the volumes of this node is held to.
type limits struct {
	// applied are those that the driver has reported in force. Without known, as after a restart of the agent, it is to be asked.
	known   bool
	applied []driver.IOLimit
	// problem is why the member is not held to those that it should be, and attempts how often setting them failed.
	problem  string
	attempts lifecycle.Attempts
}

// ioLimits are what a member's I/O is to be held to: the limits of volumes on this node that it has, or that are attached and it is about to have. One
// that it is to let go of counts as long as it may have it.
func (a *Agent) ioLimits(m *memberState) []driver.IOLimit {
	var all []driver.IOLimit
	for _, claim := range m.want.Assignment.Volumes {
		limit := a.ioLimitOf(claim)
		has := alive(m.state) && (claim.Detaching || claim.Number <= m.mounts.number)
		if limit == 0 || !has && a.missing(claim, m.want.Assignment.ClusterUID) != "" {
			continue
		}
		all = append(all, driver.IOLimit{Source: a.placeOf(claim, m.want.Assignment.ClusterUID), BytesPerSecond: limit})
	}
	return all
}

// ioLimitOf is what a volume of this node bounds the I/O of its members to, 0 for no limit.
func (a *Agent) ioLimitOf(claim api.VolumeClaim) int64 {
	s := a.volumes.states[claim.UID]
	if claim.Block || claim.Node != a.cfg.Node.Name || a.cfg.Volumes == nil || s == nil || s.want == nil {
		return 0
	}
	return s.want.IOBytesPerSecond
}

// limitsWanted reports whether a member's I/O is to be held to other limits than it is, and the pause after the last failure is over.
func (a *Agent) limitsWanted(m *memberState, now time.Time) bool {
	switch {
	case m.part() || !alive(m.state):
		return false
	case m.limits.known && slices.Equal(a.ioLimits(m), m.limits.applied):
		return false
	case now.Before(m.limits.attempts.NextTry):
		a.wakeAt(m.limits.attempts.NextTry)
		return false
	default:
		return true
	}
}

// changeLimits has the driver hold a member to its limits.
func (a *Agent) changeLimits(ctx context.Context, m *memberState) {
	want := m.want.Member
	want.IOLimits = a.ioLimits(m)
	limiter, ok := m.driver.(driver.IOLimiter)
	if !ok {
		m.limits = limits{known: true, applied: want.IOLimits}
		if len(want.IOLimits) > 0 {
			m.limits.problem = fmt.Sprintf("the limits of I/O of its volumes are not in force: stack %q has none", m.driver.Stack())
		}
		return
	}
	call := a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-limits")
		return limiter.LimitIO(ctx, want)
	})
	a.perform(ctx, m, task{"limits of I/O", ctx, limitDeadline, a.slots, call}, func(err error) {
		switch {
		case err == nil:
			m.limits = limits{known: true, applied: want.IOLimits}
		case errors.Is(err, errNotKnown):
		default:
			m.limits.problem = "the limits of I/O of its volumes are not in force: " + err.Error()
			m.limits.attempts = m.limits.attempts.Fail(err.Error(), a.cfg.Clock.Now())
			a.cfg.Log.WarnContext(ctx, "the I/O of a member can't be limited", "member", m.id, "error", err, "attempt", m.limits.attempts.Count)
			a.look(ctx, m) // it may have ended
			return
		}
		if alive(m.state) {
			a.watch(ctx, m) // an end that was noticed meanwhile is noticed again
		}
	})
}

// unlimited is why a member that runs is not held to its limits, "" where it is.
func (m *memberState) unlimited() string {
	if !alive(m.state) {
		return ""
	}
	return m.limits.problem
}

// unlimited is why a member on this node is not held to the limit of a volume, "" where all are.
func (a *Agent) unlimited(uid string) string {
	for _, m := range a.members {
		if m.want == nil || m.unlimited() == "" {
			continue
		}
		for _, claim := range m.want.Assignment.Volumes {
			if claim.UID == uid && a.ioLimitOf(claim) > 0 {
				return m.limits.problem
			}
		}
	}
	return ""
}
