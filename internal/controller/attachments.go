package controller

import (
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// attachmentsOf returns the attachments of a volume on its node: one for each cluster with members there that have it, members that are being
// released included. A cluster of which all members only read may only read.
func attachmentsOf(view *state.View, volumeUID string) []volume.Attachment {
	v := view.Volume(volumeUID)
	if v == nil || v.Record == nil || v.Record.Purging {
		return nil
	}
	var all []volume.Attachment
	for _, c := range view.ClustersOnNode(v.Record.Node) {
		if c.Record == nil {
			continue
		}
		one := volume.Attachment{ClusterUID: c.UID(), UserIDs: c.Record.UserIDs, ReadOnly: true}
		claimed := false
		for a := range c.All() {
			if a.Node != v.Record.Node {
				continue
			}
			for i := range a.Volumes {
				if claim := &a.Volumes[i]; claim.UID == volumeUID {
					claimed, one.ReadOnly = true, one.ReadOnly && claim.ReadOnly
				}
			}
		}
		if claimed {
			all = append(all, one)
		}
	}
	return all
}
