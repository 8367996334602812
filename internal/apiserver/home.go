package apiserver

import (
	"context"
	"errors"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Homes counts what the shared homes of clusters hold, by asking the agents of their nodes.
type Homes interface {
	HomeUsage(ctx context.Context, node, memberID string) (api.HomeUsage, error)
}

// maxHomeNodes is how many nodes are asked about one home: all nodes of a cluster see the same one.
const maxHomeNodes = 3

// clusterHome counts the files of a cluster's shared home that are deleted with it.
func (s *Server) clusterHome(ctx context.Context, in *byName) (*body[api.HomeUsage], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	if c.Record == nil || c.Record.PlacedAt == nil {
		return &body[api.HomeUsage]{}, nil // a home is made with the first member
	}
	if keepsHome(&c.Intent.Spec) {
		return &body[api.HomeUsage]{}, nil // nothing of it is deleted with the cluster
	}
	failure := errors.New("none of its members is on a node now")
	var asked []string
	for a := range c.Held() {
		if !a.IsMember() || slices.Contains(asked, a.Node) {
			continue
		}
		usage, err := s.cfg.Homes.HomeUsage(ctx, a.Node, a.ID)
		if err == nil {
			return &body[api.HomeUsage]{usage}, nil
		}
		failure = err
		if asked = append(asked, a.Node); len(asked) == maxHomeNodes {
			break
		}
	}
	return nil, fail(codeHomeUnknown, "the content of the home of cluster %q is unknown: %v", in.Name, failure)
}
