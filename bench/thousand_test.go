package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestStagesOfATraceAreSummedUpBelowTheirRoots(t *testing.T) {
	at := time.Unix(1000, 0)
	trace := api.Trace{Spans: []api.TraceSpan{
		{ID: "a", Name: "create", Began: at, Seconds: 3},
		{ID: "b", Parent: "a", Name: "start", Member: "m-1", Node: "n1", Began: at.Add(time.Second), Seconds: 1, Failure: "no room"},
		{ID: "c", Parent: "a", Name: "start", Member: "m-2", Node: "n2", Began: at.Add(2 * time.Second), Seconds: 0.5},
		{ID: "d", Name: "delete", Began: at.Add(10 * time.Second), Seconds: 1},
		{ID: "e", Parent: "d", Name: "clean", Began: at.Add(10 * time.Second), Seconds: 0.25},
	}}
	text := thousandText([]thousandRun{{ready: 2, trace: trace}, {ready: 4, gone: 1, readyCPU: 0.5, trace: trace}})
	for _, must := range []string{
		"request to ready 3.00 s (2.00 to 4.00)", "create/start             2    1.000    2.500    0.750    1.000", "delete/clean             1    0.000    0.250",
		"1 stages failed and were repeated, such as: start of m-1 on n1: no room",
	} {
		if !strings.Contains(text, must) {
			t.Errorf("the text lacks %q:\n%s", must, text)
		}
	}
}
