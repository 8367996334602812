package apiserver

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// mtuFits refuses an MTU that no network can have, or that the underlay of some node leaves no room for.
func (s *Server) mtuFits(view *state.View, req api.NetworkRequest, src *manifest.Source) error {
	if req.MTU == 0 && !src.Has("mtu") {
		return nil
	}
	n := &api.Network{Technology: cmp.Or(req.Technology, api.TechnologyVXLAN), MTU: req.MTU}
	if req.IPv6 || req.Prefix6 != "" {
		n.Prefix6 = netip.PrefixFrom(netip.IPv6Unspecified(), api.Prefix6Bits) // whichever it gets
	}
	overhead := n.OverheadBytes()
	if s.cfg.Encrypted && n.Technology == api.TechnologyVXLAN {
		overhead += api.CipherOverheadBytes
	}
	problem := mtuProblem(view, n, overhead)
	if problem == "" {
		return nil
	}
	return failFields(codeInvalidRequest, api.FieldProblem{Location: "mtu", Line: src.Line("mtu"), Value: strconv.Itoa(req.MTU), Message: problem})
}

// mtuProblem returns what keeps a network from its MTU; overhead is what a tunnel takes of the underlay's packets, in bytes. Nodes whose underlay is not known don't count: placement leaves them out.
func mtuProblem(view *state.View, n *api.Network, overhead int) string {
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
	if least == nil || n.MTU+overhead <= least.UnderlayMTU {
		return ""
	}
	const what = "%d bytes do not fit node %s: its underlay has an MTU of %d bytes, of which a tunnel takes %d"
	problem := fmt.Sprintf(what, n.MTU, least.Name, least.UnderlayMTU, overhead)
	if most := least.UnderlayMTU - overhead; most >= n.SmallestMTU() {
		return problem + fmt.Sprintf("; give at most %d, or raise the MTU of that node's underlay", most)
	}
	return problem + "; raise the MTU of that node's underlay"
}
