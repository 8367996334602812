package agent

import (
	"context"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/volume"
)

const (
	// volumeDeadline bounds one change of a volume: its user chose how much there is to copy or to remove.
	volumeDeadline = 10 * time.Minute
	// homePath is where a member has its home.
	homePath = "/home"
)

// volumes is the state of this node's volumes: what the leader wants of them, and what the pool found. It is owned by loop.
type volumes struct {
	states map[string]*volumeState // by UID
	looks
	// copies is how many backups are being written and read.
	copies int
}

// volumeState is one volume that is wanted here, was found here, or both.
type volumeState struct {
	want  *volume.Volume // nil: the leader does not name it
	found *volume.State  // nil: nothing of it was found
	// applied is what the pool has carried out since the agent started; nil: not known.
	applied *volume.Volume
	busy    bool
	// purged: the pool has verified that nothing is left of it.
	purged   bool
	attempts lifecycle.Attempts
	// copying ends the backup that is being written or read; nil: none is. importing is how far the reading is.
	copying   context.CancelFunc
	importing volume.ImportState
	// held is why an attachment that is no longer wanted stays.
	held string
}

// wantVolumes takes over what the leader wants of volumes.
func (a *Agent) wantVolumes(d *agentstream.Desired) {
	named := map[string]*volume.Volume{}
	for i := range d.Volumes {
		v := &d.Volumes[i]
		named[v.UID] = v
		if a.volumes.states[v.UID] == nil {
			a.volumes.states[v.UID] = &volumeState{}
		}
	}
	for uid, s := range a.volumes.states {
		want := named[uid]
		if !reflect.DeepEqual(s.want, want) {
			s.attempts = lifecycle.Attempts{} // another task: what failed before says nothing about it
		}
		if want == nil || !want.Purge {
			s.purged = false
		}
		s.want = want
		s.endUnwantedCopy()
	}
}

// convergeVolumes begins what is to be done for volumes that nothing is under way for.
func (a *Agent) convergeVolumes(ctx context.Context, now time.Time) {
	if a.cfg.Volumes == nil || !a.hearing.current() {
		return
	}
	if !a.volumes.looked { // else what members have attached is not known
		a.lookAtVolumes(ctx, now)
		return
	}
	for _, uid := range slices.Sorted(maps.Keys(a.volumes.states)) {
		s := a.volumes.states[uid]
		if s.busy {
			continue
		}
		if s.want == nil && s.found == nil {
			delete(a.volumes.states, uid)
			continue
		}
		next := a.nextOfVolume(uid, s)
		switch {
		case next == nil:
		case now.Before(s.attempts.NextTry):
			a.wakeAt(s.attempts.NextTry)
		default:
			a.changeVolume(ctx, uid, s, *next)
		}
	}
}

// nextOfVolume is what the pool should be asked for next; nil: nothing.
func (a *Agent) nextOfVolume(uid string, s *volumeState) *volume.Volume {
	var next volume.Volume
	switch {
	case s.want != nil:
		next = *s.want
	case len(s.found.Attached) > 0: // it stays as it is, without attachments
		next = volume.Volume{UID: uid, Generation: s.found.Generation, SizeBytes: s.found.SizeBytes, MaxFiles: s.found.MaxFiles, Block: s.found.MaxFiles == 0}
		for _, snapshot := range s.found.Snapshots {
			next.Snapshots = append(next.Snapshots, snapshot.UID)
		}
	default:
		return nil
	}
	if next.Purge {
		s.held = ""
		if s.purged {
			return nil
		}
		return &next
	}
	if s.awaitsContent() {
		return nil
	}
	next.Attachments = slices.Clone(next.Attachments)
	s.held = ""
	if s.found != nil {
		for _, cluster := range s.found.Attached {
			if a.served(uid, cluster) && !slices.ContainsFunc(next.Attachments, func(w volume.Attachment) bool { return w.ClusterUID == cluster }) {
				s.held = fmt.Sprintf("it stays attached for cluster %s, for which it is still served to other nodes", cluster)
				return nil // the end of that wakes the loop
			}
		}
	}
	for _, kept := range a.attachmentsInUse(uid, s, next.Attachments) {
		next.Attachments = append(next.Attachments, kept)
		s.held = fmt.Sprintf("it stays attached for cluster %s, which still has members on this node", kept.ClusterUID)
	}
	if s.applied != nil && reflect.DeepEqual(*s.applied, next) && (a.volumes.looking || !s.lacksProcess()) {
		return nil
	}
	return &next
}

