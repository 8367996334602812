package controller

import (
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// attachments returns the attachments of all volumes on their nodes, by the volumes' UIDs: one for each cluster with members that have the volume,
// there or on other nodes, members that are being released and those that are to let go of it included. A cluster of which all members only read may
// only read.
func attachments(view *state.View, claiming []*state.Cluster) map[string][]volume.Attachment {
	nodes := map[string]string{}
	for _, v := range view.Volumes {
		if v.Record != nil && !v.Record.Purging {
			nodes[v.UID()] = v.Record.Node
		}
	}
	all := map[string][]volume.Attachment{}
	for _, c := range claiming {
		for a := range c.All() {
			for i := range a.Volumes {
				if claim := &a.Volumes[i]; nodes[claim.UID] == claim.Node {
					all[claim.UID] = attach(all[claim.UID], c, claim.ReadOnly)
				}
			}
		}
	}
	return all
}

// attach adds what a member of a cluster does with a volume. The cluster's attachment, if it has one, is the last.
func attach(all []volume.Attachment, c *state.Cluster, readOnly bool) []volume.Attachment {
	if len(all) == 0 || all[len(all)-1].ClusterUID != c.UID() {
		return append(all, volume.Attachment{ClusterUID: c.UID(), UserIDs: c.Record.UserIDs, ReadOnly: readOnly})
	}
	last := &all[len(all)-1]
	last.ReadOnly = last.ReadOnly && readOnly
	return all
}
