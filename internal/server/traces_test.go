package server

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// A node tells of its own members only, within bounds, whatever it says.
func TestANodeTellsStagesOfItsOwnMembersOnly(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	view := viewOf(t, "c1", "u1", map[string]string{"u1.c1-0.1": "n1", "u1.c1-1.2": "n2"})
	book := tracing.NewBook()
	book.Open("c1", "u1")
	keep := keepSpans(book, func() *state.View { return view }, func() time.Time { return at })
	const id, parent = "00112233445566aa", "00112233445566bb"
	said := func(change func(*agentstream.Span)) agentstream.Span {
		s := agentstream.Span{ID: id, Parent: parent, AssignmentID: "u1.c1-0.1", Name: "start", Seconds: 2, AgoSeconds: 1, Failure: "no"}
		change(&s)
		return s
	}
	keep("n1", []agentstream.Span{
		said(func(*agentstream.Span) {}),
		said(func(s *agentstream.Span) { s.AssignmentID = "u1.c1-1.2" }), // of n2
		said(func(s *agentstream.Span) { s.AssignmentID = "u9.c9-0.1" }), // of nobody
		said(func(s *agentstream.Span) { s.ID = "../../etc/passwd" }),
		said(func(s *agentstream.Span) { s.Parent = "" }), // only the server knows roots
		said(func(s *agentstream.Span) {
			s.Name, s.Seconds, s.AgoSeconds = "\x1b[31m"+strings.Repeat("x", 1<<20), math.Inf(1), math.NaN()
		}),
	})
	trace, found, err := book.Newest(t.Context(), "c1", 0)
	if err != nil || !found || len(trace.Spans) != 2 {
		t.Fatalf("got %+v (%t, %v), want two spans", trace, found, err)
	}
	long, start := trace.Spans[0], trace.Spans[1]
	want := tracing.Placed{
		Span: tracing.Span{ID: id, Parent: parent, Cluster: "u1", Assignment: "u1.c1-0.1", Name: "start", Began: at.Add(-3 * time.Second), Ended: at.Add(-time.Second), Failure: "no"},
		Node: "n1", Member: "c1-0",
	}
	if start != want {
		t.Errorf("got %+v, want %+v", start, want)
	}
	if len(long.Name) > 4<<10 || strings.ContainsRune(long.Name, '\x1b') || long.Ended.Sub(long.Began) != longestSpan || !long.Ended.Equal(at) {
		t.Errorf("what is without bounds is kept as a name of %d bytes, from %s to %s", len(long.Name), long.Began, long.Ended)
	}
}

func TestWhatHappensToAReadyClusterIsNoPartOfItsCreation(t *testing.T) {
	ready := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	view := viewOf(t, "c1", "u1", map[string]string{"u1.c1-0.1": "n1"})
	c := view.Cluster("c1")
	c.Record.ReadyAt = &ready
	const id, parent = "00112233445566aa", "00112233445566bb"
	for name, tt := range map[string]struct {
		now      time.Time
		deleting bool
		kept     bool
	}{
		"begun before it was ready": {ready.Add(time.Second), false, true},
		"begun an hour later":       {ready.Add(time.Hour), false, false},
		"begun as it is deleted":    {ready.Add(time.Hour), true, true},
	} {
		book := tracing.NewBook()
		book.Open("c1", "u1")
		c.Intent.DeleteRequestedAt = nil
		if tt.deleting {
			c.Intent.DeleteRequestedAt = &tt.now
		}
		keepSpans(book, func() *state.View { return view }, func() time.Time { return tt.now })("n1", []agentstream.Span{
			{ID: id, Parent: parent, AssignmentID: "u1.c1-0.1", Name: "start", Seconds: 2},
		})
		trace, _, err := book.Newest(t.Context(), "c1", 0)
		if err != nil {
			t.Fatal(err)
		}
		if kept := len(trace.Spans) == 1; kept != tt.kept {
			t.Errorf("a stage %s is kept: %t, want %t", name, kept, tt.kept)
		}
	}
}

// viewOf is a site with one cluster, whose members lie on nodes.
func viewOf(t *testing.T, name, uid string, nodes map[string]string) *state.View {
	t.Helper()
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view := func(revision int64, err error) *state.View {
		t.Helper()
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		return cache.View()
	}
	leadership, err := repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	c := view(repo.CreateCluster(t.Context(), api.ClusterIntent{Name: name, UID: uid, Spec: api.ClusterSpec{Groups: []api.Group{{Name: name, Size: len(nodes)}}}})).Cluster(name)
	var all []api.Assignment
	for id, node := range nodes {
		member := strings.Split(id, ".")[1]
		all = append(all, api.Assignment{ID: id, ClusterUID: uid, Cluster: name, Group: name, Member: member, Node: node, Rank: len(all)})
	}
	return view(repo.AsLeader(leadership).Commit(t.Context(), c, state.Write{
		Record: api.ClusterRecord{Name: name, UID: uid, Phase: api.ClusterStarting}, Add: []state.Batch{{Assignments: all}},
	}))
}
