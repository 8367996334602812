package usage

import (
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// storage yields the room that volumes hold now, and reports whether to go on.
func (in *Input) storage(yield func(*owner, *api.UsageSpan) bool) bool {
	for i := range in.Volumes {
		v, r := in.Volumes[i].Volume, in.Volumes[i].Record
		o := owner{project: v.Project, user: v.User, cluster: v.Cluster, uid: v.ClusterUID}
		if o.project == "" {
			project, _, inProject := strings.Cut(r.Name, ".")
			if inProject {
				o.project = project
			}
		}
		o.project = orDefault(o.project)
		s := api.UsageSpan{Kind: api.SpanStorage, Node: r.Node, From: r.HeldSince, To: in.Now, StorageBytes: r.SizeBytes}
		if !yield(&o, &s) {
			return false
		}
	}
	return true
}

// addStorage counts what volumes held for their owners.
func (x *exact) addStorage(all []held, bounds []int64, in *Input, by By) {
	// Rows are cut where a node's number of cores changes. Storage has no part in that.
	forever := []width{{from: bounds[0], to: bounds[len(bounds)-1]}}
	for i := range all {
		h := &all[i]
		if in.counts(h.owner) {
			x.addRow(h, bounds, forever, by)
		}
	}
}

// ownerOf returns whose the spans of a record are.
func ownerOf(r *api.UsageRecord) owner {
	o := owner{project: orDefault(r.Project), user: r.User, cluster: r.Cluster, uid: r.UID}
	if r.Volume != "" {
		o.uid = r.ClusterUID
	}
	return o
}

// storageOnly leaves of a span's amounts what a volume holds.
func storageOnly(s *api.UsageSpan) resource.Amounts {
	var a resource.Amounts
	a.Vector[resource.Storage] = max(s.StorageBytes, 0)
	return a
}
