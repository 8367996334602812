package apiserver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// partitionFits refuses a network on InfiniBand that the site can't have. It adds the cell where the site has only one.
func (s *Server) partitionFits(p tenancy.Principal, view *state.View, req *api.NetworkRequest, src *manifest.Source) error {
	if req.Technology != api.TechnologyInfiniBand {
		return nil
	}
	pool, cells := s.cfg.PKeys, slices.Sorted(slices.Values(s.cfg.Offers.Fabrics))
	switch {
	case pool == (api.PKeyPool{}):
		return fail(codeNoInfiniBand, "this site has no partition keys for networks: start its servers with --pkey-pool FIRST-LAST")
	case len(cells) == 0:
		return fail(codeNoInfiniBand, "this site's servers control no InfiniBand fabric")
	case req.Cell == "" && len(cells) == 1:
		req.Cell = cells[0]
	case req.Cell == "":
		return s.cellProblem(req, src, "is missing; the site has several: "+strings.Join(cells, ", "))
	case !slices.Contains(cells, req.Cell):
		return s.cellProblem(req, src, fmt.Sprintf("%q is no cell of an InfiniBand fabric that this site controls; those are: %s", req.Cell, strings.Join(cells, ", ")))
	}
	if req.PKey != 0 && !pool.Has(req.PKey) {
		return failFields(codeInvalidRequest, api.FieldProblem{
			Location: "pkey", Line: src.Line("pkey"), Value: api.PKeyText(req.PKey),
			Message: fmt.Sprintf("partition key %s is not in the site's pool, %s: choose one of it, or omit it to get a free one", api.PKeyText(req.PKey), pool),
		})
	}
	return pkeyIsFree(p, view, req.PKey, pool)
}

func (s *Server) cellProblem(req *api.NetworkRequest, src *manifest.Source, problem string) error {
	return failFields(codeInvalidRequest, api.FieldProblem{Location: "cell", Line: src.Line("cell"), Value: req.Cell, Message: problem})
}

// pkeyIsFree refuses a partition key that another network has or asks for, and any if all are in use. It names the network only to
// principals that may know of it.
func pkeyIsFree(p tenancy.Principal, view *state.View, pkey int, pool api.PKeyPool) error {
	users := map[int]*api.NetworkIntent{}
	for _, in := range view.NetworkIntents {
		switch n := view.Network(in.UID); {
		case n != nil && n.PKey != 0 && n.Refused == "":
			users[n.PKey] = in
		case n == nil && in.PKey != 0:
			users[in.PKey] = in
		}
	}
	indexes := map[int]bool{} // ports of whole nodes are in partitions by these
	for _, n := range view.Networks {
		indexes[n.Index] = true
	}
	if pkey == 0 {
		for k := pool.First; k <= pool.Last; k++ {
			if users[k] == nil && !indexes[k] {
				return nil
			}
		}
		return fail(codeNoInfiniBand, "all partition keys of the site's pool, %s, are in use: delete a network on InfiniBand", pool)
	}
	const another = "; choose another partition key, or omit it to get a free one"
	in := users[pkey]
	switch {
	case in == nil && indexes[pkey]:
		return fail(codePKeyTaken, "partition key %s is in use for ports of whole nodes"+another, api.PKeyText(pkey))
	case in == nil:
		return nil
	case seesProject(p, in.Project):
		_, own := tenancy.Split(in.Name)
		return fail(codePKeyTaken, "partition key %s is in use by network %q of project %q"+another, api.PKeyText(pkey), api.ProjectNetwork(own), projectOr(in.Project))
	default:
		return fail(codePKeyTaken, "partition key %s is in use by another network"+another, api.PKeyText(pkey))
	}
}
