package study

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

func remote(t *testing.T) Remote {
	return Remote{Out: t.TempDir(), Python: "python3", Matrix: Matrix{Delays: []time.Duration{0, time.Millisecond}}, Rounds: 2, Megabytes: 1, Say: t.Logf}
}

func open(t *testing.T, s Remote) *record[measure.Run] {
	t.Helper()
	r, err := s.record()
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
		if !r.has(isRun(stream, 0)) || r.has(isRun(stream, 1)) || r.has(isRun(cold, 0)) {
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
		if r = open(t, s); !r.has(isRun(stream, 0)) || r.has(isRun(stream, 1)) || !r.has(isRun(cold, 0)) {
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
	if _, err := s.record(); err == nil || !strings.Contains(err.Error(), "another study") {
		t.Errorf("runs of a file of 1 MB for a study of 2 MB: %v", err)
	}
}

func TestBadStudiesAreRefused(t *testing.T) {
	if err := remote(t).Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Remote){
		"a negative delay": func(s *Remote) { s.Delays = []time.Duration{-1} },
		"a long delay":     func(s *Remote) { s.Delays = []time.Duration{time.Hour} },
		"one delay twice":  func(s *Remote) { s.Delays = []time.Duration{time.Second, 0, time.Second} },
		"one round":        func(s *Remote) { s.Rounds = 1 },
		"no file":          func(s *Remote) { s.Megabytes = 0 },
		"all lost":         func(s *Remote) { s.Losses = []float64{1} },
		"less than none":   func(s *Remote) { s.Duplicates = []float64{-0.1} },
		"no number":        func(s *Remote) { s.Losses = []float64{math.NaN()} },
		"no job":           func(s *Remote) { s.Jobs = []int{0} },
		"too many jobs":    func(s *Remote) { s.Jobs = []int{101} },
		"one rate twice":   func(s *Remote) { s.Rates = []api.Rate{1e9, 1e9} },
		"an endless load":  func(s *Remote) { s.Loaders = []int{5} },
		"members here":     func(s *Remote) { s.Members = []int{2}; s.Jobs = []int{2} },
		"two that vary":    func(s *Remote) { s.Jobs = []int{1, 5} },
	} {
		bad := remote(t)
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPointsAreThoseOfTheConditionThatVaries(t *testing.T) {
	delays := []time.Duration{50 * time.Millisecond}
	for name, c := range map[string]struct {
		of   Matrix
		unit string
		want []setting
	}{
		"nothing": {Matrix{}, "ms", []setting{{jobs: 1}}},
		"delay": {
			Matrix{Delays: []time.Duration{0, 75 * time.Millisecond}, Losses: []float64{0.01}},
			"ms",
			[]setting{{jobs: 1, loss: 0.01}, {x: 75, delay: 75 * time.Millisecond, jobs: 1, loss: 0.01}},
		},
		"loss":      {Matrix{Delays: delays, Losses: []float64{0, 0.01}}, "%", []setting{{delay: delays[0], jobs: 1}, {x: 1, delay: delays[0], loss: 0.01, jobs: 1}}},
		"duplicate": {Matrix{Duplicates: []float64{0.5, 0}}, "%", []setting{{x: 50, duplicate: 0.5, jobs: 1}, {jobs: 1}}},
		"rate":      {Matrix{Rates: []api.Rate{1e8, 1e9}}, "Mbit/s", []setting{{x: 100, rate: 1e8, jobs: 1}, {x: 1000, rate: 1e9, jobs: 1}}},
		"jobs":      {Matrix{Jobs: []int{1, 10}}, "jobs", []setting{{x: 1, jobs: 1}, {x: 10, jobs: 10}}},
		"loaders": {
			Matrix{Loaders: []int{0, 5}, Rates: []api.Rate{1e8}, Jobs: []int{2}},
			"loaders",
			[]setting{{jobs: 2, rate: 1e8}, {x: 5, jobs: 2, rate: 1e8, loaders: 5}},
		},
		"members": {Matrix{Jobs: []int{2}, Members: []int{1, 2}}, "members", []setting{{x: 1, jobs: 2, members: 1}, {x: 2, jobs: 2, members: 2}}},
	} {
		if err := c.of.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		axis, got := c.of.points()
		if axis.Unit != c.unit || !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v along %s, want %+v along %s", name, got, axis.Unit, c.want, c.unit)
		}
	}
}
