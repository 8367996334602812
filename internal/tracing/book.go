package tracing

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/state"
)

// What is kept: spans of all clusters and of one, and how many clusters. The traces of the clusters that were made first go first.
const (
	mostSpans          = 100_000
	mostSpansOfCluster = 16_384
	mostClusters       = 10_000
)

// Book keeps the traces of recent clusters, in memory. Its methods may be called from several goroutines.
type Book struct {
	mu     sync.Mutex
	traces map[string]*Trace // by cluster UID
	order  []string          // the oldest first
	spans  int
	// revision is how far Follow is, reached is closed and replaced when it gets on.
	revision int64
	reached  chan struct{}
}

// Trace is what is kept of one cluster.
type Trace struct {
	// Cluster is its name, UID its UID.
	Cluster, UID string
	Spans        []Placed
}

// Placed is a span with where it was.
type Placed struct {
	Span
	// Node and Member are where the stage was, and what of; empty for what a server did.
	Node, Member string
}

// NewBook returns an empty one.
func NewBook() *Book { return &Book{traces: map[string]*Trace{}, reached: make(chan struct{})} }

// Open notes that there is a cluster; spans of others are not kept.
func (b *Book) Open(name, uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.traces[uid] == nil {
		b.traces[uid] = &Trace{Cluster: name, UID: uid}
		b.order = append(b.order, uid)
		b.shrink()
	}
}

// Add keeps a span, for as long as there is room.
func (b *Book) Add(s Placed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.traces[s.Cluster]
	if t == nil || len(t.Spans) >= mostSpansOfCluster {
		return
	}
	t.Spans = append(t.Spans, s)
	b.spans++
	b.shrink()
}

// shrink drops the oldest traces until what is left may be kept; the lock is held.
func (b *Book) shrink() {
	for b.spans > mostSpans || len(b.order) > mostClusters {
		oldest := b.order[0]
		b.spans -= len(b.traces[oldest].Spans)
		delete(b.traces, oldest)
		b.order = b.order[1:]
	}
}

// reach notes how far Follow is.
func (b *Book) reach(revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision = revision
	close(b.reached)
	b.reached = make(chan struct{})
}

// await waits until Follow has seen a revision.
func (b *Book) await(ctx context.Context, revision int64) error {
	for {
		b.mu.Lock()
		done, reached := b.revision >= revision, b.reached
		b.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-reached:
		}
	}
}

// Newest returns the trace of the newest cluster of a name, the earliest spans first, once Follow has seen a revision; false: none is kept.
func (b *Book) Newest(ctx context.Context, name string, revision int64) (Trace, bool, error) {
	if err := b.await(ctx, revision); err != nil {
		return Trace{}, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, uid := range slices.Backward(b.order) {
		if t := b.traces[uid]; t.Cluster == name {
			out := Trace{Cluster: name, UID: uid, Spans: slices.Clone(t.Spans)}
			slices.SortStableFunc(out.Spans, func(a, b Placed) int {
				return cmp.Or(a.Began.Compare(b.Began), b.Ended.Compare(a.Ended))
			})
			return out, true, nil
		}
	}
	return Trace{}, false, nil
}

// Viewer gives what is stored.
type Viewer interface {
	View() *state.View
	WaitRevision(ctx context.Context, revision int64) (int64, error)
}

// Follow records, until ctx ends, what only a server knows: how long clusters waited for a place, took to be ready, and to be gone.
func (b *Book) Follow(ctx context.Context, stored Viewer, tracer *Tracer, now func() time.Time) {
	before := stored.View()
	for _, c := range before.Clusters {
		b.Open(c.Name(), c.UID())
	}
	b.reach(before.Revision)
	for {
		if _, err := stored.WaitRevision(ctx, before.Revision+1); err != nil {
			return
		}
		view := stored.View()
		changed, gone := state.Diff(before.Clusters, view.Clusters, (*state.Cluster).Name)
		for _, c := range changed {
			was := before.Cluster(c.Name())
			if was != nil && was.UID() != c.UID() {
				ended(tracer, was, now())
				was = nil
			}
			if was == nil {
				b.Open(c.Name(), c.UID())
			}
			began := c.Intent.CreatedAt
			if at := placedAt(c); at != nil && placedAt(was) == nil {
				tracer.Whole(c.UID(), Create, "place", began, *at)
			}
			if at := readyAt(c); at != nil && readyAt(was) == nil {
				tracer.Whole(c.UID(), Create, "", began, *at)
			}
		}
		for _, c := range gone {
			ended(tracer, c, now())
		}
		b.reach(view.Revision)
		before = view
	}
}

func ended(tracer *Tracer, c *state.Cluster, at time.Time) {
	if asked := c.Intent.DeleteRequestedAt; asked != nil {
		tracer.Whole(c.UID(), Delete, "", *asked, at)
	}
}

func placedAt(c *state.Cluster) *time.Time {
	if c == nil || c.Record == nil {
		return nil
	}
	return c.Record.PlacedAt
}

func readyAt(c *state.Cluster) *time.Time {
	if c == nil || c.Record == nil {
		return nil
	}
	return c.Record.ReadyAt
}
