package agent

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// sharingDeadline bounds one change of how a cluster's volumes cross between nodes.
const sharingDeadline = 2 * time.Minute

// sharings is how volumes cross from and to this node: what the leader wants, and what was found. It is owned by loop.
type sharings struct {
	states map[string]*sharingState // by the cluster's UID
	looks
}

// sharingState is that of one cluster.
type sharingState struct {
	want     *volume.Sharing      // nil: the leader does not name it
	found    *volume.SharingState // nil: nothing of it was found
	applied  *volume.Sharing      // what was carried out since the agent started; nil: not known
	busy     bool
	attempts lifecycle.Attempts
	// withdrawn are volumes that this node was shut out from while it had them. Members that have one go on having what does not answer; no other
	// begins to use it before it was taken away.
	withdrawn map[string]bool
}

// wantSharings takes over what the leader wants of volumes that cross.
func (a *Agent) wantSharings(d *agentstream.Desired) {
	named := map[string]*volume.Sharing{}
	for i := range d.Sharings {
		s := &d.Sharings[i]
		named[s.ClusterUID] = s
		if a.sharings.states[s.ClusterUID] == nil {
			a.sharings.states[s.ClusterUID] = &sharingState{}
		}
	}
	for uid, s := range a.sharings.states {
		want := named[uid]
		if !reflect.DeepEqual(s.want, want) {
			s.attempts = lifecycle.Attempts{} // another task: what failed before says nothing about it
		}
		s.want = want
		s.withdraw()
	}
}

// withdraw notes what this node has and was shut out from.
func (s *sharingState) withdraw() {
	if s.found == nil || s.want != nil && s.want.Client {
		return
	}
	for _, uid := range s.found.Reaches {
		if s.withdrawn == nil {
			s.withdrawn = map[string]bool{}
		}
		s.withdrawn[uid] = true
	}
}

// convergeSharings begins what is to be done for clusters that nothing is under way for.
func (a *Agent) convergeSharings(ctx context.Context, now time.Time) {
	if a.cfg.Sharer == nil || !a.hearing.current() {
		return
	}
	if !a.sharings.looked {
		a.lookAtSharings(ctx, now)
		return
	}
	if a.cfg.Volumes != nil && !a.volumes.looked {
		return // what can be served is not known
	}
	for _, cluster := range slices.Sorted(maps.Keys(a.sharings.states)) {
		s := a.sharings.states[cluster]
		if s.busy {
			continue
		}
		if s.want == nil && s.found == nil {
			delete(a.sharings.states, cluster)
			continue
		}
		next := a.nextOfSharing(cluster, s)
		switch {
		case next == nil && (s.found == nil || a.sharings.looking): // nothing is there, or that is being looked at
		case next != nil && s.found == nil && next.Encrypted && !a.seals(next): // it could send nothing yet
		case next != nil && next.Port != nil && !a.networks.hasPort(next.Port.ID): // it could not be attached yet
		case next != nil && s.applied != nil && reflect.DeepEqual(*s.applied, *next) && (a.sharings.looking || !s.lacksProcess()):
		case now.Before(s.attempts.NextTry):
			a.wakeAt(s.attempts.NextTry)
		default:
			a.changeSharing(ctx, cluster, s, next)
		}
	}
}

// nextOfSharing is what should be carried out; nil: all of it should end. A volume is served while the pool has it attached, and stays where a member
// that is there has it.
func (a *Agent) nextOfSharing(cluster string, s *sharingState) *volume.Sharing {
	var next volume.Sharing
	if s.want != nil {
		next = *s.want
	}
	next.ClusterUID, next.Settled = cluster, false // it is for members
	next.Serves, next.Reaches = nil, nil
	if s.want != nil {
		for _, share := range s.want.Serves {
			if a.attached(share.UID, cluster) && !(share.Block && a.keptByLeaving(share.UID)) {
				next.Serves = append(next.Serves, share)
			}
		}
		for _, r := range s.want.Reaches {
			if !s.withdrawn[r.UID] && a.needs(r.UID, cluster) {
				next.Reaches = append(next.Reaches, r)
			}
		}
	}
	if s.found != nil {
		for _, uid := range s.found.Reaches {
			named := slices.ContainsFunc(next.Reaches, func(r volume.Remote) bool { return r.UID == uid })
			if !named && a.attachmentOfMembers(uid, cluster) != nil {
				next.Reaches = append(next.Reaches, volume.Remote{UID: uid})
			}
		}
	}
	if !next.Client && !next.Serving() && len(next.Reaches) == 0 {
		return nil
	}
	return &next
}

