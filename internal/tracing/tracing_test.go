package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// kept gathers what a tracer gives.
type kept struct {
	mu    sync.Mutex
	spans []Span
}

func (k *kept) add(s Span) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spans = append(k.spans, s)
}

func (k *kept) named(t *testing.T, name string) Span {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	at := slices.IndexFunc(k.spans, func(s Span) bool { return s.Name == name })
	if at < 0 {
		t.Fatalf("there is no span %q in %+v", name, k.spans)
	}
	return k.spans[at]
}

func open(t *testing.T) (*Tracer, *kept) {
	t.Helper()
	k := &kept{}
	tracer, err := Open(t.Context(), "test", k.add)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return tracer, k
}

func TestStagesOfOneClusterMadeInTwoProcessesAreOneTrace(t *testing.T) {
	server, said := open(t)
	agent, told := open(t)
	began := time.Now()
	ctx, outer := Stage(agent.In(t.Context(), "u1", Create, "u1.c-0.1"), "start")
	_, inner := Stage(ctx, "attach")
	inner(errors.New("no such bridge"))
	outer(nil)
	server.Whole("u1", Create, "", began, began.Add(time.Second))
	server.Whole("u1", Create, "place", began, began.Add(time.Millisecond))

	root, start, attach, place := said.named(t, "create"), told.named(t, "start"), told.named(t, "attach"), said.named(t, "place")
	if root.Parent != "" || root.ID != RootID("u1", Create) || root.Ended.Sub(root.Began) != time.Second || root.Cluster != "u1" {
		t.Errorf("the root is %+v", root)
	}
	if start.Parent != root.ID || place.Parent != root.ID || attach.Parent != start.ID {
		t.Errorf("the parents of start, place and attach are %q, %q and %q; the root is %q, start %q", start.Parent, place.Parent, attach.Parent, root.ID, start.ID)
	}
	if start.Assignment != "u1.c-0.1" || start.Cluster != "u1" || ClusterOf(start.Assignment) != "u1" {
		t.Errorf("start is %+v, want it of member u1.c-0.1", start)
	}
	if start.Failure != "" || attach.Failure != "no such bridge" {
		t.Errorf("start failed with %q, attach with %q", start.Failure, attach.Failure)
	}
	if attach.Began.Before(start.Began) || attach.Ended.After(start.Ended) {
		t.Errorf("attach, from %s to %s, is not within start, from %s to %s", attach.Began, attach.Ended, start.Began, start.Ended)
	}
	if RootID("u1", Create) == RootID("u1", Delete) || RootID("u1", Create) == RootID("u2", Create) {
		t.Error("two roots have one identifier")
	}
}

func TestWithoutATracerAStageIsNothing(t *testing.T) {
	ctx, end := Stage(t.Context(), "start")
	end(nil)
	if ctx != t.Context() {
		t.Error("the context of a stage that nobody traces is another one")
	}
	var none *Tracer
	if none.In(t.Context(), "u1", Create, "") != t.Context() {
		t.Error("no tracer makes another context")
	}
	none.Whole("u1", Create, "", time.Now(), time.Now())
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// received is a collector of spans.
type received struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*otlp.Span
}

func (r *received) Export(_ context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range in.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestSpansGoToTheCollectorThatTheEnvironmentNames(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got, server := &received{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, got)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	t.Setenv(EndpointVariable, "http://"+listener.Addr().String())
	tracer, err := Open(t.Context(), "test", func(Span) {})
	if err != nil {
		t.Fatal(err)
	}
	_, end := Stage(tracer.In(t.Context(), "u1", Create, "u1.c-0.1"), "start")
	end(nil)
	if err := tracer.Close(t.Context()); err != nil { // sends what waits
		t.Fatal(err)
	}
	want := traceOf("u1")
	if len(got.spans) != 1 || got.spans[0].Name != "start" || hex.EncodeToString(got.spans[0].TraceId) != want.String() ||
		hex.EncodeToString(got.spans[0].ParentSpanId) != RootID("u1", Create) {
		t.Errorf("the collector got %v, want the stage start of trace %s", got.spans, want)
	}
}
