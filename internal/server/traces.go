package server

import (
	"context"
	"math"
	"regexp"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// longestSpan bounds what a node says of how long a stage took, and how long ago that was.
const longestSpan = time.Hour

// tracerPatience bounds how long the server's end waits for a collector of spans.
const tracerPatience = 2 * time.Second

func (s *site) closeTracer() error {
	ctx, cancel := context.WithTimeout(context.Background(), tracerPatience)
	defer cancel()
	return s.tracer.Close(ctx)
}

// spanID is an OpenTelemetry span identifier.
var spanID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// keepSpans returns what keeps the spans that a node tells, as far as they are of its own members.
func keepSpans(book *tracing.Book, view func() *state.View, now func() time.Time) func(node string, spans []agentstream.Span) {
	return func(node string, spans []agentstream.Span) {
		at, members := now(), membersOn(view(), node)
		for i := range spans {
			told := &spans[i]
			a := members[told.AssignmentID]
			if a == nil || !spanID.MatchString(told.ID) || !spanID.MatchString(told.Parent) {
				continue
			}
			ended := at.Add(-seconds(told.AgoSeconds))
			book.Add(tracing.Placed{
				Span: tracing.Span{
					ID: told.ID, Parent: told.Parent, Cluster: a.ClusterUID, Assignment: a.ID, Name: manifest.Text(told.Name),
					Began: ended.Add(-seconds(told.Seconds)), Ended: ended, Failure: manifest.Text(told.Failure),
				},
				Node: node, Member: a.Member,
			})
		}
	}
}

// membersOn are the assignments on a node, those that are being released included, by ID.
func membersOn(view *state.View, node string) map[string]*api.Assignment {
	all := map[string]*api.Assignment{}
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.All() {
			if a.Node == node {
				all[a.ID] = a
			}
		}
	}
	return all
}

// seconds is a duration within bounds.
func seconds(n float64) time.Duration {
	if math.IsNaN(n) {
		return 0
	}
	return time.Duration(min(max(n, 0), longestSpan.Seconds()) * float64(time.Second))
}
