package situation

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
	volumeplan "github.com/nearmetal/nearmetal/internal/volume/plan"
)

// HeardVolumes is what is known of volumes by nodes' agents; internal/monitor provides it.
type HeardVolumes interface {
	Node(name string) (phase api.NodePhase, lastSeen time.Time, message string)
	Volumes(node string) (volumes []volume.State, purged []string, heard bool)
}

// Volumes returns what decisions about volumes depend on, and what users are shown of them.
func Volumes(view *state.View, heard HeardVolumes, now time.Time) volumeplan.Situation {
	s := volumeplan.Situation{Volumes: StoredVolumes(view), Now: now}
	for _, n := range view.Nodes {
		if n.Agent == nil {
			continue
		}
		one := volumeplan.Node{Name: n.Name, Pool: n.Agent.VolumePool, Drained: n.Drained()}
		one.Volumes, one.Purged, one.Heard = heard.Volumes(n.Name)
		if !one.Heard {
			phase, _, _ := heard.Node(n.Name)
			one.Down = phase == api.NodeDown
		}
		s.Nodes = append(s.Nodes, one)
	}
	// All assignments are looked through only when some volume is to go now.
	s.Ended = endedOwners(view)
	if len(s.Ended) > 0 || slices.ContainsFunc(view.Volumes, func(v *state.Volume) bool { return v.Intent.PurgeAt != nil && !now.Before(*v.Intent.PurgeAt) }) {
		s.Claimed = map[string]bool{}
		for _, claim := range view.VolumeClaims() {
			s.Claimed[claim.UID] = true
		}
	}
	return s
}

// endedOwners returns the UIDs of clusters with homes of their own that have ended or are being deleted.
func endedOwners(view *state.View) map[string]bool {
	var ended map[string]bool
	for _, v := range view.Volumes {
		if view.EndedOwner(v) {
			if ended == nil {
				ended = map[string]bool{}
			}
			ended[v.Intent.ClusterUID] = true
		}
	}
	return ended
}

// StoredVolumes returns what is stored of volumes as their planner sees it.
func StoredVolumes(view *state.View) []volumeplan.Volume {
	all := make([]volumeplan.Volume, len(view.Volumes))
	for i, v := range view.Volumes {
		all[i] = volumeplan.Volume{Record: v.Record}
		if v.Intent.UID != "" {
			all[i].Intent = &v.Intent
		}
	}
	return all
}

// UsedStorage returns the bytes that the volumes of a project hold: their sizes, and what their snapshots hold as far as nodes have reported it.
// What was deleted counts until it is purged.
func UsedStorage(volumes []api.VolumeIntent, sees func(uid string) *volume.State) int64 {
	var sum int64
	for i := range volumes {
		v := &volumes[i]
		sum += v.SizeBytes
		if seen := sees(v.UID); seen != nil {
			for _, snapshot := range seen.Snapshots {
				sum += snapshot.HeldBytes
			}
		}
	}
	return sum
}
