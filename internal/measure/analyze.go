package measure

import (
	"fmt"
	"maps"
	"slices"
)

// Spread describes the runs of one side at one size.
type Spread struct {
	Runs   int     `json:"runs"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Q1     float64 `json:"q1"`
	Q3     float64 `json:"q3"`
}

// SpreadOf describes values; the zero Spread for none.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	return Spread{
		Runs: len(values), Median: Median(values), Min: slices.Min(values), Max: slices.Max(values),
		Q1: Quantile(values, 0.25), Q3: Quantile(values, 0.75),
	}
}

// Comparison is one side against the baseline, in one metric at one size.
type Comparison struct {
	Metric string  `json:"metric"`
	Side   string  `json:"side"`
	X      float64 `json:"x"`
	// Baseline and Subject describe the runs of all pairs.
	Baseline Spread `json:"baseline"`
	Subject  Spread `json:"subject"`
	// Ratios are the efficiencies of the pairs, in the order of the pairs: above 1 the subject is better.
	Ratios []float64 `json:"ratios"`
	// Efficiency is the median of the ratios with its distribution-free interval; verdicts are taken from it.
	Efficiency Estimate `json:"efficiency"`
	// GeoMean is the geometric mean with its t interval, for comparison.
	GeoMean Estimate `json:"geometric_mean"`
}

// Line is what a side measured, pairs or not, in one metric at one size.
type Line struct {
	Metric string  `json:"metric"`
	Side   string  `json:"side"`
	X      float64 `json:"x"`
	Spread Spread  `json:"spread"`
}

// Analysis is what an experiment says.
type Analysis struct {
	Level       float64      `json:"level"`
	Lines       []Line       `json:"lines"`
	Comparisons []Comparison `json:"comparisons"`
	// Unlike, if not empty, says why the ratios are not of like with like: what carried the messages differed within a pair.
	Unlike string `json:"unlike,omitempty"`
	// Decisions are about the highlights that have a goal, in their order.
	Decisions []Decision `json:"decisions,omitempty"`
}

// DefaultLevel is the confidence level of intervals.
const DefaultLevel = 0.95

// Analyze pairs the runs and estimates efficiencies at the given level (DefaultLevel when 0). A pair whose one side lacks a
// size is left out at that size only, and the number of ratios shows it.
func Analyze(e Experiment, level float64) (Analysis, error) {
	if level == 0 {
		level = DefaultLevel
	}
	if err := e.Validate(); err != nil {
		return Analysis{}, err
	}
	a := Analysis{Level: level, Unlike: e.unlike()}
	for _, m := range e.Metrics {
		values := e.collect(m.Name)
		for _, side := range e.Sides {
			for _, x := range slices.Sorted(maps.Keys(values[side.Name])) {
				all := slices.Collect(maps.Values(values[side.Name][x]))
				a.Lines = append(a.Lines, Line{Metric: m.Name, Side: side.Name, X: x, Spread: SpreadOf(all)})
				if side.Name == e.Sides[0].Name || side.Reference {
					continue
				}
				c, err := compare(m, values[e.Sides[0].Name][x], values[side.Name][x], level)
				if err != nil {
					return Analysis{}, fmt.Errorf("%s of %s at %v: %w", m.Name, side.Name, x, err)
				}
				c.Side, c.X = side.Name, x
				if len(c.Ratios) > 0 { // a metric that few runs have may be in no pair
					a.Comparisons = append(a.Comparisons, c)
				}
			}
		}
	}
	a.Decisions = a.decide(e.Highlights)
	return a, nil
}

// collect returns a metric's values by side, size and pair. Runs of a reference side are numbered as they come.
func (e Experiment) collect(metric string) map[string]map[float64]map[int]float64 {
	values := map[string]map[float64]map[int]float64{}
	for i, r := range e.Runs {
		pair := r.Pair
		if slices.ContainsFunc(e.Sides, func(s Side) bool { return s.Name == r.Side && s.Reference }) {
			pair = i
		}
		for _, p := range r.Points {
			v, ok := p.Values[metric]
			if !ok {
				continue
			}
			if values[r.Side] == nil {
				values[r.Side] = map[float64]map[int]float64{}
			}
			if values[r.Side][p.X] == nil {
				values[r.Side][p.X] = map[int]float64{}
			}
			values[r.Side][p.X][pair] = v
		}
	}
	return values
}

func compare(m Metric, baseline, subject map[int]float64, level float64) (Comparison, error) {
	c := Comparison{Metric: m.Name}
	var base, subj []float64
	for _, pair := range slices.Sorted(maps.Keys(subject)) {
		b, ok := baseline[pair]
		if !ok {
			continue
		}
		s := subject[pair]
		base, subj = append(base, b), append(subj, s)
		if m.HigherIsBetter {
			c.Ratios = append(c.Ratios, s/b)
		} else {
			c.Ratios = append(c.Ratios, b/s)
		}
	}
	c.Baseline, c.Subject = SpreadOf(base), SpreadOf(subj)
	c.Efficiency = MedianInterval(c.Ratios, level)
	var err error
	c.GeoMean, err = GeoMeanInterval(c.Ratios, level)
	return c, err
}

// Find returns the comparison of a side in a metric at a size.
func (a Analysis) Find(metric, side string, x float64) (Comparison, bool) {
	for _, c := range a.Comparisons {
		if c.Metric == metric && c.Side == side && c.X == x {
			return c, true
		}
	}
	return Comparison{}, false
}

// Sizes returns the sizes measured in a metric, ascending.
func (a Analysis) Sizes(metric string) []float64 {
	set := map[float64]bool{}
	for _, l := range a.Lines {
		if l.Metric == metric {
			set[l.X] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// Line returns the points of a side in a metric, by ascending size.
func (a Analysis) Line(metric, side string) []Line {
	var out []Line
	for _, l := range a.Lines {
		if l.Metric == metric && l.Side == side {
			out = append(out, l)
		}
	}
	return out
}
