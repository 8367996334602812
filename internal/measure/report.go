package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Report renders an experiment and its analysis. Every rendering carries the conditions, the number of pairs and the
// oversubscription.
type Report struct {
	Experiment Experiment `json:"experiment"`
	Analysis   Analysis   `json:"analysis"`
}

// NewReport analyzes the experiment at the given level (DefaultLevel when 0).
func NewReport(e Experiment, level float64) (Report, error) {
	a, err := Analyze(e, level)
	return Report{Experiment: e, Analysis: a}, err
}

// WriteJSON writes everything: runs, conditions, estimates.
func (r Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

// WriteText writes a table for a terminal: a line a size, the sides' medians, the efficiency with its interval.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Experiment.Title)
	if r.Experiment.Oversubscribed != "" {
		fmt.Fprintf(&b, "OVERSUBSCRIBED: %s\n", r.Experiment.Oversubscribed)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s\t%s\t\n", r.Experiment.Axis.Name, strings.Join(r.header(), "\t"))
	for _, x := range r.sizes() {
		fmt.Fprintf(t, "%s\t%s\t\n", r.Experiment.Axis.size(x), strings.Join(r.row(x), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	b.WriteString(r.method() + "\n")
	for _, line := range r.Highlights() {
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// sizes returns all sizes measured, ascending.
func (r Report) sizes() []float64 {
	var all []float64
	for _, m := range r.Experiment.Metrics {
		if s := r.Analysis.Sizes(m.Name); len(s) > len(all) {
			all = s
		}
	}
	return all
}

// compared lists the sides that are compared with the baseline.
func (r Report) compared() []Side {
	var out []Side
	for _, s := range r.Experiment.Sides[1:] {
		if !s.Reference {
			out = append(out, s)
		}
	}
	return out
}

// header and row are the columns after the size: per metric the sides' medians and, unless derived, the efficiencies.
func (r Report) header() []string {
	var cells []string
	for _, m := range r.Experiment.Metrics {
		for _, s := range r.Experiment.Sides {
			cells = append(cells, s.Name+" "+r.columnUnit(m))
		}
	}
	for _, m := range r.Experiment.Metrics {
		for _, s := range r.compared() {
			if m.DerivedFrom == "" {
				cells = append(cells, r.efficiencyTitle(m, s), fmt.Sprintf("%.0f%% interval", 100*r.Analysis.Level))
			}
		}
	}
	return cells
}

// columnUnit names a metric by its unit alone when no other metric has that unit.
func (r Report) columnUnit(m Metric) string {
	for _, other := range r.Experiment.Metrics {
		if other.Name != m.Name && other.Unit == m.Unit {
			return strings.ToLower(m.Title) + " " + m.Unit
		}
	}
	return m.Unit
}

// efficiencyTitle names an efficiency no longer than needed to tell it from the report's others.
func (r Report) efficiencyTitle(m Metric, s Side) string {
	title := "efficiency"
	if len(r.compared()) > 1 {
		title = s.Name + " " + title
	}
	original := 0
	for _, m := range r.Experiment.Metrics {
		if m.DerivedFrom == "" {
			original++
		}
	}
	if original > 1 {
		title += ", " + strings.ToLower(m.Title)
	}
	return title
}

func (r Report) row(x float64) []string {
	var cells []string
	for _, m := range r.Experiment.Metrics {
		for _, s := range r.Experiment.Sides {
			cell := "-"
			for _, l := range r.Analysis.Line(m.Name, s.Name) {
				if l.X == x {
					cell = number(l.Spread.Median)
				}
			}
			cells = append(cells, cell)
		}
	}
	for _, m := range r.Experiment.Metrics {
		for _, s := range r.compared() {
			if m.DerivedFrom != "" {
				continue
			}
			if c, ok := r.Analysis.Find(m.Name, s.Name, x); ok {
				cells = append(cells, fmt.Sprintf("%.3f", c.Efficiency.Value), c.Efficiency.interval())
			} else {
				cells = append(cells, "-", "-")
			}
		}
	}
	return cells
}

// pairs returns the smallest and largest number of pairs behind an efficiency.
func (r Report) pairs() (low, high int) {
	for i, c := range r.Analysis.Comparisons {
		n := len(c.Ratios)
		if i == 0 {
			low, high = n, n
		}
		low, high = min(low, n), max(high, n)
	}
	return low, high
}

// method says in a sentence or two what the numbers are.
func (r Report) method() string {
	low, high := r.pairs()
	count := fmt.Sprintf("%d", low)
	if low != high {
		count = fmt.Sprintf("%d to %d", low, high)
	}
	base := r.Experiment.Sides[0].Name
	return fmt.Sprintf("Medians of %s runs a side in alternating order. Efficiency: median of the paired ratios to %s,\nturned so that "+
		"1 is as good as %s and more is better; interval: sign test on the pairs, at least %.0f%%.", count, base, base, 100*r.Analysis.Level)
}

// Highlights returns the results to be looked at first, one sentence each.
func (r Report) Highlights() []string {
	var out []string
	for _, h := range r.Experiment.Highlights {
		c, ok := r.Analysis.Find(h.Metric, h.Side, h.X)
		if !ok {
			continue
		}
		m := r.metric(h.Metric)
		line := fmt.Sprintf("%s at %s: %s %s %s, %s %s %s: efficiency %.3f %s", m.Title, r.Experiment.Axis.size(h.X),
			r.Experiment.Sides[0].Name, number(c.Baseline.Median), m.Unit, h.Side, number(c.Subject.Median), m.Unit,
			c.Efficiency.Value, c.Efficiency.interval())
		if h.Goal > 0 {
			line += "; " + goalText(c.Efficiency.Against(h.Goal), h.Goal)
		}
		if r.Experiment.Oversubscribed != "" {
			line += " (oversubscribed)"
		}
		out = append(out, line)
	}
	return out
}

func goalText(v Verdict, goal float64) string {
	switch v {
	case Above:
		return fmt.Sprintf("goal %.3g reached", goal)
	case Below:
		return fmt.Sprintf("goal %.3g not reached", goal)
	default:
		return fmt.Sprintf("goal %.3g undecided", goal)
	}
}

func (r Report) metric(name string) Metric {
	for _, m := range r.Experiment.Metrics {
		if m.Name == name {
			return m
		}
	}
	return Metric{Name: name, Title: name}
}
