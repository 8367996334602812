package measure

import (
	"strings"
	"testing"
)

func experiment() Experiment {
	e := Experiment{
		Title: "t", Metrics: PingPongMetrics(), Axis: Axis{Name: "Message size", Unit: "B", Bytes: true},
		Sides: []Side{{Name: "host"}, {Name: "cluster"}, {Name: "memory", Reference: true}},
	}
	for pair := range 6 {
		drift := 1 + float64(pair)/10 // hits both sides of a pair alike
		e.Runs = append(e.Runs,
			Run{Side: "host", Pair: pair, Points: []Point{{X: 8, Values: map[string]float64{LatencyUS: 10 * drift, BandwidthMBPerS: 1}}}},
			Run{Side: "cluster", Pair: pair, Points: []Point{{X: 8, Values: map[string]float64{LatencyUS: 20 * drift, BandwidthMBPerS: 0.5}}}})
	}
	e.Runs = append(e.Runs, Run{Side: "memory", Points: []Point{{X: 8, Values: map[string]float64{LatencyUS: 1}}}})
	return e
}

func TestEfficiencyIsTurnedSoThatMoreIsBetterAndDriftCancels(t *testing.T) {
	a, err := Analyze(experiment(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, metric := range []string{LatencyUS, BandwidthMBPerS} {
		c, ok := a.Find(metric, "cluster", 8)
		if !ok || len(c.Ratios) != 6 {
			t.Fatalf("%s: got %+v", metric, c)
		}
		near(t, metric, c.Efficiency.Value, 0.5, 1e-12)
		near(t, metric+" low", c.Efficiency.Low, 0.5, 1e-12)
		near(t, metric+" high", c.Efficiency.High, 0.5, 1e-12)
	}
	if _, ok := a.Find(LatencyUS, "memory", 8); ok {
		t.Error("a reference side was compared")
	}
	if lines := a.Line(LatencyUS, "memory"); len(lines) != 1 || lines[0].Spread.Median != 1 {
		t.Errorf("the reference side is not shown: %+v", lines)
	}
}

func TestARunWithoutItsPartnerMakesNoRatio(t *testing.T) {
	e := experiment()
	e.Runs = e.Runs[1:] // the host's run of pair 0
	a, err := Analyze(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := a.Find(LatencyUS, "cluster", 8); len(c.Ratios) != 5 || c.Efficiency.Bounded() {
		t.Errorf("got %d ratios and an interval: %v; want 5 and none", len(c.Ratios), c.Efficiency.Bounded())
	}
}

func TestWhatCantBeComparedIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Experiment){
		"no two sides":     func(e *Experiment) { e.Sides = e.Sides[:1] },
		"unknown side":     func(e *Experiment) { e.Runs[0].Side = "moon" },
		"ran twice":        func(e *Experiment) { e.Runs[0].Pair = 1 },
		"unknown metric":   func(e *Experiment) { e.Runs[0].Points[0].Values["colour"] = 1 },
		"is 0":             func(e *Experiment) { e.Runs[0].Points[0].Values[LatencyUS] = 0 },
		"the first side":   func(e *Experiment) { e.Sides[0].Reference = true },
		"needs positive v": func(e *Experiment) { e.Runs[0].Points[0].Values[LatencyUS] = -1 },
	} {
		e := experiment()
		spoil(&e)
		if _, err := Analyze(e, 0); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSidesTakeTurnsInGoingFirst(t *testing.T) {
	order := Schedule([]string{"A", "B"}, 4)
	var flat strings.Builder
	for _, round := range order {
		flat.WriteString(strings.Join(round, "") + " ")
	}
	if flat.String() != "AB BA AB BA " {
		t.Errorf("got %q", flat.String())
	}
	// The mean position in time must be the same for every side, so that a linear drift cancels.
	sums, position := map[string]int{}, 0
	for _, round := range Schedule([]string{"A", "B", "C"}, 6) {
		for _, side := range round {
			sums[side] += position
			position++
		}
	}
	if sums["A"] != sums["B"] || sums["B"] != sums["C"] {
		t.Errorf("positions differ: %v", sums)
	}
}
