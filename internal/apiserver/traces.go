package apiserver

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// Traces are the traces of recent clusters.
type Traces interface {
	// Newest returns the trace of the newest cluster of a name, once what was stored by a revision is part of it.
	Newest(ctx context.Context, name string, revision int64) (tracing.Trace, bool, error)
}

// clusterTrace tells where the time went when a cluster was made or deleted. It may be gone by now.
func (s *Server) clusterTrace(ctx context.Context, in *byName) (*body[api.Trace], error) {
	full, err := resolve(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	trace, found, err := s.cfg.Traces.Newest(ctx, full, s.cfg.Reader.View().Revision)
	if err != nil {
		return nil, s.asFailure(ctx, err)
	}
	if !found {
		if s.cfg.Reader.View().Cluster(full) == nil {
			return nil, noCluster(in.Name)
		}
		return nil, fail(codeNoTrace, "no trace of cluster %q is kept: it was made before this server started, or many others were made since", in.Name)
	}
	_, name := tenancy.Split(trace.Cluster)
	out := api.Trace{Cluster: name, UID: trace.UID, Spans: []api.TraceSpan{}}
	for i := range trace.Spans {
		span := &trace.Spans[i]
		out.Spans = append(out.Spans, api.TraceSpan{
			ID: span.ID, Parent: span.Parent, Name: span.Name, Node: span.Node, Member: span.Member, Began: span.Began, Seconds: span.Ended.Sub(span.Began).Seconds(),
			Failure: span.Failure,
		})
	}
	return &body[api.Trace]{out}, nil
}
