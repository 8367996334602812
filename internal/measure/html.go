package measure

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed report.html.tmpl
var pageSource string

// highlightCard is a highlight as the page shows it.
type highlightCard struct {
	Title, Efficiency, Interval, Detail, Goal, Class string
}

type pageSection struct {
	Report
	Number  int
	Cards   []highlightCard
	Figures []pageFigure
	Tables  []pageTable
	Method  string
	// Carriers says what carried each side's messages.
	Carriers string
}

type pageFigure struct {
	SVG     template.HTML
	Caption string
	Wide    bool
}

type pageTable struct {
	Title  string
	Header []string
	Rows   [][]string
	Note   string
}

// WriteHTML writes one self-contained page of one or more reports: no script, no font, nothing fetched. It reads well on
// paper, on a light screen and on a dark one.
func WriteHTML(w io.Writer, title string, made time.Time, reports ...Report) error {
	page, err := template.New("report").Parse(pageSource)
	if err != nil {
		return fmt.Errorf("the report's template is broken: %w", err)
	}
	data := struct {
		Title, Made string
		Sections    []pageSection
	}{Title: title, Made: made.UTC().Format("2 January 2006, 15:04 UTC")}
	count := 0
	for i, r := range reports {
		s := pageSection{Report: r, Number: i + 1, Method: r.method(), Cards: r.cards(), Carriers: r.Experiment.carriers()}
		for _, f := range r.figures() {
			count++
			//nolint:gosec // drawn by this package, which escapes all text
			s.Figures = append(s.Figures, pageFigure{SVG: template.HTML(f.svg), Caption: fmt.Sprintf("Figure %d. %s", count, f.caption), Wide: f.wide})
		}
		for _, t := range r.tables() {
			s.Tables = append(s.Tables, pageTable{t.title, t.header, t.rows, t.note})
		}
		data.Sections = append(data.Sections, s)
	}
	if err := page.Execute(w, data); err != nil {
		return fmt.Errorf("the report can't be written: %w", err)
	}
	return nil
}

func (r Report) cards() []highlightCard {
	var out []highlightCard
	for _, h := range r.Experiment.Highlights {
		c, ok := r.Analysis.Find(h.Metric, h.Side, h.X)
		if !ok {
			continue
		}
		m := r.metric(h.Metric)
		card := highlightCard{
			Title:      fmt.Sprintf("%s at %s", m.Title, r.Experiment.Axis.size(h.X)),
			Efficiency: fmt.Sprintf("%.3f", c.Efficiency.Value),
			Interval:   c.Efficiency.interval(),
			Detail: fmt.Sprintf("%s %s %s, %s %s %s", r.Experiment.Sides[0].Name, number(c.Baseline.Median), m.Unit,
				h.Side, number(c.Subject.Median), m.Unit),
		}
		if r.oversubscribed(h.X) {
			card.Detail += " (oversubscribed)"
		}
		if h.Goal > 0 {
			d := r.Analysis.decision(h)
			card.Goal, card.Class = d.text(), string(d.Verdict)
		}
		out = append(out, card)
	}
	return out
}
