package controller

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// attachVolumes gives new members the volumes of their cluster. Placement sent them where these lie.
func attachVolumes(view *state.View, c *state.Cluster, assignments []api.Assignment) error {
	var claims []api.VolumeClaim
	for _, asked := range api.VolumesOf(&c.Intent) {
		v := view.VolumeNamed(state.VolumeName(c.Intent.Project, asked.Name))
		if v == nil || v.Record == nil || v.Record.Purging {
			return fmt.Errorf("volume %q has no node", asked.Name)
		}
		claims = append(claims, api.VolumeClaim{
			UID: v.UID(), Name: asked.Name, Path: asked.MountPath(), ReadOnly: asked.ReadOnly, Node: v.Record.Node,
		})
	}
	for i := range assignments {
		a := &assignments[i]
		if a.IsPart() && !a.IsSuccessor() || a.IsSnapshot() {
			continue // it runs nothing
		}
		a.Volumes = claims
	}
	return nil
}
