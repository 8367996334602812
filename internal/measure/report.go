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

// WriteJSON writes everything of several reports: {"reports": [...]}.
func WriteJSON(w io.Writer, reports ...Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(struct {
		Reports []Report `json:"reports"`
	}{reports})
}

// WriteText writes a table for a terminal: a line a size, the sides' medians, the efficiency with its interval.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Experiment.Title)
	if r.Experiment.Oversubscribed != "" {
		fmt.Fprintf(&b, "OVERSUBSCRIBED: %s\n", r.Experiment.Oversubscribed)
	}
	if r.Analysis.Unlike != "" {
		fmt.Fprintf(&b, "UNLIKE: %s\n", r.Analysis.Unlike)
	}
	for _, table := range r.tables() {
		if table.title != "" {
			fmt.Fprintf(&b, "%s:\n", table.title)
		}
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range append([][]string{table.header}, table.rows...) {
			fmt.Fprintf(t, "%s\t\n", strings.Join(row, "\t"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if table.note != "" {
			fmt.Fprintf(&b, "%s\n", table.note)
		}
	}
	b.WriteString(r.method() + "\n")
	if carriers := r.Experiment.carriers(); carriers != "" {
		fmt.Fprintf(&b, "Messages were carried by, as MPI said: %s.\n", carriers)
	}
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

// table is the results in one metric and those derived from it, a row a size.
type table struct {
	title  string
	header []string
	rows   [][]string
	note   string
}

// tables returns one table a metric that is not derived, of which a single one needs no title, and those of the experiment.
func (r Report) tables() []table {
	var out []table
	for _, m := range r.Experiment.Metrics {
		if m.DerivedFrom != "" {
			continue
		}
		group := []Metric{m}
		for _, d := range r.Experiment.Metrics {
			if d.DerivedFrom == m.Name {
				group = append(group, d)
			}
		}
		t := table{title: m.Title, header: append([]string{r.Experiment.Axis.Name}, r.header(group)...)}
		for _, x := range r.sizes() {
			t.rows = append(t.rows, append([]string{r.Experiment.Axis.size(x)}, r.row(group, x)...))
		}
		out = append(out, t)
	}
	if len(out) == 1 {
		out[0].title = ""
	}
	for _, t := range r.Experiment.Tables {
		out = append(out, table{t.Title, t.Header, t.Rows, t.Note})
	}
	return out
}

// header and row are the columns after the size: per metric the sides' medians, then the efficiencies in the first metric.
func (r Report) header(group []Metric) []string {
	var cells []string
	for _, m := range group {
		for _, s := range r.Experiment.Sides {
			cells = append(cells, s.Name+" "+m.Unit)
		}
	}
	for _, s := range r.compared() {
		title := "efficiency"
		if len(r.compared()) > 1 {
			title = s.Name + " " + title
		}
		cells = append(cells, title, fmt.Sprintf("%.0f%% interval", 100*r.Analysis.Level))
	}
	return cells
}

func (r Report) row(group []Metric, x float64) []string {
	var cells []string
	for _, m := range group {
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
	for _, s := range r.compared() {
		if c, ok := r.Analysis.Find(group[0].Name, s.Name, x); ok {
			cells = append(cells, fmt.Sprintf("%.3f", c.Efficiency.Value), c.Efficiency.interval())
		} else {
			cells = append(cells, "-", "-")
		}
	}
	return cells
}

// pairs is how many pairs comparisons have in a metric, or in any if it is "": a number, or "2 to 6".
func (r Report) pairs(metric string) string {
	low, high, seen := 0, 0, false
	for _, c := range r.Analysis.Comparisons {
		if metric != "" && c.Metric != metric {
			continue
		}
		n := len(c.Ratios)
		if !seen {
			low, high, seen = n, n, true
		}
		low, high = min(low, n), max(high, n)
	}
	if low != high {
		return fmt.Sprintf("%d to %d", low, high)
	}
	return fmt.Sprint(low)
}

// method says in a sentence or two what the numbers are.
func (r Report) method() string {
	base := r.Experiment.Sides[0].Name
	return fmt.Sprintf("Medians of %s runs a side in alternating order. Efficiency: median of the paired ratios to %s,\nturned so that "+
		"1 is as good as %s and more is better; interval: sign test on the pairs, at least %.0f%%.", r.pairs(""), base, base, 100*r.Analysis.Level)
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
			line += "; " + r.Analysis.decision(h).text()
		}
		if r.oversubscribed(h.X) {
			line += " (oversubscribed)"
		}
		out = append(out, line)
	}
	return out
}

// oversubscribed tells whether cores were shared at this size.
func (r Report) oversubscribed(x float64) bool {
	return r.Experiment.Oversubscribed != "" && x >= r.Experiment.OversubscribedFrom
}

func (r Report) metric(name string) Metric {
	for _, m := range r.Experiment.Metrics {
		if m.Name == name {
			return m
		}
	}
	return Metric{Name: name, Title: name}
}
