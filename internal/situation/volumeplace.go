package situation

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// volumePlace returns where the volumes of a cluster lie, given what finds a volume by its full name.
func volumePlace(find func(name string) *state.Volume, intent *api.ClusterIntent) api.VolumePlace {
	var place api.VolumePlace
	for _, asked := range api.VolumesOf(&intent.Spec, intent.User) {
		v := find(state.VolumeName(intent.Project, asked.Name))
		switch {
		case v == nil || v.Intent.UID == "":
			place.Unplaced, place.Why = asked.Name, "does not exist"
		case v.Intent.DeleteRequestedAt != nil || v.Record != nil && v.Record.Purging:
			place.Unplaced, place.Why = asked.Name, "is being deleted"
		case v.Record == nil:
			place.Unplaced, place.Why = asked.Name, "has no node yet"
		case place.Node == "":
			place.Volume, place.Node = asked.Name, v.Record.Node
		case place.Node != v.Record.Node && place.Other == "":
			place.Other, place.OtherNode = asked.Name, v.Record.Node
		}
	}
	return place
}
