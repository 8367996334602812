package apiserver

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
)

// Hosts checks the hosts of nodes, by asking their agents.
type Hosts interface {
	CheckHost(ctx context.Context, node string) (api.HostCheck, error)
}

// checkHost has the agent of a node check its host now.
func (s *Server) checkHost(ctx context.Context, in *byName) (*body[api.HostCheck], error) {
	if s.cfg.Reader.View().Agent(in.Name) == nil {
		if _, err := s.getNode(ctx, in); err != nil {
			return nil, err
		}
		return nil, fail(codeHostUnchecked, "no agent of node %q has connected yet, so nothing is known of its host", in.Name)
	}
	found, err := s.cfg.Hosts.CheckHost(ctx, in.Name)
	if err != nil {
		return nil, fail(codeHostUnchecked, "the host can't be checked: %v", err)
	}
	return &body[api.HostCheck]{found}, nil
}
