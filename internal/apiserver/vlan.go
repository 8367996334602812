package apiserver

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// intendedTechnology is what is stored of a requested technology: nothing for the default.
func intendedTechnology(req api.NetworkRequest) api.Technology {
	if req.Technology == api.TechnologyVXLAN {
		return ""
	}
	return req.Technology
}

// vlanFits refuses a network on a VLAN that the site can't have.
func (s *Server) vlanFits(p tenancy.Principal, view *state.View, req api.NetworkRequest, src *manifest.Source) error {
	if req.Technology != api.TechnologyVLAN {
		return nil
	}
	if err := s.hasVLANs(); err != nil {
		return err
	}
	pool := s.cfg.VLANs
	if req.VLAN != 0 && !pool.Has(req.VLAN) {
		return failFields(codeInvalidRequest, api.FieldProblem{
			Location: "vlan", Line: src.Line("vlan"), Value: strconv.Itoa(req.VLAN),
			Message: fmt.Sprintf("VLAN %d is not in the site's pool, %s: choose one of it, or omit it to get a free one", req.VLAN, pool),
		})
	}
	if err := vlanIsFree(p, view, req.VLAN, pool); err != nil {
		return err
	}
	if len(s.cfg.Offers.Switches) > 0 {
		return nil
	}
	for agent := range view.Agents() {
		if agent.Trunk.Usable() || slices.ContainsFunc(agent.Adapters, func(a api.Adapter) bool { return a.LinkLayer == api.LinkEthernet }) {
			return nil
		}
	}
	return fail(codeNoVLANs, "no node has a usable trunk, nor an Ethernet adapter for members: start agents with --trunk-interface or --fabric; "+
		"'nearmetal node check NODE' says what is wrong with a node's")
}

// vlanIsFree refuses a VLAN that another network has or asks for, and any if all are in use. It names the network only to principals that may know of it.
func vlanIsFree(p tenancy.Principal, view *state.View, vid int, pool api.VLANPool) error {
	users := numberUsers(view, func(n *api.Network) int { return n.VLAN }, func(in *api.NetworkIntent) int { return in.VLAN })
	if vid == 0 {
		for v := pool.First; v <= pool.Last; v++ {
			if users[v] == (numberUser{}) {
				return nil
			}
		}
		return fail(codeNoVLANs, "all VLANs of the site's pool, %s, are in use: delete a network, or a cluster, on one", pool)
	}
	if user := users[vid]; user != (numberUser{}) {
		return fail(codeVLANTaken, "VLAN %d is in use by %s; choose another VLAN, or omit it to get a free one", vid, user.named(p))
	}
	return nil
}

// numberUser is the network that has a number of the site's pools, or asks for it: one of a project, or of a cluster; the zero value is none.
type numberUser struct {
	project *api.NetworkIntent
	cluster *api.Network
}

// numberUsers returns the networks that have numbers, by these, or ask for them and have none yet.
func numberUsers(view *state.View, has func(*api.Network) int, asks func(*api.NetworkIntent) int) map[int]numberUser {
	users := map[int]numberUser{}
	for _, in := range view.NetworkIntents {
		if n := view.Network(in.UID); n != nil && has(n) != 0 && n.Refused == "" {
			users[has(n)] = numberUser{project: in}
		} else if n == nil && asks(in) != 0 {
			users[asks(in)] = numberUser{project: in}
		}
	}
	for _, n := range view.Networks {
		if !n.OfProject() && has(n) != 0 {
			users[has(n)] = numberUser{cluster: n}
		}
	}
	return users
}

// named names the network for a principal, as far as that may know of it.
func (u numberUser) named(p tenancy.Principal) string {
	switch {
	case u.project != nil && seesProject(p, u.project.Project):
		_, own := tenancy.Split(u.project.Name)
		return fmt.Sprintf("network %q of project %q", api.ProjectNetwork(own), projectOr(u.project.Project))
	case u.cluster != nil && seesCluster(p, u.cluster.Cluster):
		return fmt.Sprintf("cluster %q", shownName(p, u.cluster.Cluster))
	default:
		return "another network"
	}
}

// trunkProblem returns which node's trunk has no room for an MTU, "" for none.
func trunkProblem(view *state.View, mtu int) string {
	var least *api.NodeRecord
	for agent := range view.Agents() {
		if agent.Trunk.Usable() && (least == nil || agent.Trunk.MTU < least.Trunk.MTU) {
			least = agent
		}
	}
	if least == nil || mtu <= least.Trunk.MTU {
		return ""
	}
	return fmt.Sprintf("%d bytes do not fit node %s: its trunk %s has an MTU of %d bytes; give at most that, or raise the MTU of that node's trunk",
		mtu, least.Name, least.Trunk.Interface, least.Trunk.MTU)
}
