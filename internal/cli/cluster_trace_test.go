package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestATraceIsShownAsATreeOfStagesWithOneLineEach(t *testing.T) {
	noon := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	span := func(id, parent, name string, from, to int) api.TraceSpan {
		return api.TraceSpan{ID: id, Parent: parent, Name: name, Began: noon.Add(time.Duration(from) * time.Millisecond), Seconds: float64(to-from) / 1000}
	}
	failed := span("s2", "c", "start", 25, 45)
	failed.Failure = "no room"
	trace := api.Trace{Cluster: "c1", UID: "u1", Spans: []api.TraceSpan{
		span("late", "s1", "run", 30, 40), // told before the stage that it is in
		span("c", "", "create", 0, 100),
		span("s1", "c", "start", 20, 60), failed,
		span("f1", "s1", "files", 20, 25), span("f2", "s2", "files", 25, 27),
		span("n", "c", "network", 10, 30),
		span("d", "", "delete", 1000, 1050),
		span("lost", "never told", "attach", 40, 50),
		span("round", "about", "x", 0, 1), span("about", "round", "y", 0, 1),
	}}
	var out bytes.Buffer
	writeTrace(&out, trace, "")
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		got = append(got, strings.Join(strings.Fields(strings.TrimRight(line, " █")), " "))
	}
	want := []string{
		"STAGE COUNT FROM TO MEDIAN LONGEST WHEN",
		"create 1 0.0 ms 100.0 ms 100.0 ms 100.0 ms",
		"network 1 10.0 ms 30.0 ms 20.0 ms 20.0 ms",
		"start (1 failed) 2 20.0 ms 60.0 ms 40.0 ms 40.0 ms",
		"files 2 20.0 ms 27.0 ms 5.0 ms 5.0 ms",
		"run 1 30.0 ms 40.0 ms 10.0 ms 10.0 ms",
		"delete 1 0.0 ms 50.0 ms 50.0 ms 50.0 ms",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	out.Reset()
	writeTrace(&out, trace, "delete")
	if strings.Contains(out.String(), "create") || !strings.Contains(out.String(), "delete") {
		t.Errorf("of delete alone: %s", out.String())
	}
}