// lacksProcess reports whether a process that serves a block volume has ended since it was started.
func (s *volumeState) lacksProcess() bool {
	if s.found == nil || !s.applied.Block {
		return false
	}
	return slices.ContainsFunc(s.applied.Attachments, func(w volume.Attachment) bool { return !slices.Contains(s.found.Attached, w.ClusterUID) })
}

// attachmentsInUse are those that are not wanted, and that members which are still there have nevertheless: nothing is taken from under a member.
func (a *Agent) attachmentsInUse(uid string, s *volumeState, wanted []volume.Attachment) []volume.Attachment {
	var attached []string
	if s.found != nil {
		attached = append(attached, s.found.Attached...)
	}
	if s.applied != nil {
		for _, has := range s.applied.Attachments {
			attached = append(attached, has.ClusterUID)
		}
	}
	slices.Sort(attached)
	var kept []volume.Attachment
	for _, cluster := range slices.Compact(attached) {
		if slices.ContainsFunc(wanted, func(w volume.Attachment) bool { return w.ClusterUID == cluster }) {
			continue
		}
		in := a.attachmentOfMembers(uid, cluster)
		if in == nil {
			continue
		}
		if s.applied != nil { // what members have is what was applied
			for _, has := range s.applied.Attachments {
				if has.ClusterUID == cluster {
					*in = has
				}
			}
		}
		kept = append(kept, *in)
	}
	return kept
}

// attachmentOfMembers is the attachment that members of a cluster which are still there have of a volume; nil: none of them has it.
func (a *Agent) attachmentOfMembers(uid, cluster string) *volume.Attachment {
	var in *volume.Attachment
	for _, m := range a.members {
		if m.assigned == nil || m.assigned.ClusterUID != cluster || !m.busy && (m.cleaned || m.state == driver.StateAbsent) {
			continue
		}
		for _, claim := range m.assigned.Volumes {
			if claim.UID != uid {
				continue
			}
			if in == nil {
				in = &volume.Attachment{ClusterUID: cluster, UserIDs: m.assigned.UserIDs, ReadOnly: true}
			}
			in.ReadOnly = in.ReadOnly && claim.ReadOnly
		}
	}
	return in
}

// changeVolume asks the pool for a change, within a deadline, and posts how it went.
func (a *Agent) changeVolume(ctx context.Context, uid string, s *volumeState, next volume.Volume) {
	s.busy = true
	a.work.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, volumeDeadline)
		defer cancel()
		failpoint.Hit("agent.before-volume")
		var err error
		if next.Purge {
			err = a.cfg.Volumes.Purge(bounded, uid, next.Generation)
		} else {
			err = a.cfg.Volumes.Apply(bounded, next)
		}
		failpoint.Hit("agent.after-volume")
		a.post(ctx, func() {
			s.busy, s.applied = false, nil // what failed half way is not known
			if now := a.cfg.Clock.Now(); err != nil {
				s.attempts = s.attempts.Fail(err.Error(), now)
				a.cfg.Log.WarnContext(ctx, "a change of a volume failed", "volume", uid, "error", err, "attempt", s.attempts.Count)
			} else {
				s.attempts, s.purged = lifecycle.Attempts{}, next.Purge
				if !next.Purge {
					s.applied = &next
				}
			}
			a.lookAtVolumes(ctx, time.Time{})
		})
	})
}

// lookAtVolumes finds out what the pool has.
func (a *Agent) lookAtVolumes(ctx context.Context, now time.Time) {
	if a.cfg.Volumes != nil {
		look(ctx, a, &a.volumes.looks, now, "the volumes of this node", a.cfg.Volumes.Observe, a.sawVolumes)
	}
}

