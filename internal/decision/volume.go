package decision

import (
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

// VolumeChange is the write of one commit for a volume.
type VolumeChange struct {
	// Record is the record after the commit.
	Record api.VolumeRecord
	// Forget removes the volume instead.
	Forget bool
	// Usage is the use that ends with the commit; nil: none.
	Usage *api.UsageRecord
}

// ApplyVolume turns operations on a volume into what one commit writes. record is nil before the first decision. The generation is new with each.
// What it held until now is written down with the commit that changes it. Operations that contradict the record, or each other, are an error, and nothing is to be written.
func ApplyVolume(intent *api.VolumeIntent, record *api.VolumeRecord, ops []plan.Operation, now time.Time) (VolumeChange, error) {
	var c VolumeChange
	if record != nil {
		c.Record = *record
	}
	placed := record != nil
	for _, op := range ops {
		if err := fitsPlace(op, placed); err != nil {
			return VolumeChange{}, err
		}
		switch op := op.(type) {
		case plan.Place:
			c.Record = api.VolumeRecord{UID: intent.UID, Name: intent.Name, Node: op.Node, SizeBytes: op.SizeBytes}
			placed = true
		case plan.Resize:
			c.Record.SizeBytes = op.SizeBytes
		case plan.NoteMade:
			c.Record.Made = true
		case plan.Purge:
			if intent == nil || !mayPurge(intent, op) {
				return VolumeChange{}, fmt.Errorf("volume %q was not deleted, nor has its cluster ended, and it can't be purged", c.Record.Name)
			}
			c.Record.Purging = true
		case plan.Forget:
			if placed && !c.Record.Purging {
				return VolumeChange{}, fmt.Errorf("volume %q is not being purged and can't be forgotten", c.Record.Name)
			}
			c.Forget = true
		default:
			return VolumeChange{}, fmt.Errorf("the decision about a volume does not know operation %T", op)
		}
	}
	c.Record.Generation++
	c.holdStorage(intent, record, now)
	return c, nil
}

// mayPurge reports whether a volume was deleted, or is the home of the cluster that has ended.
func mayPurge(intent *api.VolumeIntent, op plan.Purge) bool {
	return intent.DeleteRequestedAt != nil || op.Cluster != "" && op.Cluster == intent.ClusterUID
}

// fitsPlace refuses what a volume can't have with a place, or without one.
func fitsPlace(op plan.Operation, placed bool) error {
	switch op.(type) {
	case plan.Place:
		if placed {
			return errors.New("a volume that has a node can't be given another")
		}
	case plan.Forget:
	default:
		if !placed {
			return fmt.Errorf("volume operation %T needs a volume that has a node", op)
		}
	}
	return nil
}
