package tracing

import (
	"context"
	"fmt"
	"testing"
	"time"
)

func placed(uid, name string, began time.Time, took time.Duration) Placed {
	return Placed{Span: Span{ID: name, Cluster: uid, Name: name, Began: began, Ended: began.Add(took)}}
}

func newest(t *testing.T, b *Book, name string) []string {
	t.Helper()
	trace, found, err := b.Newest(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !found {
		return nil
	}
	names := []string{trace.UID}
	for _, s := range trace.Spans {
		names = append(names, s.Name)
	}
	return names
}

func TestABookTellsOfTheNewestClusterOfAName(t *testing.T) {
	b, now := NewBook(), time.Now()
	b.Add(placed("u1", "nobody knows the cluster", now, 0))
	b.Open("c1", "u1")
	b.Add(placed("u1", "late", now.Add(time.Second), 0))
	b.Add(placed("u1", "inner", now, time.Second))
	b.Add(placed("u1", "outer", now, 2*time.Second))
	if got := fmt.Sprint(newest(t, b, "c1")); got != "[u1 outer inner late]" {
		t.Errorf("the trace of c1 is %s", got)
	}
	b.Open("c1", "u2")
	b.Open("c1", "u2")
	b.Add(placed("u2", "other", now, 0))
	if got := fmt.Sprint(newest(t, b, "c1")); got != "[u2 other]" {
		t.Errorf("the trace of the newer c1 is %s", got)
	}
	if got := newest(t, b, "c2"); got != nil {
		t.Errorf("the trace of c2 is %v, and there is no such cluster", got)
	}
}

func TestABookIsBounded(t *testing.T) {
	b, now := NewBook(), time.Now()
	for i := range mostSpans/mostSpansOfCluster + 2 {
		uid := fmt.Sprint("u", i)
		b.Open("c"+uid, uid)
		for range mostSpansOfCluster + 10 {
			b.Add(placed(uid, "x", now, 0))
		}
		if got := len(newest(t, b, "c"+uid)) - 1; got != mostSpansOfCluster {
			t.Errorf("%d spans of cluster %s are kept, want %d", got, uid, mostSpansOfCluster)
		}
	}
	if b.spans > mostSpans {
		t.Errorf("%d spans are kept, want %d at most", b.spans, mostSpans)
	}
	if newest(t, b, "cu0") != nil {
		t.Error("the oldest trace is kept, though there are too many spans")
	}
	for i := range mostClusters + 10 {
		b.Open("few", fmt.Sprint("few", i))
	}
	if len(b.order) > mostClusters || len(b.traces) != len(b.order) || b.spans != 0 {
		t.Errorf("%d clusters in order, %d traces, %d spans are kept, want %d clusters at most", len(b.order), len(b.traces), b.spans, mostClusters)
	}
}

func TestABookReturnsATraceOnceItHasFollowedWhatIsStored(t *testing.T) {
	b := NewBook()
	b.reach(4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Newest(ctx, "c1", 5); err == nil {
		t.Error("the book returns a trace before it has followed revision 5")
	}
	asked := make(chan error)
	go func() {
		_, _, err := b.Newest(t.Context(), "c1", 5)
		asked <- err
	}()
	b.reach(5)
	if err := <-asked; err != nil {
		t.Error(err)
	}
}
