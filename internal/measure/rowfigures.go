package measure

import (
	"fmt"
	"strings"
)

// rowFigures draws an experiment whose X are things in a row and no sizes: one figure of efficiencies for each metric that is not derived.
func (r Report) rowFigures() []figure {
	var out []figure
	for _, m := range r.Experiment.Metrics {
		if f, ok := r.rowFigure(m); ok && m.DerivedFrom == "" {
			out = append(out, f)
		}
	}
	return out
}

// rowFigure shows the efficiency of each side at each thing, with its interval; the sides stand beside each other.
func (r Report) rowFigure(m Metric) (figure, bool) {
	labels, sides := r.Experiment.Axis.Labels, r.compared()
	base, what := r.Experiment.Sides[0].Name, "Efficiency, "+strings.ToLower(m.Title)
	p := plot{
		label: fmt.Sprintf("%s, by %s, with confidence intervals", what, strings.ToLower(r.Experiment.Axis.Name)), xTitle: r.Experiment.Axis.Name, yTitle: what,
		width: 1140, height: 360, x: counts(len(labels), func(i int) string { return labels[i-1] }), rules: []rule{{1, "1.0: as good as " + base, "one"}},
	}
	low, high := 1.0, 1.0
	for i, side := range sides {
		s := series{name: side.Name, class: r.class(side.Name), bars: true, loose: true}
		beside := 0.6 * (float64(i) - float64(len(sides)-1)/2) / float64(len(sides))
		for x := range labels {
			c, ok := r.Analysis.Find(m.Name, side.Name, float64(x+1))
			if !ok || len(c.Ratios) == 0 {
				continue
			}
			q := plotPoint{float64(x+1) + beside, c.Efficiency.Value, c.Efficiency.Value, c.Efficiency.Value}
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
		low, high = min(low, goal), max(high, goal)
		p.addGoal(goal, low, high)
	}
	p.y = linear(min(low, 0.98), max(high, 1.02)+0.3*(max(high, 1.02)-min(low, 0.98))) // room for the legend
	return figure{svg: p.svg(), wide: true, caption: fmt.Sprintf("%s relative to %s: median of %s paired ratios, with an interval of at least %.0f%% confidence "+
		"for each by itself (sign test). Above 1 is better than %s.", what, base, r.pairs(m.Name), 100*r.Analysis.Level, base)}, true
}