// lacksProcess reports whether a process that carries block volumes has ended since it was started.
func (s *sharingState) lacksProcess() bool {
	if s.found == nil {
		return false
	}
	return slices.ContainsFunc(s.applied.Serves, func(v volume.Share) bool { return v.Block && !slices.Contains(s.found.Serves, v.UID) }) ||
		slices.ContainsFunc(s.applied.Reaches, func(r volume.Remote) bool {
			return r.Block && r.Server.IsValid() && !slices.Contains(s.found.Reaches, r.UID)
		})
}

// needs reports whether a member here has a volume, or is to have it.
func (a *Agent) needs(uid, cluster string) bool {
	if a.attachmentOfMembers(uid, cluster) != nil {
		return true
	}
	for _, m := range a.members {
		if m.want != nil && !m.want.Release && m.want.Assignment.ClusterUID == cluster &&
			slices.ContainsFunc(m.want.Assignment.Volumes, func(c api.VolumeClaim) bool { return c.UID == uid }) {
			return true
		}
	}
	return false
}

// reaches reports whether a volume of another node is still there that a member had and nobody needs any more: until it was given back, while its node
// serves it, something of the member is left.
func (a *Agent) reaches(m *memberState) bool {
	if m.assigned == nil {
		return false
	}
	cluster := m.assigned.ClusterUID
	s := a.sharings.states[cluster]
	if s == nil || s.found == nil {
		return false
	}
	return slices.ContainsFunc(m.assigned.Volumes, func(c api.VolumeClaim) bool {
		return slices.Contains(s.found.Reaches, c.UID) && !a.needs(c.UID, cluster)
	})
}

// bringsBackBy reports whether volumes of other nodes are still there that a member with the whole machine has by its own network.
func (a *Agent) bringsBackBy(m *memberState) bool {
	s := a.sharings.states[m.want.Assignment.ClusterUID]
	return m.want.Assignment.Whole && s != nil && s.found != nil && len(s.found.Reaches) > 0
}

// bringsBack reports whether what members wrote to volumes of other nodes is still on its way there.
func (a *Agent) bringsBack() bool {
	for _, s := range a.sharings.states {
		if s.busy || s.found != nil && len(s.found.Reaches) > 0 && s.attempts.LastError == "" {
			return true
		}
	}
	return false
}

// attached reports whether the pool has a volume attached for a cluster.
func (a *Agent) attached(uid, cluster string) bool {
	s := a.volumes.states[uid]
	return s != nil && s.found != nil && slices.Contains(s.found.Attached, cluster)
}

// changeSharing carries out a change, within a deadline, and posts how it went.
func (a *Agent) changeSharing(ctx context.Context, cluster string, s *sharingState, next *volume.Sharing) {
	s.busy = true
	a.work.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, sharingDeadline)
		defer cancel()
		failpoint.Hit("agent.before-sharing")
		var err error
		if next == nil {
			err = a.cfg.Sharer.End(bounded, cluster)
		} else {
			err = a.cfg.Sharer.Apply(bounded, *next)
		}
		failpoint.Hit("agent.after-sharing")
		a.post(ctx, func() {
			s.busy, s.applied = false, nil
			if now := a.cfg.Clock.Now(); err != nil {
				s.attempts = s.attempts.Fail(err.Error(), now)
				a.cfg.Log.WarnContext(ctx, "volumes can't cross between nodes as they should", "cluster", cluster, "error", err, "attempt", s.attempts.Count)
			} else {
				s.attempts, s.applied = lifecycle.Attempts{}, next
			}
			a.lookAtSharings(ctx, time.Time{})
		})
	})
}

