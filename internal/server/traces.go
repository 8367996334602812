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

// keepSpans returns a function that keeps the spans from a node, as far as they belong to the creation or the deletion of its own members. What
// happens to a cluster in between, such as a member that is replaced, is part of neither.
func keepSpans(book *tracing.Book, view func() *state.View, now func() time.Time) func(node string, spans []agentstream.Span) {
	return func(node string, spans []agentstream.Span) {
		at, members := now(), membersOn(view(), node)
		for i := range spans {
			told := &spans[i]
			held, own := members[told.AssignmentID]
			if !own || !spanID.MatchString(told.ID) || !spanID.MatchString(told.Parent) {
				continue
			}
			ended := at.Add(-seconds(told.AgoSeconds))
			began := ended.Add(-seconds(told.Seconds))
			if held.inBetween(began) {
				continue
			}
			a := held.assignment
			book.Add(tracing.Placed{
				Span: tracing.Span{
					ID: told.ID, Parent: told.Parent, Cluster: a.ClusterUID, Assignment: a.ID, Name: manifest.Text(told.Name),
					Began: began, Ended: ended, Failure: manifest.Text(told.Failure),
				},
				Node: node, Member: a.Member,
			})
		}
	}
}

// held is an assignment with its cluster.
type held struct {
	assignment *api.Assignment
	cluster    *state.Cluster
}

// inBetween reports whether the cluster was ready by a time, and is not being deleted.
func (h held) inBetween(at time.Time) bool {
	record := h.cluster.Record
	return record != nil && record.ReadyAt != nil && at.After(*record.ReadyAt) && h.cluster.Intent.DeleteRequestedAt == nil
}

// membersOn returns the assignments on a node by ID, including those that are being released.
func membersOn(view *state.View, node string) map[string]held {
	all := map[string]held{}
	for _, c := range view.ClustersOnNode(node) {
		for a := range c.All() {
			if a.Node == node {
				all[a.ID] = held{a, c}
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
