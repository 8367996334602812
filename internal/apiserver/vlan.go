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
	pool := s.cfg.VLANs
	switch {
	case pool == (api.VLANPool{}):
		return fail(codeNoVLANs, "this site has no VLANs for networks: start its servers with --vlan-pool FIRST-LAST")
	case s.cfg.Encrypted:
		return fail(codeNoVLANs, "the site's underlay is encrypted, and WireGuard carries no VLANs: omit the technology, or start the servers without --encrypt-underlay")
	case req.VLAN != 0 && !pool.Has(req.VLAN):
		return failFields(codeInvalidRequest, api.FieldProblem{
			Location: "vlan", Line: src.Line("vlan"), Value: strconv.Itoa(req.VLAN),
			Message: fmt.Sprintf("VLAN %d is not in the site's pool, %s: choose one of it, or omit it to get a free one", req.VLAN, pool),
		})
	}
	if err := vlanIsFree(p, view, req.VLAN, pool); err != nil {
		return err
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
	users := map[int]*api.NetworkIntent{}
	for _, in := range view.NetworkIntents {
		if n := view.Network(in.UID); n != nil && n.VLAN != 0 && n.Refused == "" {
			users[n.VLAN] = in
		} else if n == nil && in.VLAN != 0 {
			users[in.VLAN] = in
		}
	}
	if vid == 0 {
		for v := pool.First; v <= pool.Last; v++ {
			if users[v] == nil {
				return nil
			}
		}
		return fail(codeNoVLANs, "all VLANs of the site's pool, %s, are in use: delete a network on one", pool)
	}
	in := users[vid]
	switch {
	case in == nil:
		return nil
	case seesProject(p, in.Project):
		_, own := tenancy.Split(in.Name)
		return fail(codeVLANTaken, "VLAN %d is in use by network %q of project %q; choose another VLAN, or omit it to get a free one", vid, api.ProjectNetwork(own), projectOr(in.Project))
	default:
		return fail(codeVLANTaken, "VLAN %d is in use by another network; choose another VLAN, or omit it to get a free one", vid)
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
