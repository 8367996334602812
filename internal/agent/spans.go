package agent

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// tracerPatience bounds how long the agent's end waits for a collector of spans.
const tracerPatience = 2 * time.Second

func (a *Agent) closeTracer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracerPatience)
	defer cancel()
	if err := a.tracer.Close(ctx); err != nil {
		a.cfg.Log.WarnContext(ctx, "not all spans were sent to the collector", "error", err)
	}
}

// traced is a context in which stages are those of a member that is made or ended.
func (a *Agent) traced(ctx context.Context, assignment string, root tracing.Root) context.Context {
	return a.tracer.In(ctx, tracing.ClusterOf(assignment), root, assignment)
}

// rootOf reports whether what is done to a member now is part of its cluster's creation or of its deletion.
func rootOf(m *memberState) tracing.Root {
	if m.want == nil || m.want.Release {
		return tracing.Delete
	}
	return tracing.Create
}

// traceNetworks records for each port that networks have or no longer have how long that took.
func (a *Agent) traceNetworks(ctx context.Context, before, after []fabric.Network, began time.Time) {
	had, have := portIDs(before), portIDs(after)
	for id := range have {
		if !had[id] {
			_, end := tracing.StageSince(a.traced(ctx, fabric.AssignmentOf(id), tracing.Create), "network", began)
			end(nil)
		}
	}
	for id := range had {
		if !have[id] {
			_, end := tracing.StageSince(a.traced(ctx, fabric.AssignmentOf(id), tracing.Delete), "network", began)
			end(nil)
		}
	}
}

func portIDs(networks []fabric.Network) map[string]bool {
	ids := map[string]bool{}
	for i := range networks {
		for _, p := range networks[i].Ports {
			ids[p.ID] = true
		}
	}
	return ids
}

// trace queues a span for the server. When the queue is full, the span is dropped.
func (o *outbox) trace(s tracing.Span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.spans) < agentstream.MaxSpans {
		o.spans = append(o.spans, s)
	}
}

// takeSpans empties the queue and returns it as the server reads it.
func (o *outbox) takeSpans(now time.Time) []agentstream.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	told := make([]agentstream.Span, 0, len(o.spans))
	for _, s := range o.spans {
		told = append(told, agentstream.Span{
			ID: s.ID, Parent: s.Parent, AssignmentID: s.Assignment, Name: s.Name, Failure: s.Failure,
			Seconds: s.Ended.Sub(s.Began).Seconds(), AgoSeconds: now.Sub(s.Ended).Seconds(),
		})
	}
	o.spans = nil
	return told
}

// sendSpans sends the queued spans.
func (a *Agent) sendSpans(stream *agentstream.ClientConn) error {
	if spans := a.outbox.takeSpans(time.Now()); len(spans) > 0 {
		return stream.Send(agentstream.Up{Spans: spans})
	}
	return nil
}

// traceReady records the time from a member's start until it could be reached. The member may report that before the driver's call returns, so the
// stage begins with the call.
func (a *Agent) traceReady(ctx context.Context, m *memberState, at time.Time) {
	if m.ready || m.startedAt.IsZero() || at.Before(m.startedAt) {
		return
	}
	_, end := tracing.StageSince(a.traced(ctx, m.id, tracing.Create), "reachable", m.startedAt)
	end(nil)
	m.startedAt = time.Time{}
}
