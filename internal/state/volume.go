package state

import (
	"iter"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Volume is everything stored about a volume, as of one revision. It is immutable and shared.
type Volume struct {
	Intent api.VolumeIntent
	// Record is nil before the first decision.
	Record *api.VolumeRecord
	// Revision is that of the newest commit that touched intent or record.
	Revision int64

	intentRevision, recordRevision int64
}

// UID is the volume's unique ID, which outlives no deletion.
func (v *Volume) UID() string {
	if v.Record != nil {
		return v.Record.UID
	}
	return v.Intent.UID
}

// Name is the volume's name among all.
func (v *Volume) Name() string {
	if v.Record != nil {
		return v.Record.Name
	}
	return v.Intent.Name
}

// Node is the node that it lies on, "" while it has none.
func (v *Volume) Node() string {
	if v.Record == nil {
		return ""
	}
	return v.Record.Node
}

// VolumeName is the name of a project's volume among all: NAME in the default project, PROJECT.NAME elsewhere.
func VolumeName(project, name string) string { return NetworkIntentName(project, name) }

// Volume returns the volume of that UID, or nil.
func (v *View) Volume(uid string) *Volume { return volumes.find(v, uid) }

// VolumeNamed returns the volume of that name among all, or nil.
func (v *View) VolumeNamed(name string) *Volume { return first(volumes.by(v, volumeByName, name)) }

// VolumesOnNode returns the volumes that lie on a node, those that are being purged included, by their UIDs.
func (v *View) VolumesOnNode(node string) []*Volume { return volumes.by(v, volumesOnNode, node) }

// ClustersWithVolume returns the clusters that ask for a volume, or may still have it, by name.
func (v *View) ClustersWithVolume(vol *Volume) []*Cluster {
	var all []*Cluster
	for _, c := range v.Clusters {
		_, asks := attachmentTo(&c.Intent, &vol.Intent)
		if asks || slices.ContainsFunc(c.Detaching(), func(d api.VolumeDetach) bool { return d.UID == vol.UID() }) {
			all = append(all, c)
		}
	}
	return all
}

// VolumeClaims yields what is not proved clean of members that have volumes attached, those in quarantine included.
func (v *View) VolumeClaims() iter.Seq2[*api.Assignment, *api.VolumeClaim] {
	return func(yield func(*api.Assignment, *api.VolumeClaim) bool) {
		each := func(a *api.Assignment) bool {
			for i := range a.Volumes {
				if !yield(a, &a.Volumes[i]) {
					return false
				}
			}
			return true
		}
		for _, c := range v.Clusters {
			for a := range c.All() {
				if !each(a) {
					return
				}
			}
		}
		for _, q := range v.Quarantines {
			if !each(&q.Assignment) {
				return
			}
		}
	}
}

// attachmentTo returns how a cluster asks for a volume, and false if it does not.
func attachmentTo(in *api.ClusterIntent, vol *api.VolumeIntent) (api.VolumeAttachment, bool) {
	if projectOr(in.Project) != projectOr(vol.Project) {
		return api.VolumeAttachment{}, false
	}
	all := api.VolumesOf(in)
	i := slices.IndexFunc(all, func(a api.VolumeAttachment) bool { return a.Name == ownName(vol.Name) })
	if i < 0 {
		return api.VolumeAttachment{}, false
	}
	return all[i], true
}

// takeVolumeIntent takes up what a user wants of a volume. Rows are by UID: the record's key, and that of an intent is a name.
func takeVolumeIntent(t *tables, name string, in *api.VolumeIntent, revision int64) error {
	if was, ok := t.volumeUIDs[name]; ok && was != in.UID {
		dropVolumeIntent(t, name)
	}
	t.volumeUIDs[name] = in.UID
	next := tableOf(t, volumes).edit(in.UID)
	next.Intent, next.intentRevision = *in, revision
	next.Revision = max(next.Revision, revision) // a cache that opens reads keys in their order, and not in that of their commits
	tableOf(t, volumes).put(in.UID, next)
	return nil
}

func dropVolumeIntent(t *tables, name string) {
	uid := t.volumeUIDs[name]
	delete(t.volumeUIDs, name)
	dropVolumePart(t, uid, func(v *Volume) { v.Intent, v.intentRevision = api.VolumeIntent{}, 0 })
}

func takeVolumeRecord(t *tables, uid string, rec *api.VolumeRecord, revision int64) error {
	next := tableOf(t, volumes).edit(uid)
	next.Record, next.recordRevision = rec, revision
	next.Revision = max(next.Revision, revision)
	tableOf(t, volumes).put(uid, next)
	return nil
}

func dropVolumeRecord(t *tables, uid string) {
	dropVolumePart(t, uid, func(v *Volume) { v.Record, v.recordRevision = nil, 0 })
}

// dropVolumePart takes the intent or the record from a volume, which is gone with both.
func dropVolumePart(t *tables, uid string, drop func(*Volume)) {
	if tableOf(t, volumes).get(uid) == nil {
		return
	}
	next := tableOf(t, volumes).edit(uid)
	drop(next)
	if next.Record == nil && next.intentRevision == 0 {
		tableOf(t, volumes).remove(uid)
		return
	}
	tableOf(t, volumes).put(uid, next)
}
