package controller

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/state"
)

// journeys are the members of a cluster that go on elsewhere, or may.
type journeys struct {
	held map[string]*api.Assignment
	// to are successors that are held, or may run for all that is proved, by the ID of the member. A held one counts before others.
	to map[string]*api.Assignment
}

// journeysOf follows what is stored only: a successor counts until it is proved clean. One in quarantine is not.
func journeysOf(view *state.View, c *state.Cluster) journeys {
	j := journeys{held: map[string]*api.Assignment{}, to: map[string]*api.Assignment{}}
	for _, q := range view.Quarantines {
		if q.Assignment.ClusterUID == c.UID() {
			j.add(&q.Assignment, false)
		}
	}
	for a := range c.Releasing() {
		j.add(a, false)
	}
	for a := range c.Held() {
		j.add(a, true)
	}
	return j
}

// add takes in an assignment that is not proved clean. Those that are held come last.
func (j journeys) add(a *api.Assignment, held bool) {
	if held {
		j.held[a.ID] = a
	}
	if a.IsSuccessor() {
		j.to[a.From] = a
	}
}

// early reports whether a node is not to hear of a successor yet: what it is to go on from is still being saved on another node.
func (j journeys) early(a *api.Assignment) bool {
	if !a.IsSuccessor() || a.Live {
		return false
	}
	from := j.held[a.From]
	return from != nil && !from.Saved
}

// tell says where a member comes from, or goes to. A member without any successor that may run is to be here, if it is anywhere.
func (j journeys) tell(c *state.Cluster, m *agentstream.Member) {
	a := &m.Assignment
	if from := j.held[a.From]; a.IsSuccessor() && from != nil && from.Node != a.Node {
		m.FromNode, m.Live = from.Node, a.Live
	}
	if !a.IsMember() || a.Stack != api.StackVM || a.Saved {
		return
	}
	switch next := j.to[a.ID]; {
	case next == nil:
		m.TakeBack = true
	case next.Live:
		m.Move = &agentstream.Move{To: next.ID}
		if asked := c.Intent.Move; asked != nil {
			m.Move.Limits = driver.MoveLimits{BytesPerSecond: asked.BytesPerSecond, Downtime: time.Duration(asked.Downtime)}
		}
	default:
		m.Save = m.Save || j.held[next.ID] != nil
	}
}
