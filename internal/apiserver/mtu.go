package apiserver

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// mtuFits refuses an MTU that no network can have, or that the underlay of some node leaves no room for.
func mtuFits(view *state.View, req api.NetworkRequest, src *manifest.Source) error {
	if req.MTU == 0 && !src.Has("mtu") {
		return nil
	}
	problem := mtuProblem(view, &api.Network{Technology: cmp.Or(req.Technology, api.TechnologyVXLAN), MTU: req.MTU})
	if problem == "" {
		return nil
	}
	return failFields(codeInvalidRequest, api.FieldProblem{Location: "mtu", Line: src.Line("mtu"), Value: strconv.Itoa(req.MTU), Message: problem})
}

// mtuProblem returns what keeps a network from its MTU. Nodes whose underlay is not known don't count: placement leaves them out.
func mtuProblem(view *state.View, n *api.Network) string {
	if problem := n.MTUProblem(n.MTU); problem != "" {
		return problem
	}
	if n.Technology == api.TechnologyVLAN {
		return trunkProblem(view, n.MTU)
	}
	var least *api.NodeRecord
	for agent := range view.Agents() {
		if agent.UnderlayMTU > 0 && (least == nil || agent.UnderlayMTU < least.UnderlayMTU) {
			least = agent
		}
	}
	if least == nil || n.MTU+n.OverheadBytes() <= least.UnderlayMTU {
		return ""
	}
	const what = "%d bytes do not fit node %s: its underlay has an MTU of %d bytes, of which a tunnel takes %d"
	problem := fmt.Sprintf(what, n.MTU, least.Name, least.UnderlayMTU, n.OverheadBytes())
	if most := least.UnderlayMTU - n.OverheadBytes(); most >= n.SmallestMTU() {
		return problem + fmt.Sprintf("; give at most %d, or raise the MTU of that node's underlay", most)
	}
	return problem + "; raise the MTU of that node's underlay"
}
