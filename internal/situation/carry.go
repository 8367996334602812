package situation

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
)

// CarriedFor returns the member that a node may fetch for a successor of its own, by what was committed. Nobody else may: a state is a member's
// whole memory, with its keys.
func CarriedFor(view *state.View, r agentstream.CarryRequest) (monitor.Carried, error) {
	for _, c := range view.ClustersOnNode(r.Node) {
		next := held(c, r.Successor)
		if next == nil || next.Node != r.Node || !next.IsSuccessor() {
			continue
		}
		from := held(c, next.From)
		switch {
		case from == nil || !from.IsMember():
			return monitor.Carried{}, fmt.Errorf("member %s, which %s goes on from, is no longer held", next.From, next.ID)
		case from.Node == r.Node:
			return monitor.Carried{}, fmt.Errorf("member %s is on this very node", from.ID)
		case from.Saved != (r.Target == agentstream.TargetState):
			return monitor.Carried{}, fmt.Errorf("the %s of member %s can't be fetched: its record says saved: %t", r.Target, from.ID, from.Saved)
		}
		return monitor.Carried{Node: from.Node, ID: from.ID}, nil
	}
	return monitor.Carried{}, fmt.Errorf("node %q has no assignment %s that is to go on from another", r.Node, r.Successor)
}

// held returns the assignment of a cluster with this ID that is held, nil when there is none.
func held(c *state.Cluster, id string) *api.Assignment {
	for a := range c.Held() {
		if a.ID == id {
			return a
		}
	}
	return nil
}
