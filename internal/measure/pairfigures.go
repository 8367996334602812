package measure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// pairFigures draws an experiment of one size, which has no curve: one figure a metric with every run by pair, and one of all
// efficiencies.
func (r Report) pairFigures() []figure {
	var out []figure
	for _, m := range r.Experiment.Metrics {
		if f, ok := r.runsFigure(m); ok {
			out = append(out, f)
		}
	}
	if f, ok := r.ratiosFigure(); ok {
		out = append(out, f)
	}
	return out
}

// runsFigure shows what each side measured in each pair.
func (r Report) runsFigure(m Metric) (figure, bool) {
	p := plot{
		label: fmt.Sprintf("%s by pair, one line a side", m.Title), xTitle: "Pair", yTitle: fmt.Sprintf("%s (%s)", m.Title, m.Unit), width: 560, height: 300,
	}
	low, high, last := math.Inf(1), math.Inf(-1), 0
	for _, side := range r.Experiment.Sides {
		s := series{name: side.Name, class: r.class(side.Name)}
		for _, run := range r.Experiment.Runs {
			if run.Side != side.Name || side.Reference {
				continue
			}
			for _, point := range run.Points {
				if v, ok := point.Values[m.Name]; ok {
					s.points = append(s.points, plotPoint{float64(run.Pair + 1), v, v, v})
					low, high, last = min(low, v), max(high, v), max(last, run.Pair+1)
				}
			}
		}
		if len(s.points) > 0 {
			p.series = append(p.series, s)
		}
	}
	if len(p.series) == 0 {
		return figure{}, false
	}
	p.x = counts(last, func(i int) string { return fmt.Sprint(i) })
	// A twentieth of the values at least, so that noise of a percent does not fill the figure; and room for the legend.
	low, high = min(low, 0.95*high), max(high, low/0.95)
	p.y = linear(low, high+0.25*(high-low))
	better := "lower"
	if m.HigherIsBetter {
		better = "higher"
	}
	return figure{svg: p.svg(), caption: fmt.Sprintf("%s of every run; %s is better. The two runs of a pair follow each other at once.", m.Title, better)}, true
}

// ratiosFigure shows the efficiency in every metric: each pair, their median and its interval.
func (r Report) ratiosFigure() (figure, bool) {
	var titles []string
	base := r.Experiment.Sides[0].Name
	p := plot{label: "Efficiency with confidence intervals, by metric", yTitle: "Efficiency", width: 1140, height: 340, rules: []rule{{1, "1.0: as good as " + base, "one"}}}
	low, high, goals := 1.0, 1.0, map[float64]bool{}
	each := series{name: "one pair", class: "each", loose: true}
	medians := make([]series, len(r.compared()))
	for i, side := range r.compared() {
		medians[i] = series{name: side.Name + ", median and interval", class: r.class(side.Name), bars: true, loose: true}
	}
	for _, c := range r.Analysis.Comparisons {
		m := r.metric(c.Metric)
		if m.DerivedFrom != "" || len(c.Ratios) == 0 {
			continue
		}
		title := m.Title
		if len(medians) > 1 {
			title += ", " + c.Side
		}
		titles = append(titles, title)
		at := float64(len(titles))
		q := plotPoint{at, c.Efficiency.Value, c.Efficiency.Value, c.Efficiency.Value}
		if c.Efficiency.Bounded() {
			q.low, q.high = c.Efficiency.Low, c.Efficiency.High
		}
		low, high = min(low, q.low), max(high, q.high)
		for i, side := range r.compared() {
			if side.Name == c.Side {
				medians[i].points = append(medians[i].points, q)
			}
		}
		for i, ratio := range c.Ratios {
			x := at + 0.12 + 0.18*float64(i+1)/float64(len(c.Ratios)+1) // beside the interval, in the order of time
			each.points = append(each.points, plotPoint{x, ratio, ratio, ratio})
			low, high = min(low, ratio), max(high, ratio)
		}
		for _, goal := range r.goals(m) {
			low, high = min(low, goal), max(high, goal)
			goals[goal] = true
		}
	}
	if len(titles) == 0 {
		return figure{}, false
	}
	p.series = append(medians, each)
	p.x = counts(len(titles), func(i int) string { return titles[i-1] })
	for _, goal := range slices.Sorted(maps.Keys(goals)) {
		p.addGoal(goal, low, high)
	}
	low, high = min(low, 0.98), max(high, 1.02)
	p.y = linear(low, high+0.15*(high-low)) // room for the legend
	return figure{svg: p.svg(), wide: true, caption: fmt.Sprintf("Efficiency relative to %s: median of %s paired ratios, with an interval of at least %.0f%% confidence "+
		"(sign test); beside it every pair. Above 1 is better than %s.", base, r.pairs(""), 100*r.Analysis.Level, base)}, true
}

// addGoal draws a goal, unless it lies where 1.0 is drawn in a figure of that range.
func (p *plot) addGoal(goal, low, high float64) {
	if math.Abs(goal-1) > 0.02*max(high-low, 0.1) {
		p.rules = append(p.rules, rule{goal, fmt.Sprintf("goal %.3g", goal), "goal"})
	}
}

// counts is a scale of the numbers 1 to n with a label each, and room at both ends.
func counts(n int, label func(int) string) scale {
	s := scale{low: 0.5, high: float64(n) + 0.5}
	every := 1 + (n-1)/20
	for i := 1; i <= n; i++ {
		t := tick{at: float64(i)}
		if (i-1)%every == 0 {
			t.label = strings.TrimSpace(label(i))
		}
		s.ticks = append(s.ticks, t)
	}
	return s
}
