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

// rootOf is what is done to a member serves: it is ended, or made.
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

// trace keeps a span until it is told. What nobody takes for long is dropped.
func (o *outbox) trace(s tracing.Span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.spans) < agentstream.MaxSpans {
		o.spans = append(o.spans, s)
	}
}

// takeSpans returns what is to be told, once.
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

// sendSpans tells what stages have ended since it was told last.
func (a *Agent) sendSpans(stream *agentstream.ClientConn) error {
	if spans := a.outbox.takeSpans(time.Now()); len(spans) > 0 {
		return stream.Send(agentstream.Up{Spans: spans})
	}
	return nil
}

// traceReady records how long a member that was started took until it could be reached. Its word may come before the driver's: so this begins with
// the start.
func (a *Agent) traceReady(ctx context.Context, m *memberState, at time.Time) {
	if m.ready || m.startedAt.IsZero() || at.Before(m.startedAt) {
		return
	}
	_, end := tracing.StageSince(a.traced(ctx, m.id, tracing.Create), "reachable", m.startedAt)
	end(nil)
	m.startedAt = time.Time{}
}
