package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// remountDeadline bounds a change of what a member has mounted: the kernel writes out what was changed in a volume before it is unmounted.
const remountDeadline = 2 * time.Minute

// mounts is what a member has of its volumes and layers.
type mounts struct {
	// number is that of the volumes that it has (api.Assignment.VolumesNumber), layers that of its layers (driver.Member.LayersNumber).
	number, layers int64
	// problem is why it does not have those that it is to have, and attempts how often giving it these failed.
	problem  string
	attempts lifecycle.Attempts
}

// are reports whether they are those that a member is to have.
func (m *mounts) are(want *driver.Member) bool {
	return m.number == want.Assignment.VolumesNumber && m.layers == want.LayersNumber
}

// mountsWanted reports whether a member is to have other volumes or layers than it has, and the pause after the last failure is over.
func (a *Agent) mountsWanted(m *memberState, now time.Time) bool {
	switch {
	case m.part() || m.mounts.are(&m.want.Member):
		return false
	case now.Before(m.mounts.attempts.NextTry):
		a.wakeAt(m.mounts.attempts.NextTry)
		return false
	default:
		return true
	}
}

// changeMounts gives a running member the volumes and layers that it is to have, once they are attached on this node, and takes the others from it. The pool detaches
// those after that: the leader names their attachments until it hears of it.
func (a *Agent) changeMounts(ctx context.Context, m *memberState) {
	want := m.want.Member
	layers, next := m.want.Layers, mounts{number: want.Assignment.VolumesNumber, layers: want.LayersNumber}
	mounter, ok := m.driver.(driver.Mounter)
	if !ok {
		m.mounts.problem = fmt.Sprintf("members of stack %q take no volumes and no layers while they run", m.driver.Stack())
		return
	}
	if m.mounts.problem = a.unattached(m); m.mounts.problem != "" {
		return // a change of the pool wakes the loop
	}
	call := a.ifKnown(m, func(ctx context.Context) error {
		if err := a.mountLayers(layers, &want.Assignment); err != nil {
			return err
		}
		failpoint.Hit("agent.before-remount")
		return mounter.Remount(ctx, want)
	})
	a.perform(ctx, m, task{"volumes", ctx, remountDeadline, a.slots, call}, func(err error) {
		switch {
		case err == nil:
			m.mounts = next
		case errors.Is(err, errNotKnown):
		default:
			m.mounts.problem, m.mounts.attempts = err.Error(), m.mounts.attempts.Fail(err.Error(), a.cfg.Clock.Now())
			a.cfg.Log.WarnContext(ctx, "the volumes or layers of a member can't be changed", "member", m.id, "error", err, "attempt", m.mounts.attempts.Count)
			if !errors.Is(err, driver.ErrMountBusy) {
				a.look(ctx, m) // it may have ended
				return
			}
		}
		if alive(m.state) {
			a.watch(ctx, m) // an end that was noticed meanwhile is noticed again
		}
	})
}

// unattached returns what a member lacks on this node of the volumes and layers that it is to have, "" for nothing.
func (a *Agent) unattached(m *memberState) string {
	for _, claim := range m.want.Assignment.Volumes {
		if claim.Detaching {
			continue
		}
		if why := cmp.Or(a.unsettled(m.want.Assignment.ClusterUID), a.hadByAnother(claim, m), a.missing(claim, m.want.Assignment.ClusterUID)); why != "" {
			return fmt.Sprintf("volume %q %s", claim.Name, why)
		}
	}
	return a.missingLayer(m.want.Layers)
}

// mountsChanged forgets what failed before, where a member is to have other volumes or layers now.
func (m *memberState) mountsChanged(next *driver.Member) {
	if m.want != nil && (m.want.Assignment.VolumesNumber != next.Assignment.VolumesNumber || m.want.LayersNumber != next.LayersNumber) {
		m.mounts.problem, m.mounts.attempts = "", lifecycle.Attempts{}
	}
}
