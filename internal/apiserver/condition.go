package apiserver

import (
	"context"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

var codeNoCondition = Code{
	"no_network_condition", http.StatusConflict, "The cluster's network can't have a condition",
	"Only what members on the stack container send can have a condition. `detail` has the reason.",
	"Use a cluster whose groups all run on the stack container.",
}

func (s *Server) registerConditions() {
	operation(s, "PUT /v1/clusters/{name}/condition", AccessChange, "set-network-condition", "Set the condition of a cluster's network",
		"What all members send to each other over the cluster's own network, and what they exchange with the outside over it, has a delay, jitter, loss, "+
			"duplication, corruption, reordering and a rate from then on, in place of another condition; new members have it, too. Each packet between two members has the "+
			"condition of its sender: a round trip has the delay twice. `status.condition` shows the progress. It is in force once each member's node has measured it. "+
			"Only members on the stack container have conditions.",
		http.StatusOK, s.setCondition, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeNoCondition)...)
	operation(s, "DELETE /v1/clusters/{name}/condition", AccessChange, "clear-network-condition", "Clear the condition of a cluster's network",
		"What members send goes straight again. `status.condition` shows the progress, and is absent once no member has a condition. A cluster without one stays as it is.",
		http.StatusOK, s.clearCondition, codeNoCluster, codeWrongPhase)
}

func (s *Server) setCondition(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.NetworkCondition](in.body())
	if err != nil {
		return nil, err
	}
	if err := manifest.CheckCondition(req, src); err != nil {
		return nil, failInvalid(err, codeInvalidRequest)
	}
	name := shownName(who(ctx), c.Name())
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := canChangeCondition(name, c); err != nil {
			return err
		}
		if why := lifecycle.ConditionRefused(&intent.Spec); why != "" {
			return fail(codeNoCondition, "the network of cluster %q can have no condition: %s", name, why)
		}
		intent.Condition = &req
		return nil
	})
}

func (s *Server) clearCondition(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name := shownName(who(ctx), c.Name())
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if intent.Condition == nil {
			return nil
		}
		intent.Condition = nil
		return canChangeCondition(name, c)
	})
}

// canChangeCondition refuses another condition to a cluster that is over.
func canChangeCondition(name string, c *state.Cluster) error {
	switch phase := phaseOf(c); {
	case phase == api.ClusterRefused || phase == api.ClusterFailed:
		return fail(codeWrongPhase, "cluster %q is %s, and the condition of its network can't change any more; delete it: nearmetal cluster delete %s", name, phase, name)
	case c.Record != nil && c.Record.ExpiredAt != nil:
		return isExpired(name)
	default:
		return nil
	}
}

// conditionOf is the condition of a cluster's network as its members have it; nil: none.
func conditionOf(c *state.Cluster, seen Observed) *api.NetworkConditionStatus {
	in := &c.Intent
	if in.ConditionNumber == 0 {
		return nil
	}
	members, status := 0, api.NetworkConditionStatus{State: api.ConditionInForce}
	for a := range c.Held() {
		if !a.IsMember() {
			continue
		}
		members++
		number, why := seen.Condition(a)
		phase, _, _ := seen.Node(a.Node)
		switch {
		case phase != api.NodeReady: // what its agent makes ends with the agent
			why = "its node " + a.Node + " is not heard"
		case number == in.ConditionNumber:
			continue
		}
		status.Waiting++
		if why != "" && status.Message == "" {
			status.Message = a.Member + ": " + why
		}
	}
	if in.Condition == nil {
		status.State = api.ConditionClearing
		if status.Waiting == 0 {
			return nil
		}
		return &status
	}
	status.NetworkCondition = *in.Condition
	if status.Waiting > 0 || members == 0 {
		status.State = api.ConditionSetting
	}
	return &status
}
