package apiserver

import (
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// requestedPrefix6 reads the IPv6 prefix of a request; not valid when there is none.
func (s *Server) requestedPrefix6(req api.NetworkRequest, src *manifest.Source) (netip.Prefix, error) {
	if req.Prefix6 == "" && !src.Has("prefix6") {
		return netip.Prefix{}, nil
	}
	prefix, err := netip.ParsePrefix(req.Prefix6)
	switch {
	case err != nil:
		prefix = netip.Prefix{}
		err = fmt.Errorf("%q is not a prefix: give one such as fd12:3456:789a:1::/64", req.Prefix6)
	case src.Has("ipv6") && !req.IPv6:
		err = fmt.Errorf("%s contradicts ipv6: false; omit one of them", req.Prefix6)
	default:
		err = s.cfg.Pool6.CheckSubnet(prefix)
	}
	if err != nil {
		return prefix, failFields(codeInvalidRequest, api.FieldProblem{Location: "prefix6", Line: src.Line("prefix6"), Value: req.Prefix6, Message: err.Error()})
	}
	return prefix, nil
}

// subnet6IsFree refuses an IPv6 subnet that another network has or is to get.
func subnet6IsFree(p tenancy.Principal, view *state.View, prefix netip.Prefix) error {
	if !prefix.IsValid() {
		return nil
	}
	for _, in := range view.NetworkIntents {
		if in.Prefix6 == prefix {
			return subnetTaken(prefix, in.Prefix6, seesProject(p, in.Project), api.ProjectNetwork(in.Name))
		}
	}
	for _, n := range view.Networks {
		if n.Prefix6 == prefix {
			return subnetTaken(prefix, n.Prefix6, n.OfProject() && seesProject(p, n.Project), n.Name)
		}
	}
	return nil
}
