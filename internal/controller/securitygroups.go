package controller

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/state"
)

// learnRules takes in the rules of security groups. The networks of a project with a group that changed are put together again if ports there
// have groups.
func (n *carried) learnRules(before, after []*api.SecurityGroup) {
	changed, gone := state.Diff(before, after, func(g *api.SecurityGroup) string { return g.Name })
	projects := map[string]bool{}
	for _, g := range gone {
		delete(n.rules, g.Name)
		projects[projectOr(g.Project)] = true
	}
	for _, g := range changed {
		n.rules[g.Name] = g.Rules
		projects[projectOr(g.Project)] = true
	}
	for uid, clusters := range n.ends {
		for _, on := range clusters {
			if projects[projectOr(on.network.Project)] && on.guarded() {
				n.changed[uid] = true
			}
		}
	}
}

// guarded reports whether any of a cluster's ports on a network has security groups.
func (on ends) guarded() bool {
	for _, e := range on.byNode {
		if len(e.guarded) > 0 {
			return true
		}
	}
	return false
}

// guardedOn returns the ports with security groups on a network, by their IDs.
func (n *carried) guardedOn(uid string) []portgroups.Port {
	var ports []portgroups.Port
	for _, on := range n.ends[uid] {
		for _, e := range on.byNode {
			ports = append(ports, e.guarded...)
		}
	}
	slices.SortFunc(ports, func(a, b portgroups.Port) int { return cmp.Compare(a.ID, b.ID) })
	return ports
}

// groupsOf returns the share of the security groups of a network's ports, nil if no port has any. Groups that nodes can't enforce are an error:
// a node would refuse all its networks for them.
func (n *carried) groupsOf(uid string) (*agentstream.Share, error) {
	ports := n.guardedOn(uid)
	var network api.Network
	for _, on := range n.ends[uid] {
		network = on.network
	}
	if len(ports) == 0 {
		return nil, nil //nolint:nilnil // no port has groups
	}
	groups, err := portgroups.Of(ports, n.beyond(uid), func(name string) []string { return n.rules[state.SecurityGroupName(network.Project, name)] })
	if err != nil {
		return nil, err
	}
	if err := fabric.Validate([]fabric.Network{{Network: network, Groups: groups}}); err != nil {
		return nil, err
	}
	share, err := agentstream.NewGroups(network.Index, groups)
	if err != nil {
		return nil, err
	}
	if was := n.merged[uid].groups; share.Same(was) {
		return was, nil
	}
	return share, nil
}

// projectOr is the name of a project, whose default may be left unsaid.
func projectOr(project string) string {
	if project == "" {
		return api.DefaultProject
	}
	return project
}
