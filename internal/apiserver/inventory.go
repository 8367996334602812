package apiserver

import (
	"context"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func (s *Server) listNodes(context.Context, *struct{}) (*body[api.List[api.Node]], error) {
	return &body[api.List[api.Node]]{api.List[api.Node]{Items: joinNodes(s.cfg.Reader.View(), s.cfg.Live)}}, nil
}

func (s *Server) getNode(_ context.Context, in *byName) (*body[api.Node], error) {
	for _, n := range joinNodes(s.cfg.Reader.View(), s.cfg.Live) {
		if n.Name == in.Name {
			return &body[api.Node]{n}, nil
		}
	}
	return nil, fail(codeNoNode, "there is no node %q; 'nearmetal node list' shows those that have ever connected", in.Name)
}

func (s *Server) listEnvironments(context.Context, *struct{}) (*body[api.List[api.Environment]], error) {
	return &body[api.List[api.Environment]]{api.List[api.Environment]{Items: joinEnvironments(s.cfg.Reader.View())}}, nil
}

func (s *Server) getEnvironment(_ context.Context, in *byName) (*body[api.Environment], error) {
	for _, e := range joinEnvironments(s.cfg.Reader.View()) {
		if e.Name == in.Name {
			return &body[api.Environment]{e}, nil
		}
	}
	return nil, fail(codeNoEnvironment, "there is no environment %q; 'nearmetal env list' shows those that nodes report", in.Name)
}

// joinEnvironments gathers the environments from what the nodes report of them, by name. It is pure.
func joinEnvironments(v *state.View) []api.Environment {
	all := []api.Environment{}
	index := map[string]int{}
	for _, n := range v.Nodes {
		for _, on := range n.Environments {
			i, ok := index[on.Name]
			if !ok {
				i = len(all)
				index[on.Name] = i
				all = append(all, api.Environment{Name: on.Name, Stacks: []api.Stack{}, Nodes: []api.EnvironmentNode{}})
			}
			e := &all[i]
			if e.Description == "" {
				e.Description = on.Description
			}
			for _, stack := range on.Stacks {
				if !slices.Contains(e.Stacks, stack) {
					e.Stacks = append(e.Stacks, stack)
				}
			}
			e.Nodes = append(e.Nodes, api.EnvironmentNode{Node: n.Name, OK: on.OK, Digest: on.Digest, Problems: on.Problems})
		}
	}
	slices.SortFunc(all, func(a, b api.Environment) int { return strings.Compare(a.Name, b.Name) })
	return all
}
