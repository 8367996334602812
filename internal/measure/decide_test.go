package measure

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// drawn are ratios whose logarithms are normal.
func drawn(random *rand.Rand, n int, median, spread float64) []float64 {
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = median * math.Exp(spread*random.NormFloat64())
	}
	return ratios
}

func TestTheNumberOfPairsNamedDecidesInMostTries(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 43))
	for _, c := range []struct{ median, spread, bound float64 }{{1.01, 0.03, 0.99}, {0.97, 0.05, 0.99}, {1.1, 0.1, 1}, {0.98, 0.02, 0.99}} {
		// Many pairs, so that the median and the spread are known, and what is tested is the number.
		n, ok := PairsToDecide(drawn(random, 2001, c.median, c.spread), c.bound, 0.95)
		exact, power := math.Abs(math.Log(c.median/c.bound))/c.spread, 0
		if n != 2100 || !ok {
			t.Errorf("%+v: got %d, %v; 2,001 pairs that have not decided it ask for more of them", c, n, ok)
		}
		n, ok = PairsToDecide(quantiles(c.median, c.spread, 5), c.bound, 0.95)
		if !ok {
			t.Errorf("%+v: no number", c)
			continue
		}
		const tries = 2000
		for range tries {
			if e := MedianInterval(drawn(random, n, c.median, c.spread), 0.95); e.Against(c.bound) != Undecided {
				power++
			}
		}
		if got := float64(power) / tries; got < 0.7 || got > 0.95 {
			t.Errorf("%+v (a distance of %.2f spreads): %d pairs decide it in %.0f%% of tries, want about 80%%", c, exact, n, 100*got)
		}
	}
}

// quantiles are n ratios whose median and quartiles are those of the distribution; n is 4k+1.
func quantiles(median, spread float64, n int) []float64 {
	var ratios []float64
	for i := range n {
		z := 0.6745 * (float64(i) - float64(n-1)/2) / (float64(n-1) / 4)
		ratios = append(ratios, median*math.Exp(spread*z))
	}
	return ratios
}

func TestMorePairsAreNamedTheNearerTheGoalAndTheWiderTheSpread(t *testing.T) {
	named := func(median, spread, bound float64) int {
		n, ok := PairsToDecide(quantiles(median, spread, 9), bound, 0.95)
		if !ok {
			n = math.MaxInt
		}
		return n
	}
	for _, bound := range []float64{0.5, 0.99, 1.3} {
		last := 0
		for _, distance := range []float64{0.5, 0.2, 0.05, 0.02, 0.005, 0.002, 0.0001} {
			above, below := named(bound*(1+distance), 0.05, bound), named(bound/(1+distance), 0.05, bound)
			if above != below {
				t.Errorf("bound %v, distance %v: %d above and %d below it, but a ratio may be turned round", bound, distance, above, below)
			}
			if above < last {
				t.Errorf("bound %v, distance %v: %d pairs, fewer than farther away (%d)", bound, distance, above, last)
			}
			last = above
		}
		last = 0
		for _, spread := range []float64{0, 0.001, 0.01, 0.05, 0.2, 1} {
			n := named(bound*1.02, spread, bound)
			if n < last || n < 10 {
				t.Errorf("bound %v, spread %v: %d pairs after %d for less spread", bound, spread, n, last)
			}
			last = n
		}
	}
}

func TestNoNumberOfPairsIsNamedThatCannotBeKnown(t *testing.T) {
	for name, ratios := range map[string][]float64{
		"no pair":                      nil,
		"three pairs have no spread":   {1.1, 1.2, 1.3},
		"the median is the goal":       {0.97, 0.98, 0.99, 1.00, 1.01},
		"the median is nearly there":   {0.9, 0.95, 0.990001, 1.05, 1.1},
		"a pair has no positive ratio": {1.1, 1.2, 0, 1.3, 1.4},
		"a pair's ratio is infinite":   {1.1, 1.2, math.Inf(1), 1.3, 1.4},
		"a pair's ratio is no number":  {1.1, 1.2, math.NaN(), 1.3, 1.4},
	} {
		if n, ok := PairsToDecide(ratios, 0.99, 0.95); ok || n != 0 {
			t.Errorf("%s: got %d, %v", name, n, ok)
		}
	}
	if n, ok := PairsToDecide([]float64{1.1, 1.1, 1.1, 1.1}, 0.99, 0.95); !ok || n < 6 {
		t.Errorf("four equal pairs: got %d, %v; want six or more, since fewer have no interval", n, ok)
	}
	for n, want := range map[int]int{6: 6, 99: 99, 100: 100, 101: 110, 1234: 1300, 9999: 10000} {
		if got := twoDigits(n); got != want {
			t.Errorf("twoDigits(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestEveryReportSaysHowManyPairsWouldDecide(t *testing.T) {
	e := pingPong(5, 6)
	for i, r := range e.Runs { // all sizes as wide as they must be for the goal to be inside
		for j, p := range r.Points {
			us := 10 * math.Exp(0.02*float64(r.Pair%3))
			if r.Side == "cluster" {
				us = 10.2 * math.Exp(0.02*float64((r.Pair+r.Pair/3)%3))
			}
			e.Runs[i].Points[j].Values = map[string]float64{LatencyUS: us, BandwidthMBPerS: p.X / us}
		}
	}
	report, err := NewReport(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Analysis.Decisions) != 2 || report.Analysis.Decisions[0].Verdict != Undecided || report.Analysis.Decisions[0].PairsToDecide == 0 {
		t.Fatalf("the goal is not undecided, or without a number: %+v", report.Analysis.Decisions)
	}
	var text, page, data bytes.Buffer
	if err := errors.Join(report.WriteText(&text), report.WriteJSON(&data), WriteHTML(&page, "t", time.Unix(0, 0), report)); err != nil {
		t.Fatal(err)
	}
	for name, has := range map[string]bool{
		"text": strings.Contains(text.String(), " pairs would decide it"), "page": strings.Contains(page.String(), " pairs would decide it"),
		"JSON": strings.Contains(data.String(), `"pairs_to_decide": `),
	} {
		if !has {
			t.Errorf("the %s does not say how many pairs would decide:\n%s", name, text.String())
		}
	}
}
