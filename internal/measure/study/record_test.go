package study

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

func remote(t *testing.T) Remote {
	return Remote{Out: t.TempDir(), Python: "python3", Delays: []time.Duration{0, time.Millisecond}, Rounds: 2, Megabytes: 1, Say: t.Logf}
}

func open(t *testing.T, s Remote) *record {
	t.Helper()
	r, err := openRecord(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAStudyGoesOnWhereItWasStopped(t *testing.T) {
	s := remote(t)
	r := open(t, s)
	for pair := range 2 {
		if err := r.add(measure.Run{Side: stream, Pair: pair, Points: []measure.Point{{X: 1, Values: map[string]float64{seconds: 1}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.Out, "runs.jsonl")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 40 { // the second run is cut off somewhere
		if err := os.WriteFile(path, whole[:len(whole)-1-cut], 0o644); err != nil {
			t.Fatal(err)
		}
		r := open(t, s)
		if !r.has(stream, 0) || r.has(stream, 1) || r.has(cold, 0) {
			t.Fatalf("after %d bytes were lost there are %+v", cut+1, r.runs)
		}
		if err := r.add(measure.Run{Side: cold, Pair: 0}); err != nil {
			t.Fatal(err)
		}
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || !bytes.HasSuffix(data, []byte("}\n")) {
			t.Fatalf("what was cut off is still there: %q, %v", data, err)
		}
		if r = open(t, s); !r.has(stream, 0) || r.has(stream, 1) || !r.has(cold, 0) {
			t.Fatalf("after another run there are %+v", r.runs)
		}
		if err := r.close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRunsOfAnotherStudyDoNotCount(t *testing.T) {
	s := remote(t)
	if err := open(t, s).close(); err != nil {
		t.Fatal(err)
	}
	s.Megabytes = 2
	if _, err := openRecord(s); err == nil || !strings.Contains(err.Error(), "another study") {
		t.Errorf("runs of a file of 1 MB for a study of 2 MB: %v", err)
	}
}

func TestBadStudiesAreRefused(t *testing.T) {
	if err := remote(t).Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Remote){
		"no delays":        func(s *Remote) { s.Delays = nil },
		"a negative delay": func(s *Remote) { s.Delays = []time.Duration{-1} },
		"a long delay":     func(s *Remote) { s.Delays = []time.Duration{time.Hour} },
		"one delay twice":  func(s *Remote) { s.Delays = []time.Duration{time.Second, 0, time.Second} },
		"one round":        func(s *Remote) { s.Rounds = 1 },
		"no file":          func(s *Remote) { s.Megabytes = 0 },
	} {
		bad := remote(t)
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
