package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// A volume lies on one node, and other nodes can't reach it yet. So the members of a group with volumes go there, and nowhere else.

// nodeOfVolumes is the node on which volumes lie, -1 where there is none for their members.
func (v *View) nodeOfVolumes(p api.VolumePlace) int32 {
	id, ok := v.ids[p.Node]
	if !ok || p.Other != "" || p.Unplaced != "" {
		return -1
	}
	return id
}

// WithoutVolume says what a cluster's groups wait for that have volumes without a node, "" for all others.
func WithoutVolume(groups []api.Group) string {
	for i := range groups {
		if p := groups[i].VolumePlace; p.Unplaced != "" {
			return fmt.Sprintf("volume %q %s", p.Unplaced, p.Why)
		}
	}
	return ""
}

// OnVolumes says for people where members with volumes go: " on node n1, where volume "data" lies", and "" where they go anywhere.
func OnVolumes(p api.VolumePlace) string {
	if p.Node == "" || p.Other != "" {
		return ""
	}
	return fmt.Sprintf(" on node %s, where volume %q lies", p.Node, p.Volume)
}

// volumePlaceText says where the volumes of a group lie, as an object of a sentence.
func volumePlaceText(p api.VolumePlace) string {
	switch {
	case p.Unplaced != "":
		return fmt.Sprintf("volume %q, which %s", p.Unplaced, p.Why)
	case p.Other != "":
		return fmt.Sprintf("volume %q, which lies on node %s, and volume %q, which lies on node %s", p.Volume, p.Node, p.Other, p.OtherNode)
	default:
		return fmt.Sprintf("volume %q, which lies on node %s", p.Volume, p.Node)
	}
}

// aboutVolumes tells what the group's volumes have to do with it.
func (d *diagnosis) aboutVolumes(r *Refusal) []string {
	p := r.Need.VolumePlace
	switch {
	case p == (api.VolumePlace{}) || r.Constraint == ConstraintNodes:
		return nil
	case p.Unplaced != "":
		return []string{fmt.Sprintf("volume %q %s", p.Unplaced, p.Why)}
	case p.Other != "":
		return []string{fmt.Sprintf("volume %q lies on node %s and volume %q on node %s, and no node can reach both yet", p.Volume, p.Node, p.Other, p.OtherNode)}
	}
	id, ok := d.v.ids[p.Node]
	if !ok || d.v.nodes[id].availability == Absent {
		return []string{fmt.Sprintf("volume %q lies on node %s, which this site does not have", p.Volume, p.Node)}
	}
	if availability := d.v.nodes[id].availability; r.Constraint == ConstraintDown && !stateOf(availability).open(r.Need.Stack) {
		return []string{fmt.Sprintf("waits for node %s, where volume %q lies", p.Node, p.Volume)}
	}
	return []string{fmt.Sprintf("volume %q lies on node %s, and other nodes can't reach it yet", p.Volume, p.Node)}
}
