package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// What serves a block volume has one client at a time, the latest, and machines connect again as soon as they lose it. So two machines that run would
// take the volume from each other in turns, and each would write what it has in memory. A machine begins only once no other on this node has the
// volume, and other nodes have it only while none here is about to go with it.

// hadByAnother is what a member waits for whose block volume another machine on this node still has, "" where there is none.
func (a *Agent) hadByAnother(claim api.VolumeClaim, m *memberState) string {
	if !claim.Block {
		return ""
	}
	for _, other := range a.members {
		if other != m && other.id != m.want.Assignment.From && other.hasDisk(claim.UID) {
			return fmt.Sprintf("is the disk of another machine, %s, until that has ended", other.id)
		}
	}
	return ""
}

// keptByLeaving reports whether a machine that is to go, of whatever cluster, still has a block volume.
func (a *Agent) keptByLeaving(uid string) bool {
	for _, m := range a.members {
		if (m.want == nil || m.want.Release) && m.hasDisk(uid) {
			return true
		}
	}
	return false
}

// hasDisk reports whether a machine has a block volume, or may come to have it.
func (m *memberState) hasDisk(uid string) bool {
	return m.assigned != nil && (alive(m.state) || m.busy) && slices.ContainsFunc(m.assigned.Volumes, func(c api.VolumeClaim) bool { return c.UID == uid && c.Block })
}

// lookAtDisks finds out whether the processes that serve and carry block volumes still run. Their machines wait while they don't, so the regular look at
// volumes would be late.
func (a *Agent) lookAtDisks(ctx context.Context) {
	for _, s := range a.volumes.states {
		if s.applied != nil && s.applied.Block && len(s.applied.Attachments) > 0 {
			a.lookAtVolumes(ctx, a.cfg.Clock.Now())
			break
		}
	}
	for _, s := range a.sharings.states {
		if s.applied != nil && s.applied.HasDisks() {
			a.lookAtSharings(ctx, a.cfg.Clock.Now())
			break
		}
	}
}
