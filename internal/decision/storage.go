package decision

import (
	"cmp"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// holdStorage notes since when a volume holds its size, and writes down what it held before, once that has ended.
func (c *VolumeChange) holdStorage(intent *api.VolumeIntent, was *api.VolumeRecord, now time.Time) {
	switch {
	case was == nil && c.Forget:
		return
	case was == nil:
		c.Record.HeldSince = now
		return
	case !c.Forget && c.Record.SizeBytes == was.SizeBytes:
		return
	}
	c.Record.HeldSince = now
	if was.HeldSince.IsZero() || !now.After(was.HeldSince) { // a record of an older version does not say what it held until now
		return
	}
	c.Usage = &api.UsageRecord{
		Seq: c.Record.Generation, UID: was.UID, Volume: was.Name, Project: projectOf(was.Name),
		Spans: []api.UsageSpan{{Kind: api.SpanStorage, Node: was.Node, From: was.HeldSince, To: now, StorageBytes: was.SizeBytes}},
	}
	if intent != nil {
		c.Usage.Cluster, c.Usage.ClusterUID, c.Usage.User = intent.Cluster, intent.ClusterUID, intent.User
		c.Usage.Project = cmp.Or(intent.Project, c.Usage.Project)
	}
}
