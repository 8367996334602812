// Package tracing tells how long each stage of making and ending a cluster took.
//
// Stages are OpenTelemetry spans. The identifiers of a cluster's trace and of its two root spans are derived from the cluster's UID: a server and its
// agents, which share no context, speak of one trace without being told. An agent tells its server of the spans that have ended, and a Book
// keeps them for those who ask. With OTEL_EXPORTER_OTLP_ENDPOINT in its environment each process sends its own spans there, too, as OTLP over gRPC.
//
// A stage must never decide anything: without a tracer it costs a look into the context. Start with Stage, then book.go.
package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// EndpointVariable names the collector that spans are sent to (OpenTelemetry Protocol Exporter specification).
const EndpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"

const scope = "github.com/nearmetal/nearmetal"

// Attributes of spans.
const (
	attributeCluster    = attribute.Key("nearmetal.cluster.uid")
	attributeAssignment = attribute.Key("nearmetal.assignment.id")
)

// Root is what a cluster's stages belong to.
type Root string

// The roots of a cluster's stages.
const (
	Create Root = "create"
	Delete Root = "delete"
)

// Span is a stage that has ended.
type Span struct {
	// ID and Parent are span identifiers, 16 hexadecimal digits; the parent may be one of the cluster's roots.
	ID, Parent string
	// Cluster is the UID of the cluster, Assignment what of it the stage was about, "" for all.
	Cluster, Assignment string
	Name                string
	Began, Ended        time.Time
	// Failure is why the stage failed; empty: it did not.
	Failure string
}

// Tracer makes the spans of one process. The zero value makes none.
type Tracer struct {
	provider *sdk.TracerProvider
}

// Open returns a tracer that gives every span that ends to sink, which must not block. Service names the process to a collector.
func Open(ctx context.Context, service string, sink func(Span)) (*Tracer, error) {
	options := []sdk.TracerProviderOption{
		sdk.WithSpanProcessor(sinkProcessor{sink}),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", service))),
		sdk.WithIDGenerator(identifiers{}),
	}
	if os.Getenv(EndpointVariable) != "" {
		exporter, err := otlptracegrpc.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("send spans to %s: %w", os.Getenv(EndpointVariable), err)
		}
		options = append(options, sdk.WithBatcher(exporter))
	}
	return &Tracer{provider: sdk.NewTracerProvider(options...)}, nil
}

// Close sends what waits to be sent.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil || t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// In returns a context in which stages are those of an assignment, or of the whole cluster for assignment "".
func (t *Tracer) In(ctx context.Context, clusterUID string, root Root, assignment string) context.Context {
	if t == nil || t.provider == nil {
		return ctx
	}
	return context.WithValue(ctx, subjectKey{}, subject{t.provider.Tracer(scope), clusterUID, root, assignment})
}

type subjectKey struct{}

type subject struct {
	tracer     trace.Tracer
	cluster    string
	root       Root
	assignment string
}

// Stage begins a stage of what the context is about; end ends it, as failed with an error. It does nothing in other contexts.
func Stage(ctx context.Context, name string) (inner context.Context, end func(error)) {
	return StageSince(ctx, name, time.Now())
}

// StageSince is Stage for one that began earlier.
func StageSince(ctx context.Context, name string, began time.Time) (inner context.Context, end func(error)) {
	s, traced := ctx.Value(subjectKey{}).(subject)
	if !traced {
		return ctx, func(error) {}
	}
	if parent := trace.SpanContextFromContext(ctx); !parent.IsValid() || parent.TraceID() != traceOf(s.cluster) {
		ctx = trace.ContextWithRemoteSpanContext(ctx, rootOf(s.cluster, s.root))
	}
	ctx, span := s.tracer.Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attributeCluster.String(s.cluster), attributeAssignment.String(s.assignment)))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Whole records the root span of a cluster, which only its server knows the ends of, or a stage directly below it when name is not empty.
func (t *Tracer) Whole(clusterUID string, root Root, name string, began, ended time.Time) {
	if t == nil || t.provider == nil || ended.Before(began) {
		return
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), rootOf(clusterUID, root))
	if name == "" {
		ctx = context.WithValue(context.Background(), rootKey{}, rootOf(clusterUID, root))
		name = string(root)
	}
	_, span := t.provider.Tracer(scope).Start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(attributeCluster.String(clusterUID)))
	span.End(trace.WithTimestamp(ended))
}

// RootID is the identifier of a root span of a cluster.
func RootID(clusterUID string, root Root) string { return rootOf(clusterUID, root).SpanID().String() }

// ClusterOf is the UID of the cluster that an assignment belongs to: assignment IDs begin with it.
func ClusterOf(assignment string) string {
	uid, _, _ := strings.Cut(assignment, ".")
	return uid
}

func traceOf(clusterUID string) (id trace.TraceID) {
	sum := sha256.Sum256([]byte("nearmetal trace\x00" + clusterUID))
	copy(id[:], sum[:])
	return id
}

func rootOf(clusterUID string, root Root) trace.SpanContext {
	var id trace.SpanID
	sum := sha256.Sum256([]byte("nearmetal span\x00" + clusterUID + "\x00" + string(root)))
	copy(id[:], sum[:])
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceOf(clusterUID), SpanID: id, TraceFlags: trace.FlagsSampled})
}

type rootKey struct{}

// identifiers makes random ones, but for root spans.
type identifiers struct{}

// NewIDs implements sdk.IDGenerator.
func (g identifiers) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if root, ok := ctx.Value(rootKey{}).(trace.SpanContext); ok {
		return root.TraceID(), root.SpanID()
	}
	var id trace.TraceID
	_, _ = rand.Read(id[:]) // never fails
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdk.IDGenerator.
func (identifiers) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id
}

// sinkProcessor hands on what ends.
type sinkProcessor struct{ sink func(Span) }

func (sinkProcessor) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (sinkProcessor) Shutdown(context.Context) error             { return nil }
func (sinkProcessor) ForceFlush(context.Context) error           { return nil }

func (p sinkProcessor) OnEnd(s sdk.ReadOnlySpan) {
	out := Span{ID: s.SpanContext().SpanID().String(), Name: s.Name(), Began: s.StartTime(), Ended: s.EndTime()}
	if s.Parent().IsValid() {
		out.Parent = s.Parent().SpanID().String()
	}
	for _, a := range s.Attributes() {
		switch a.Key {
		case attributeCluster:
			out.Cluster = a.Value.AsString()
		case attributeAssignment:
			out.Assignment = a.Value.AsString()
		}
	}
	if s.Status().Code == codes.Error {
		out.Failure = s.Status().Description
	}
	p.sink(out)
}
