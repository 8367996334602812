package apiserver_test

import (
	"context"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

func TestATraceOutlivesItsCluster(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	c, ctx := s.Client(), t.Context()
	roots := func() map[string]api.TraceSpan {
		t.Helper()
		trace, err := c.ClusterTrace(ctx, "c1")
		if err != nil || trace.Cluster != "c1" {
			t.Fatalf("the trace is %+v, %v", trace, err)
		}
		all := map[string]api.TraceSpan{}
		for _, span := range trace.Spans {
			all[span.Name] = span
		}
		return all
	}
	if _, err := c.ClusterTrace(ctx, "c1"); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("the trace of a cluster that never was: %v", err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c1", Size: 2}); err != nil {
		t.Fatal(err)
	}
	if got := roots(); len(got) != 0 {
		t.Errorf("before it is placed its trace has %+v", got)
	}
	s.Place("c1")
	if got := roots(); got["place"].Parent == "" || got["create"].ID != "" {
		t.Errorf("once it is placed its trace has %+v, want how long that took, and no end", got)
	}
	if _, err := c.DeleteCluster(ctx, "c1"); err != nil {
		t.Fatal(err)
	}
	s.Release("c1")
	s.Forget("c1")
	if got := roots(); got["delete"].ID == "" || got["delete"].Parent != "" {
		t.Errorf("once it is gone its trace has %+v, want how long that took", got)
	}
}

// noTraces has none.
type noTraces struct{}

func (noTraces) Newest(context.Context, string, int64) (tracing.Trace, bool, error) {
	return tracing.Trace{}, false, nil
}
