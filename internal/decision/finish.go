package decision

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// finish works out the chunks, the generation and the usage that follow from what was gathered.
func (a *applier) finish() error {
	if a.moved {
		a.record.Generation++
	}
	if len(a.held) > 0 && !takesMembers(a.record.Phase) {
		return fmt.Errorf("it is %s and must not get assignments", a.record.Phase)
	}
	a.change.Joins = a.joins()
	a.rechunk()
	a.account()
	return nil
}

// joins returns the UIDs of the joined networks on which new assignments have ports, in order.
func (a *applier) joins() []string {
	var uids []string
	for i := range a.held {
		for _, port := range a.held[i].Ports {
			if slices.ContainsFunc(a.record.Joined, func(ref api.NetworkRef) bool { return ref.UID == port.Network }) {
				uids = append(uids, port.Network)
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// takesMembers reports whether a cluster of this phase may be given assignments.
func takesMembers(phase api.ClusterPhase) bool {
	switch phase {
	case api.ClusterStarting, api.ClusterReady, api.ClusterScaling, api.ClusterDegraded, api.ClusterResuming, api.ClusterRestoring, api.ClusterSnapshotting:
		return true
	default:
		return false
	}
}

// rechunk keeps chunks whole: one of which all is released just turns, one of which all is clean goes, and only one that would be half of
// each is written anew.
func (a *applier) rechunk() {
	var refs []api.ChunkRef
	var keep, release []api.Assignment
	gone := map[string]bool{}
	now := a.now
	for _, chunk := range a.c.Chunks {
		by := map[fate][]api.Assignment{}
		for _, m := range chunk.Assignments {
			p := a.places[m.ID]
			if p.fate == changed {
				m = *p.next
			}
			by[p.fate] = append(by[p.fate], m)
		}
		ref, n := chunk.Ref, len(chunk.Assignments)
		switch {
		case len(by[stays]) == n:
			refs = append(refs, ref)
		case ref.Releasing && len(by[cleaned]) < n:
			refs = append(refs, ref)
		case ref.Releasing:
			for _, m := range chunk.Assignments {
				gone[m.ID] = true
			}
		case len(by[released]) == n:
			ref.Releasing, ref.ReleasedAt = true, &now
			refs = append(refs, ref)
		default:
			keep, release = append(append(keep, by[stays]...), by[changed]...), append(release, by[released]...)
		}
	}
	a.record.Chunks = refs
	a.record.Clean = slices.DeleteFunc(a.record.Clean, func(id string) bool { return gone[id] })
	if keep = append(keep, a.held...); len(keep) > 0 {
		a.change.Add = append(a.change.Add, Batch{Assignments: keep})
	}
	if release = append(release, a.left...); len(release) > 0 {
		a.change.Add = append(a.change.Add, Batch{Assignments: release, Releasing: true, ReleasedAt: &now})
	}
}

// account writes down the use that ends with this commit.
func (a *applier) account() {
	list := a.spans.list()
	if len(list) == 0 {
		return
	}
	a.record.UsageSeq++
	u := api.UsageRecord{Seq: a.record.UsageSeq, UID: a.c.UID(), Cluster: a.c.Name(), Project: projectOf(a.c.Name()), Spans: list}
	if a.c.Intent != nil {
		u.Project, u.User = cmp.Or(a.c.Intent.Project, u.Project), a.c.Intent.User
	}
	a.change.Usage = &u
}
