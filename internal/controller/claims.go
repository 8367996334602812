package controller

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// attachVolumes gives new members the volumes of their cluster. Placement sent them where these lie. Where members have whole machines, the nodes of the
// volumes get addresses on the cluster's own network, the first of the decision's.
func attachVolumes(view *state.View, c *state.Cluster, assignments []api.Assignment, at *placement.Decision) error {
	claims, unplaced := situation.VolumeClaims(view, &c.Intent)
	if unplaced != "" {
		return fmt.Errorf("volume %q has no node", unplaced)
	}
	if placement.HasMachines(&c.Intent.Spec) && len(at.Networks) > 0 {
		if err := placement.ServeVolumes(claims, &at.Networks[0], at.Held, assignments); err != nil {
			return err
		}
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
