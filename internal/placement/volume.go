package placement

import (
	"cmp"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// A volume lies on one node. Members of a group with volumes go there, or to nodes that reach it there, where its node serves it to others.

// volumeNodes tells which nodes have the volumes of a group, or reach them.
type volumeNodes struct {
	// wanted: the group has volumes. nowhere: no node has all of them.
	wanted, nowhere bool
	// home and other are the nodes where they lie, -1 for no node; served tells that others reach what lies there.
	home, other             int32
	homeServed, otherServed bool
	// homeReach and otherReach tell by platform whether a node reaches what lies there.
	homeReach, otherReach []bool
}

func (v *View) volumeNodes(p api.VolumePlace) volumeNodes {
	n := volumeNodes{wanted: p != (api.VolumePlace{}), home: -1, other: -1, homeServed: p.Problem == "", otherServed: p.OtherProblem == ""}
	if !n.wanted {
		return n
	}
	n.home = v.nodeHere(p.Node)
	if p.Other != "" {
		n.other = v.nodeHere(p.OtherNode)
	}
	n.nowhere = p.Unplaced != "" || n.home < 0 || p.Other != "" && n.other < 0
	reach := func(block bool) []bool {
		return v.platforms.matching(func(q platform) bool { return p.Machines || block && q.reachesBlocks || !block && q.reachesVolumes })
	}
	n.homeReach = reach(p.Block)
	if p.Other != "" {
		n.otherReach = reach(p.OtherBlock)
	}
	return n
}

// nodeHere is a node of the site, -1 for one that it does not have.
func (v *View) nodeHere(name string) int32 {
	if id, ok := v.ids[name]; ok && v.nodes[id].availability != Absent {
		return id
	}
	return -1
}

// has reports whether members on a node have the volumes.
func (n *volumeNodes) has(id int32, r *row) bool {
	if !n.wanted {
		return true
	}
	at := func(node int32, served bool, reach []bool) bool {
		return id == node || served && r.platform >= 0 && reach[r.platform] // a node that is not there has no platform
	}
	return !n.nowhere && at(n.home, n.homeServed, n.homeReach) && (n.other < 0 || at(n.other, n.otherServed, n.otherReach))
}

// allAtVolumes puts a whole group where its volumes lie, if there is room: nil where there is not, or where they lie on several nodes.
func (f *finder) allAtVolumes(size int) []nodeCount {
	n := &f.volumes
	if !n.wanted || n.nowhere || n.other >= 0 {
		return nil
	}
	if members, _, _ := f.room(n.home); int(members) < size {
		return nil
	}
	return []nodeCount{{id: n.home, members: int32(size)}}
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

// OnVolumes says for people where members with volumes go: " on node n1, where volume "data" lies", and "" where they may go elsewhere.
func OnVolumes(p api.VolumePlace) string {
	if p.Node == "" || p.Other != "" || p.Problem == "" {
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

// hasVolumes reports whether members on a node have the volumes of a group.
func (v *View) hasVolumes(id int32, p api.VolumePlace) bool {
	here := v.nodeHere(p.Node) >= 0 && (p.Other == "" || v.nodeHere(p.OtherNode) >= 0)
	return here && p.Unplaced == "" && v.unreachable(id, p) == ""
}

// unreachable is why the volumes of a group are not reached from a node where they don't lie, "" where they are.
func (v *View) unreachable(id int32, p api.VolumePlace) string {
	for _, at := range []struct {
		node, problem string
		block         bool
	}{{p.Node, p.Problem, p.Block}, {p.OtherNode, p.OtherProblem, p.OtherBlock}} {
		switch {
		case at.node == "" || at.node == v.nodes[id].record.Name:
		case at.problem != "":
			return fmt.Sprintf("node %s does not serve it: %s", at.node, at.problem)
		case !p.Machines:
			if why := reachProblem(&v.nodes[id].record, at.block); why != "" {
				return fmt.Sprintf("node %s can't reach it: %s", v.nodes[id].record.Name, why)
			}
		}
	}
	return ""
}

// reachProblem is why members of a node can't have volumes of other nodes, or block volumes, "" where they can.
func reachProblem(record *api.NodeRecord, block bool) string {
	switch sharing := record.VolumeSharing; {
	case sharing == nil:
		return "its agent reaches no volumes of other nodes"
	case block && sharing.Blocks:
		return ""
	case block:
		return cmp.Or(sharing.ReachProblem, "its agent reaches no block volumes of other nodes")
	default:
		return sharing.ReachProblem
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
	}
	for _, at := range []struct{ volume, node string }{{p.Volume, p.Node}, {p.Other, p.OtherNode}} {
		if at.node != "" && d.v.nodeHere(at.node) < 0 {
			return []string{fmt.Sprintf("volume %q lies on node %s, which this site does not have", at.volume, at.node)}
		}
	}
	if p.Problem != "" && p.OtherProblem != "" {
		return []string{fmt.Sprintf("volume %q lies on node %s and volume %q on node %s, and no node has both: %s", p.Volume, p.Node, p.Other, p.OtherNode, p.Problem)}
	}
	home := d.v.ids[p.Node]
	if availability := d.v.nodes[home].availability; p.Problem != "" && r.Constraint == ConstraintDown && !stateOf(availability).open(r.Need.Stack) {
		return []string{fmt.Sprintf("waits for node %s, where volume %q lies", p.Node, p.Volume)}
	}
	if p.Problem != "" {
		return []string{fmt.Sprintf("volume %q lies on node %s, which does not serve it to others: %s", p.Volume, p.Node, p.Problem)}
	}
	for _, id := range d.v.order {
		if why := d.v.unreachable(id, p); why != "" && d.v.nodes[id].availability != Absent {
			return []string{fmt.Sprintf("volume %q lies on node %s, and not every other node reaches it: %s", p.Volume, p.Node, why)}
		}
	}
	return nil
}
