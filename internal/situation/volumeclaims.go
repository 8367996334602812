package situation

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// VolumeClaims returns the claims that members of a cluster should have on its volumes, and the first of its volumes that has no node: nobody can
// claim that.
func VolumeClaims(view *state.View, intent *api.ClusterIntent) (claims []api.VolumeClaim, unplaced string) {
	for _, asked := range api.VolumesOf(intent) {
		v := view.VolumeNamed(state.VolumeName(intent.Project, asked.Name))
		if v == nil || v.Record == nil || v.Record.Purging {
			if unplaced == "" {
				unplaced = asked.Name
			}
			continue
		}
		claims = append(claims, api.VolumeClaim{
			UID: v.UID(), Name: asked.Name, Path: asked.MountPath(), ReadOnly: asked.ReadOnly, Block: v.Intent.Kind == api.VolumeBlock, Node: v.Record.Node,
		})
	}
	return claims, unplaced
}
