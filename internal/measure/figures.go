package measure

import (
	"fmt"
	"math"
	"strings"
)

// figure is a drawing with what stands below it.
type figure struct {
	svg     string
	caption string
	wide    bool
}

// figures draws one figure a metric and one a set of efficiencies.
func (r Report) figures() []figure {
	switch {
	case len(r.Experiment.Axis.Labels) > 0:
		return r.rowFigures()
	case len(r.sizes()) == 1:
		return r.pairFigures()
	}
	var out []figure
	for _, m := range r.Experiment.Metrics {
		if f, ok := r.metricFigure(m); ok {
			out = append(out, f)
		}
	}
	for _, m := range r.Experiment.Metrics {
		if m.DerivedFrom != "" {
			continue
		}
		if f, ok := r.efficiencyFigure(m); ok {
			out = append(out, f)
		}
	}
	return out
}

func (r Report) class(side string) string {
	n := 0
	for _, s := range r.Experiment.Sides {
		if s.Name == side {
			if s.Reference {
				return "ref"
			}
			return fmt.Sprintf("s%d", n)
		}
		if !s.Reference {
			n++
		}
	}
	return "ref"
}

func (r Report) metricFigure(m Metric) (figure, bool) {
	sizes := r.Analysis.Sizes(m.Name)
	if len(sizes) == 0 {
		return figure{}, false
	}
	p := plot{
		label:  fmt.Sprintf("%s by %s, one line a side", m.Title, strings.ToLower(r.Experiment.Axis.Name)),
		xTitle: r.Experiment.Axis.Name, yTitle: fmt.Sprintf("%s (%s)", m.Title, m.Unit),
		width: 560, height: 380, x: sizeScale(r.Experiment.Axis, sizes),
	}
	low, high, runs := math.Inf(1), 0.0, 0
	for _, side := range r.Experiment.Sides {
		s := series{name: side.Name, class: r.class(side.Name)}
		for _, l := range r.Analysis.Line(m.Name, side.Name) {
			s.points = append(s.points, plotPoint{l.X, l.Spread.Median, l.Spread.Min, l.Spread.Max})
			low, high = min(low, l.Spread.Min), max(high, l.Spread.Max)
			if !side.Reference {
				runs = max(runs, l.Spread.Runs)
			}
		}
		if len(s.points) > 0 {
			p.series = append(p.series, s)
		}
	}
	p.y = decades(low, high)
	better := "lower"
	if m.HigherIsBetter {
		better = "higher"
	}
	return figure{svg: p.svg(), caption: fmt.Sprintf("%s by %s; %s is better. Line: median of %d runs; shaded: from the lowest to the highest run. Both axes are logarithmic.",
		m.Title, strings.ToLower(r.Experiment.Axis.Name), better, runs)}, true
}

func (r Report) efficiencyFigure(m Metric) (figure, bool) {
	sizes := r.Analysis.Sizes(m.Name)
	if len(sizes) == 0 {
		return figure{}, false
	}
	base := r.Experiment.Sides[0].Name
	p := plot{
		label:  fmt.Sprintf("Efficiency by %s with confidence intervals", strings.ToLower(r.Experiment.Axis.Name)),
		xTitle: r.Experiment.Axis.Name, yTitle: "Efficiency", width: 1140, height: 360, x: sizeScale(r.Experiment.Axis, sizes),
		rules: []rule{{1, "1.0: as good as " + base, "one"}},
	}
	low, high := 1.0, 1.0
	for _, side := range r.compared() {
		s := series{name: side.Name, class: r.class(side.Name), bars: true}
		for _, x := range sizes {
			c, ok := r.Analysis.Find(m.Name, side.Name, x)
			if !ok || len(c.Ratios) == 0 {
				continue
			}
			q := plotPoint{x, c.Efficiency.Value, c.Efficiency.Value, c.Efficiency.Value}
			if c.Efficiency.Bounded() {
				q.low, q.high = c.Efficiency.Low, c.Efficiency.High
			}
			s.points = append(s.points, q)
			low, high = min(low, q.low), max(high, q.high)
		}
		if len(s.points) > 0 {
			p.series = append(p.series, s)
		}
	}
	if len(p.series) == 0 {
		return figure{}, false
	}
	for _, goal := range r.goals(m) {
		p.addGoal(goal, low, high)
		low, high = min(low, goal), max(high, goal)
	}
	p.y = linear(min(low, 0.98), max(high, 1.02))
	what := "Efficiency"
	if len(r.tables()) > 1 {
		what += ", " + strings.ToLower(m.Title)
		p.yTitle = what
	}
	return figure{svg: p.svg(), wide: true, caption: fmt.Sprintf("%s relative to %s: median of %s paired ratios, with an interval of at least %.0f%% confidence "+
		"at each size by itself (sign test). Above 1 is better than %s.", what, base, r.pairs(m.Name), 100*r.Analysis.Level, base)}, true
}

// goals lists the different goals set for a metric.
func (r Report) goals(m Metric) []float64 {
	var out []float64
	seen := map[float64]bool{}
	for _, h := range r.Experiment.Highlights {
		derived := r.metric(h.Metric).DerivedFrom == m.Name
		if h.Goal > 0 && !seen[h.Goal] && (h.Metric == m.Name || derived) {
			seen[h.Goal] = true
			out = append(out, h.Goal)
		}
	}
	return out
}
