package controller

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// attachVolumes gives new members the volumes of their cluster. Placement sent them where these lie.
func attachVolumes(view *state.View, c *state.Cluster, assignments []api.Assignment) error {
	claims, unplaced := situation.VolumeClaims(view, &c.Intent)
	if unplaced != "" {
		return fmt.Errorf("volume %q has no node", unplaced)
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
