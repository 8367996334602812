package agent

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// The state of a member in a snapshot is a saved member with an ID of its own, which the leader names in an assignment of its own.

// snapshotterOf returns the ability of a driver to keep states.
func snapshotterOf(d driver.Driver) (driver.Snapshotter, error) {
	s, ok := d.(driver.Snapshotter)
	if !ok {
		return nil, fmt.Errorf("members of stack %q can't have snapshots", d.Stack())
	}
	return s, nil
}

// unable counts a failure of a member whose operation can't even begin.
func (a *Agent) unable(m *memberState, why string) {
	m.attempts = m.attempts.Fail(why, a.cfg.Clock.Now())
	a.wakeAt(m.attempts.NextTry)
}

// takeSnapshot writes the state of a paused member. That member is left alone meanwhile: it must not go on before all of it is written.
func (a *Agent) takeSnapshot(ctx context.Context, m *memberState) {
	if m.driver == nil {
		a.unable(m, "this node's agent has no driver for stack "+string(m.want.Assignment.Stack))
		return
	}
	snapshotter, err := snapshotterOf(m.driver)
	id, claim := m.id, m.want.Assignment.Snapshot
	if claim == nil {
		a.unable(m, "its assignment names no member")
		return
	}
	of := a.members[claim.Of]
	switch {
	case err != nil:
		a.unable(m, err.Error())
		return
	case of == nil:
		a.unable(m, "the member is not on this node")
		return
	case of.busy:
		return // the end of that is followed by another look
	case of.state != driver.StatePaused:
		a.unable(m, fmt.Sprintf("the member is %s, not paused", of.state))
		return
	}
	of.busy = true
	life := m.revocably(ctx, func(w *agentstream.Member) bool { return w != nil && !w.Release })
	call := a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-snapshot")
		return snapshotter.Snapshot(ctx, id, of.id)
	})
	a.perform(ctx, m, task{"snapshot", life, saveDeadline, a.slots, call}, func(err error) {
		a.counting(ctx, m, func(*memberState) {})(err)
		if err == nil {
			a.look(ctx, m)
		}
		of.busy = false
		a.look(ctx, of)
	})
}

// verifySnapshot verifies a state, once for each request.
func (a *Agent) verifySnapshot(ctx context.Context, m *memberState) {
	snapshotter, err := snapshotterOf(m.driver)
	if err != nil {
		m.verified, m.unverified = m.want.Verify, err.Error()
		return
	}
	if !a.imageReady(m) {
		return
	}
	id, request := m.id, m.want.Verify
	a.perform(ctx, m, task{"verify", ctx, saveDeadline, a.slots, func(ctx context.Context) error {
		failpoint.Hit("agent.before-verify")
		return snapshotter.Verify(ctx, id)
	}}, func(err error) {
		m.verified, m.unverified = request, ""
		if err != nil {
			m.unverified = err.Error()
			a.cfg.Log.WarnContext(ctx, "the state of a snapshot does not pass its verification", "member", id, "error", err)
		}
	})
}

// layDown makes a saved member of its state in a snapshot.
func (a *Agent) layDown(ctx context.Context, m *memberState) {
	id, from := m.id, m.want.Assignment.Resumes
	snapshotter, err := snapshotterOf(m.driver)
	if err != nil {
		a.unable(m, err.Error())
		return
	}
	m.cleaned = false
	a.run(ctx, m, "lay down", saveDeadline, a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-laying-down")
		return snapshotter.LayDown(ctx, id, from)
	}), func(m *memberState) { m.state = driver.StateSaved })
}
