package situation

import (
	"cmp"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// volumePlace returns where the volumes of a cluster lie, given what finds a volume by its full name, and what tells of a node how it is and why it
// serves no volumes to others.
func volumePlace(find func(name string) *state.Volume, of func(node string, block bool) (phase api.NodePhase, unserved string), intent *api.ClusterIntent) api.VolumePlace {
	var place api.VolumePlace
	for _, asked := range api.VolumesOf(intent) {
		v := find(state.VolumeName(intent.Project, asked.Name))
		switch {
		case v == nil || v.Intent.UID == "":
			place.Unplaced, place.Why = asked.Name, "does not exist"
		case v.Intent.DeleteRequestedAt != nil || v.Record != nil && v.Record.Purging:
			place.Unplaced, place.Why = asked.Name, "is being deleted"
		case v.Record == nil:
			place.Unplaced, place.Why = asked.Name, "has no node yet"
		default:
			block := v.Intent.Kind == api.VolumeBlock
			phase, unserved := of(v.Record.Node, block)
			addNode(&place, lies{asked.Name, v.Record.Node, unserved, block}, phase)
		}
	}
	return place
}

// lies is a volume on a node. problem is why that does not serve it to others.
type lies struct {
	volume, node, problem string
	block                 bool
}

// addNode adds a volume that lies on a node. Of several on one node, it is that which fewer nodes can have.
func addNode(place *api.VolumePlace, v lies, phase api.NodePhase) {
	if v.problem == "" && phase != api.NodeReady && place.Unplaced == "" {
		place.Unplaced, place.Why, place.Away = v.volume, "lies on node "+v.node+", which is "+cmp.Or(string(phase), "not there"), true
	}
	switch {
	case place.Node == "" || v.node == place.Node && place.Block && !v.block:
		place.Volume, place.Node, place.Problem, place.Block = v.volume, v.node, v.problem, v.block
	case v.node == place.OtherNode && place.OtherBlock && !v.block:
		place.Other, place.OtherNode, place.OtherProblem, place.OtherBlock = v.volume, v.node, v.problem, v.block
	case v.node == place.Node || v.node == place.OtherNode:
	case place.Other == "":
		place.Other, place.OtherNode, place.OtherProblem, place.OtherBlock = v.volume, v.node, v.problem, v.block
	case v.problem != "" && place.Problem == "":
		place.Volume, place.Node, place.Problem, place.Block = v.volume, v.node, v.problem, v.block
	case v.problem != "" && place.OtherProblem == "":
		place.Other, place.OtherNode, place.OtherProblem, place.OtherBlock = v.volume, v.node, v.problem, v.block
	}
}

// servesVolumes tells how a node is, and why it serves no volumes to others.
func (s *Site) servesVolumes(node string, block bool) (api.NodePhase, string) {
	return s.Nodes[node].Phase, unserved(s.View, s.Encrypted, node, block)
}

// volumesOfMachines returns where the volumes of a cluster lie for its members that have whole machines.
func (s *Site) volumesOfMachines(intent *api.ClusterIntent) api.VolumePlace {
	place := volumePlace(s.View.VolumeNamed, func(node string, _ bool) (api.NodePhase, string) {
		return s.Nodes[node].Phase, UnservedToMachines(s.View, s.Encrypted, node)
	}, intent)
	place.Machines = place != (api.VolumePlace{})
	return place
}

// UnservedToMachines is why a node does not serve its volumes to members that have whole machines, "" where it does. They have them over their network, a
// VLAN: no tunnel may end on a machine whose users are root.
func UnservedToMachines(view *state.View, encrypted bool, node string) string {
	record := view.Agent(node)
	switch why := unserved(view, false, node, false); {
	case why != "":
		return why
	case encrypted:
		return "whole machines have volumes over VLANs, which this site's encrypted underlay does not carry"
	case !record.VolumeSharing.Machines:
		return "its agent serves no volumes to whole machines: upgrade it"
	case record.Trunk == nil:
		return "whole machines have volumes over VLANs, and it has no trunk: start its agent with --trunk-interface"
	case !record.Trunk.Usable():
		return "whole machines have volumes over VLANs, and its trunk can't be used: " + record.Trunk.Problem
	default:
		return ""
	}
}

// unserved is why a node does not serve a volume of its own to others, "" where it does.
func unserved(view *state.View, encrypted bool, node string, block bool) string {
	record := view.Agent(node)
	switch {
	case record == nil || record.VolumeSharing == nil:
		return "its agent serves no volumes to other nodes"
	case encrypted && Unsealed(record) != "":
		return Unsealed(record)
	case block && record.VolumeSharing.Blocks:
		return ""
	case block:
		return cmp.Or(record.VolumeSharing.ServeProblem, "its agent serves no block volumes to other nodes")
	default:
		return record.VolumeSharing.ServeProblem
	}
}

// Unsealed is why volumes don't cross from and to a node where the underlay is encrypted, "" where they do.
func Unsealed(record *api.NodeRecord) string {
	switch {
	case record.WireGuardKey == "":
		return "the site encrypts its underlay, and its kernel has no WireGuard"
	case record.VolumeSharing == nil || !record.VolumeSharing.Encrypts:
		return "the site encrypts its underlay, and its agent has volumes cross in clear text only: upgrade it"
	default:
		return ""
	}
}

// Sharing is what a node can do for volumes that cross: where the underlay is encrypted, one that can't have volumes cross through WireGuard has the reason.
func Sharing(record *api.NodeRecord, encrypted bool) *api.VolumeSharing {
	if !encrypted || record.VolumeSharing == nil {
		return record.VolumeSharing
	}
	if why := Unsealed(record); why != "" {
		return &api.VolumeSharing{ServeProblem: why, ReachProblem: why}
	}
	return record.VolumeSharing
}

// VolumeReach is why members on a node can't have a volume that lies on another, "" where they can. It is for volumes that are file systems.
func VolumeReach(view *state.View, encrypted bool, volume, lies, member string) string {
	if lies == member {
		return ""
	}
	if why := unserved(view, encrypted, lies, false); why != "" {
		return fmt.Sprintf("volume %q lies on node %s, which does not serve it to others (%s)", volume, lies, why)
	}
	why := "its agent reaches no volumes of other nodes"
	if record := view.Agent(member); record != nil && record.VolumeSharing != nil {
		why = Sharing(record, encrypted).ReachProblem
	}
	if why == "" {
		return ""
	}
	return fmt.Sprintf("volume %q lies on node %s, and node %s can't reach it (%s)", volume, lies, member, why)
}
