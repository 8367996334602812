package apiserver

import (
	"maps"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// heardVolumes are the last reports about volumes, by node.
type heardVolumes map[string]volumeReport

// volumeReport is what a node's agent says of volumes, by their UIDs. heard: the agent is heard of; else nothing is known.
type volumeReport struct {
	volumes map[string]volume.State
	heard   bool
}

// look returns the notes of the volumes of which something else is reported than before: on the nodes named, and with sweep on all nodes with volumes,
// since a silence begins by the clock alone.
func (h heardVolumes) look(live Live, view *state.View, told []string, sweep bool) []note {
	nodes := map[string]bool{}
	for _, node := range told {
		nodes[node] = true
	}
	if sweep {
		for _, v := range view.Volumes {
			if v.Node() != "" {
				nodes[v.Node()] = true
			}
		}
		maps.DeleteFunc(h, func(node string, _ volumeReport) bool { return view.Node(node) == nil })
	}
	var notes []note
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		lying := view.VolumesOnNode(node)
		if len(lying) == 0 {
			delete(h, node)
			continue
		}
		before := h[node]
		now := reportOf(live, node)
		h[node] = now
		for _, v := range lying {
			if before.heard == now.heard && reflect.DeepEqual(before.volumes[v.UID()], now.volumes[v.UID()]) {
				continue
			}
			name, of := ofVolume(v)
			notes = append(notes, note{kind: api.KindVolume, name: name, owner: of})
		}
	}
	return notes
}

func reportOf(live Live, node string) volumeReport {
	said, purged, heard := live.Volumes(node)
	r := volumeReport{volumes: map[string]volume.State{}, heard: heard}
	for _, s := range said {
		r.volumes[s.UID] = s
	}
	for _, uid := range purged {
		r.volumes[uid] = volume.State{UID: uid, Problem: "purged"} // which nobody is shown
	}
	return r
}