// lookAtSharings finds out what is there of volumes that cross.
func (a *Agent) lookAtSharings(ctx context.Context, now time.Time) {
	if a.cfg.Sharer != nil {
		look(ctx, a, &a.sharings.looks, now, "volumes that cross between nodes", a.cfg.Sharer.Observe, a.sawSharings)
	}
}

// sawSharings notes what was found.
func (a *Agent) sawSharings(found []volume.SharingState) {
	for _, s := range a.sharings.states {
		s.found = nil
	}
	for _, f := range found {
		s := a.sharings.states[f.ClusterUID]
		if s == nil {
			s = &sharingState{}
			a.sharings.states[f.ClusterUID] = s
		}
		s.found = &f
		maps.DeleteFunc(s.withdrawn, func(uid string, _ bool) bool { return !slices.Contains(f.Reaches, uid) })
		s.withdraw()
	}
}

// observedSharings is what goes up about volumes that cross.
func (a *Agent) observedSharings() []volume.SharingState {
	var all []volume.SharingState
	for _, cluster := range slices.Sorted(maps.Keys(a.sharings.states)) {
		s := a.sharings.states[cluster]
		state := volume.SharingState{ClusterUID: cluster}
		if s.found != nil {
			state = *s.found
		}
		if state.Problem = s.problem(a); s.found != nil || state.Problem != "" {
			all = append(all, state)
		}
	}
	return all
}

func (s *sharingState) problem(a *Agent) string {
	if s.attempts.LastError != "" {
		return s.attempts.LastError
	}
	return a.sharings.problem
}

// served reports whether a volume of this node is still served for a cluster, or about to be.
func (a *Agent) served(uid, cluster string) bool {
	s := a.sharings.states[cluster]
	return s != nil && (s.busy || s.found != nil && slices.Contains(s.found.Serves, uid))
}

// unsettled is why no other member of a cluster begins to use its volumes here yet, "" where nothing is in the way: a node that was shut out may still
// write.
func (a *Agent) unsettled(cluster string) string {
	s := a.sharings.states[cluster]
	if s == nil {
		return ""
	}
	settled := s.want == nil || s.want.Settled
	if s.found != nil {
		for _, c := range s.found.Clients {
			settled = settled && s.want != nil && s.want.LetsIn(c)
		}
	}
	if settled {
		return ""
	}
	return "waits until a node that is lost can't write to it any more"
}

// missingRemote is what a cluster's members lack of a volume of another node, "" when it is there.
func (a *Agent) missingRemote(claim api.VolumeClaim, cluster string) string {
	where := fmt.Sprintf("lies on node %s, ", claim.Node)
	if a.cfg.Sharer == nil {
		return where + "and this node can't reach it"
	}
	s := a.sharings.states[cluster]
	if s == nil || s.want == nil {
		return where + "which this node has not heard of yet"
	}
	if s.withdrawn[claim.UID] {
		return where + "which shut this node out; it is taken away from members that were lost"
	}
	wanted := slices.ContainsFunc(s.want.Reaches, func(r volume.Remote) bool { return r.UID == claim.UID })
	if !wanted {
		return where + "which has not let this node in yet"
	}
	if s.found != nil && slices.Contains(s.found.Reaches, claim.UID) {
		return ""
	}
	if problem := s.problem(a); problem != "" {
		return where + "and can't be reached: " + problem
	}
	return where + "and is being attached"
}

// placeOf is where members of a cluster find a volume on this host: a directory, or the socket of a block volume. It is "" where it can't be.
func (a *Agent) placeOf(claim api.VolumeClaim, cluster string) string {
	var at interface {
		Dir(uid, clusterUID string) string
		Socket(uid, clusterUID string) string
	}
	switch here := claim.Node == a.cfg.Node.Name; {
	case here && a.cfg.Volumes != nil:
		at = a.cfg.Volumes
	case !here && a.cfg.Sharer != nil:
		at = a.cfg.Sharer
	default:
		return ""
	}
	if claim.Block {
		return at.Socket(claim.UID, cluster)
	}
	return at.Dir(claim.UID, cluster)
}
