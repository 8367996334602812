package apiserver

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// partitionFits refuses a network on InfiniBand that the site can't have. It adds the cell where the site has only one.
func (s *Server) partitionFits(p tenancy.Principal, view *state.View, req *api.NetworkRequest, src *manifest.Source) error {
	if req.Technology != api.TechnologyInfiniBand {
		return nil
	}
	if err := s.hasInfiniBand(); err != nil {
		return err
	}
	cell, problem := s.cellOf(req.Cell)
	if problem != "" {
		return failFields(codeInvalidRequest, api.FieldProblem{Location: "cell", Line: src.Line("cell"), Value: req.Cell, Message: problem})
	}
	pool := s.cfg.PKeys
	req.Cell = cell
	if req.PKey != 0 && !pool.Has(req.PKey) {
		return failFields(codeInvalidRequest, api.FieldProblem{
			Location: "pkey", Line: src.Line("pkey"), Value: api.PKeyText(req.PKey),
			Message: fmt.Sprintf("partition key %s is not in the site's pool, %s: choose one of it, or omit it to get a free one", api.PKeyText(req.PKey), pool),
		})
	}
	if err := pkeyIsFree(p, view, req.PKey, pool); err != nil {
		return err
	}
	return s.fabricTakes(req)
}

// fabricTakes refuses a network that its fabric can't have: the requested partition key may be the operator's. Without a requested one, the leader
// passes over keys that are.
func (s *Server) fabricTakes(req *api.NetworkRequest) error {
	keeper := s.cfg.Fabrics[req.Cell]
	if keeper == nil {
		return nil
	}
	err := keeper.Check([]site.Network{{Number: cmp.Or(req.PKey, s.cfg.PKeys.First), Partition: req.Partition}})
	refusal := (*site.Refusal)(nil)
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refusal):
		return fail(codeNoInfiniBand, "fabric %s takes no networks now: %v", req.Cell, err)
	case refusal.Number == 0:
		return fail(codeInvalidRequest, "fabric %s can't have this network: %v", req.Cell, err)
	case req.PKey == 0:
		return nil
	default:
		return fail(codePKeyTaken, "%v; choose another partition key, or omit it to get a free one", err)
	}
}

// pkeyIsFree refuses a partition key that another network has or asks for, and any if all are in use. It names the network only to
// principals that may know of it.
func pkeyIsFree(p tenancy.Principal, view *state.View, pkey int, pool api.PKeyPool) error {
	users := numberUsers(view, func(n *api.Network) int { return n.PKey }, func(in *api.NetworkIntent) int { return in.PKey })
	indexes := map[int]bool{} // ports of whole nodes are in partitions by these
	for _, n := range view.Networks {
		indexes[n.Index] = true
	}
	if pkey == 0 {
		for k := pool.First; k <= pool.Last; k++ {
			if users[k] == (numberUser{}) && !indexes[k] {
				return nil
			}
		}
		return fail(codeNoInfiniBand, "all partition keys of the site's pool, %s, are in use: delete a network, or a cluster, on InfiniBand", pool)
	}
	const another = "; choose another partition key, or omit it to get a free one"
	switch user := users[pkey]; {
	case user == numberUser{} && indexes[pkey]:
		return fail(codePKeyTaken, "partition key %s is in use for ports of whole nodes"+another, api.PKeyText(pkey))
	case user == numberUser{}:
		return nil
	default:
		return fail(codePKeyTaken, "partition key %s is in use by %s"+another, api.PKeyText(pkey), user.named(p))
	}
}
