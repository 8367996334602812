package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// A trace names the stages of each member on its node, within what they are part of, also when the cluster is gone.
func TestATraceTellsWhereTheTimeWent(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1")
	made := s.cli("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "64MiB", "--trace")
	if made.code != 0 {
		t.Fatalf("create: %d %s", made.code, made.err)
	}
	trace := s.stages("c1")
	for stage, want := range map[string]int{"create": 1, "place": 1, "network": 2, "start": 2, "files": 2, "attach": 2, "run": 2, "reachable": 2} {
		spans := trace[stage]
		if stage == "create" { // what a member is made by has that name, too
			spans = slices.DeleteFunc(slices.Clone(spans), func(span api.TraceSpan) bool { return span.Parent != "" })
		}
		if len(spans) != want {
			t.Errorf("the trace of a create has stage %s %d times, want %d", stage, len(spans), want)
		}
		if !strings.Contains(made.err, "\n"+stage+" ") && !strings.Contains(made.err, " "+stage+" ") {
			t.Errorf("--trace does not show stage %s:\n%s", stage, made.err)
		}
	}
	c := s.waitReady("c1")
	root := trace["place"][0].Parent
	for i, span := range trace["start"] {
		if span.Parent != root || span.Seconds <= 0 || span.Began.Before(trace["place"][0].Began) || span.Failure != "" {
			t.Errorf("start %d is %+v; the root is %s, the cluster was placed from %s on", i, span, root, trace["place"][0].Began)
		}
		if !slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool { return m.Name == span.Member && m.Node == span.Node }) {
			t.Errorf("start %d is of member %s on %s, want one of %+v", i, span.Member, span.Node, c.Status.Members)
		}
	}
	ended := s.cli("cluster", "delete", "c1", "--yes", "--trace")
	if ended.code != 0 || !strings.Contains(ended.err, "detach") || strings.Contains(ended.err, "reachable") {
		t.Errorf("delete: %d, want the stages of its end:\n%s", ended.code, ended.err)
	}
	trace = s.stages("c1")
	for stage, want := range map[string]int{"delete": 1, "stop": 2, "clean": 2, "reachable": 2} {
		if got := len(trace[stage]); got != want {
			t.Errorf("the trace of a cluster that is gone has stage %s %d times, want %d", stage, got, want)
		}
	}
	if got := s.cli("cluster", "trace", "c2"); got.code == 0 || !strings.Contains(got.err, "does not exist") {
		t.Errorf("the trace of a cluster that never was: %d %s", got.code, got.err)
	}
}

// stages are the spans of a cluster's trace, by name.
func (s *site) stages(cluster string) map[string][]api.TraceSpan {
	s.t.Helper()
	var trace api.Trace
	s.mustJSON(&trace, "cluster", "trace", cluster)
	all := map[string][]api.TraceSpan{}
	for _, span := range trace.Spans {
		all[span.Name] = append(all[span.Name], span)
	}
	return all
}
