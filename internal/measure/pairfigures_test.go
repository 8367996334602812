package measure

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

// hpccExperiment makes up an experiment of one size, from a seed.
func hpccExperiment(seed uint64, pairs int) Experiment {
	e := Experiment{
		Title: "HPL and STREAM: bare host and cluster on the same cores", Summary: "Simulated for a test.",
		Axis: HPCCAxis(), Metrics: HPCCMetrics(), Sides: []Side{{Name: "host", Description: "CPUs 0, 1"}, {Name: "cluster", Description: "CPUs 0, 1"}},
		Highlights: []Highlight{{HPLGflops, "cluster", 2, 0.99}, {StreamTriadGBPerS, "cluster", 2, 0.99}},
		Conditions: []Condition{{"HPL", "order 720"}},
	}
	random := rand.New(rand.NewPCG(seed, 3))
	for pair, order := range Schedule([]string{"host", "cluster"}, pairs) {
		for _, side := range order {
			e.Runs = append(e.Runs, Run{Side: side, Pair: pair, Points: []Point{{X: 2, Values: map[string]float64{
				HPLGflops: 2.1 * math.Exp(0.02*random.NormFloat64()), StreamTriadGBPerS: 44 * math.Exp(0.01*random.NormFloat64()),
			}}}})
		}
	}
	return e
}

func TestAnExperimentOfOneSizeShowsEveryPair(t *testing.T) {
	report, err := NewReport(hpccExperiment(1, 6), 0)
	if err != nil {
		t.Fatal(err)
	}
	figures := report.figures()
	if len(figures) != 3 {
		t.Fatalf("%d figures, want one for each of 2 metrics and one of efficiencies", len(figures))
	}
	for i, f := range figures[:2] {
		if circles, squares := strings.Count(f.svg, "<circle"), strings.Count(f.svg, `class="mark s1"`); circles != 6+1 || squares != 6+1 {
			t.Errorf("figure %d shows %d runs of the host and %d of the cluster, want 6 and one in the legend of each", i+1, circles, squares)
		}
	}
	if each := strings.Count(figures[2].svg, "mark each"); each != 12+1 {
		t.Errorf("the efficiencies show %d pairs, want 6 of each metric and one in the legend", each)
	}
	for _, must := range []string{"HPL", "STREAM triad of hpcc, in caches, per rank", "goal 0.99", "1.0: as good as host"} {
		if !strings.Contains(figures[2].svg, must) {
			t.Errorf("the efficiencies lack %q", must)
		}
	}
	if path := os.Getenv("MEASURE_SAMPLE"); path != "" { // to look at it, beside one of many sizes
		other, err := NewReport(pingPong(1, 6), 0)
		var page bytes.Buffer
		if err := errors.Join(err, WriteHTML(&page, "A sample", time.Unix(0, 0), other, report)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFewPairsOfOneSizeAreDrawnWithoutNumbersThatAreNone(t *testing.T) {
	for pairs := 1; pairs < 3; pairs++ {
		e := hpccExperiment(2, pairs)
		for _, r := range e.Runs {
			r.Points[0].Values[HPLGflops] = 2 // all alike: a figure must not divide by the range of its values
		}
		report, err := NewReport(e, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range report.figures() {
			if strings.Contains(f.svg, "NaN") || strings.Contains(f.svg, "Inf") {
				t.Errorf("%d pairs, figure %d: %s", pairs, i+1, f.svg)
			}
		}
	}
}

func TestZeroHasNoSignOnAnAxis(t *testing.T) {
	for _, tick := range linear(-0.1, 2).ticks {
		if tick.label == "-0.0" {
			t.Errorf("an axis from below 0 has the label %s", tick.label)
		}
	}
}