// sawVolumes notes what the pool found.
func (a *Agent) sawVolumes(found []volume.State) {
	for _, s := range a.volumes.states {
		s.found = nil
	}
	for _, f := range found {
		s := a.volumes.states[f.UID]
		if s == nil {
			s = &volumeState{}
			a.volumes.states[f.UID] = s
		}
		s.found = &f
	}
}

// observedVolumes is what goes up about volumes, and the UIDs of those that were purged.
func (a *Agent) observedVolumes() (seen []volume.State, purged []string) {
	for _, uid := range slices.Sorted(maps.Keys(a.volumes.states)) {
		s := a.volumes.states[uid]
		if s.purged {
			purged = append(purged, uid)
			continue
		}
		state := volume.State{UID: uid}
		if s.found != nil {
			state = *s.found
		}
		if state.Problem = a.problemOfVolume(s); a.volumes.looked && s.awaitsContent() { // before, it could not be taken
			importing := s.importing
			state.Import = &importing
		}
		state.Problem = joined(state.Problem, a.unlimited(uid))
		if s.found != nil || state.Problem != "" || state.Import != nil {
			seen = append(seen, state)
		}
	}
	return seen, purged
}

// problemOfVolume is why a volume is not as wanted, "" while nothing is wrong.
func (a *Agent) problemOfVolume(s *volumeState) string {
	if a.cfg.Volumes == nil {
		return "this node keeps no volumes: its agent was started without a pool"
	}
	reasons := slices.DeleteFunc([]string{s.attempts.LastError, s.held, a.volumes.problem}, func(r string) bool { return r == "" })
	return strings.Join(reasons, "; ")
}

// volumesReady reports whether all volumes of a member are attached for its cluster. Waiting for them costs the member no attempt: that one comes
// wakes the loop.
func (a *Agent) volumesReady(m *memberState) bool {
	if why := a.unattached(m); why != "" {
		m.message = why
		return false
	}
	return true
}

// missing is what a cluster's members lack of a volume, "" when it is attached.
func (a *Agent) missing(claim api.VolumeClaim, cluster string) string {
	if claim.Node != a.cfg.Node.Name {
		return a.missingRemote(claim, cluster)
	}
	s := a.volumes.states[claim.UID]
	switch {
	case a.cfg.Volumes == nil:
		return "can't be attached: this node keeps no volumes"
	case s == nil || s.want == nil:
		return "is not known on this node yet"
	case s.applied != nil && slices.ContainsFunc(s.applied.Attachments, func(has volume.Attachment) bool {
		return has.ClusterUID == cluster && (claim.ReadOnly || !has.ReadOnly)
	}):
		return ""
	}
	if problem := a.problemOfVolume(s); problem != "" {
		return "can't be attached: " + problem
	}
	if s.found != nil && s.found.Ready {
		return "is being attached"
	}
	if s.awaitsContent() {
		return "waits for a backup"
	}
	return "is being made"
}

// placeVolumes fills in where on this host a member finds its home and its volumes.
func (a *Agent) placeVolumes(w *agentstream.Member) {
	w.Mounts, w.Disks = nil, nil
	for _, claim := range w.Assignment.Volumes {
		place := a.placeOf(claim, w.Assignment.ClusterUID)
		if claim.Detaching || place == "" {
			continue // it is not started: see volumesReady
		}
		if claim.Block {
			w.Disks = append(w.Disks, driver.Disk{Name: claim.Name, Path: claim.Path, Socket: place, ReadOnly: claim.ReadOnly})
			continue
		}
		if path.Clean(claim.Path) == homePath {
			w.HomeDir = place
			continue
		}
		w.Mounts = append(w.Mounts, driver.Mount{Source: place, Path: claim.Path, ReadOnly: claim.ReadOnly})
	}
}

// ownsHome reports whether a member's home is a directory of its cluster, which is made and removed with it, and not a volume.
func ownsHome(w *agentstream.Member) bool {
	return w.HomeDir != "" && !slices.ContainsFunc(w.Assignment.Volumes, func(c api.VolumeClaim) bool { return path.Clean(c.Path) == homePath })
}
