package measure

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// pingPong makes up an experiment that looks like a real one, from a seed.
func pingPong(seed uint64, pairs int) Experiment {
	e := Experiment{
		Title:   "MPI ping-pong: bare host and cluster on the same cores",
		Summary: "Two ranks exchange messages. Simulated for a test.",
		Axis:    Axis{Name: "Message size", Unit: "B", Bytes: true}, Metrics: PingPongMetrics(),
		Sides: []Side{
			{Name: "host", Description: "CPUs 0 and 1, Open MPI over TCP on the loopback interface"},
			{Name: "cluster", Description: "two members on CPUs 0 and 1, Open MPI over TCP on veth and bridge"},
			{Name: "shared memory", Description: "CPUs 0 and 1, no network at all", Reference: true},
		},
		Highlights: []Highlight{{LatencyUS, "cluster", 8, 0.99}, {BandwidthMBPerS, "cluster", 4 << 20, 0.99}},
		Conditions: []Condition{{"Kernel", "Linux 6.18.44 x86_64"}, {"Processor", "4 x AMD EPYC"}, {"MPI", "Open MPI v4.1.4"}},
	}
	random := rand.New(rand.NewPCG(seed, 2))
	curve := func(overhead, perByte float64) []Point {
		var points []Point
		slow := math.Exp(0.05 * random.NormFloat64())
		for size := 8.0; size <= 4<<20; size *= 2 {
			us := (overhead + size*perByte) * slow * math.Exp(0.04*random.NormFloat64())
			points = append(points, Point{X: size, Values: map[string]float64{LatencyUS: us, BandwidthMBPerS: size / us}})
		}
		return points
	}
	for pair, order := range Schedule([]string{"host", "cluster"}, pairs) {
		for _, side := range order {
			points := curve(5.2, 1.0/5500)
			if side == "cluster" {
				points = curve(6.1, 1.0/5200)
			}
			e.Runs = append(e.Runs, Run{Side: side, Pair: pair, DurationSeconds: 3, Points: points})
		}
	}
	e.Runs = append(e.Runs, Run{Side: "shared memory", Points: curve(0.25, 1.0/11000)})
	return e
}

func TestAReportCarriesWhatAReaderMustKnow(t *testing.T) {
	e := pingPong(1, 6)
	e.Oversubscribed = "2 members share CPU 0"
	report, err := NewReport(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text, page, data bytes.Buffer
	if err := errors.Join(report.WriteText(&text), report.WriteJSON(&data), WriteHTML(&page, e.Title, time.Unix(0, 0), report)); err != nil {
		t.Fatal(err)
	}
	for name, out := range map[string]string{"text": text.String(), "page": page.String(), "JSON": data.String()} {
		for _, must := range []string{"share CPU 0", "cluster", "host"} {
			if !strings.Contains(out, must) {
				t.Errorf("the %s does not say %q", name, must)
			}
		}
	}
	for _, must := range []string{"4 MiB", "8 B", "goal 0.99 not reached", "OVERSUBSCRIBED", "Medians of 6 runs a side in alternating order"} {
		if !strings.Contains(text.String(), must) {
			t.Errorf("the text does not say %q:\n%s", must, text.String())
		}
	}
	for _, must := range []string{"Linux 6.18.44", "Open MPI v4.1.4", "loopback", "Figure 3."} {
		if !strings.Contains(page.String(), must) {
			t.Errorf("the page does not say %q", must)
		}
	}
	var back Report
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || len(back.Experiment.Runs) != 13 {
		t.Errorf("the JSON does not hold all runs: %d, %v", len(back.Experiment.Runs), err)
	}
	if path := os.Getenv("MEASURE_SAMPLE"); path != "" { // to look at it
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Log("\n" + text.String())
	}
}

func TestThePageNeedsNothingButItself(t *testing.T) {
	report, err := NewReport(pingPong(2, 6), 0)
	if err != nil {
		t.Fatal(err)
	}
	report.Experiment.Title = `<script>alert("x")</script>`
	report.Experiment.Sides[1].Description = `<img src="x">`
	var page bytes.Buffer
	if err := WriteHTML(&page, "t", time.Unix(0, 0), report, report); err != nil {
		t.Fatal(err)
	}
	for _, never := range []string{"http:", "https:", "<script", "<img", "<link", "@import", "url(", "NaN", "Inf"} {
		if strings.Contains(page.String(), never) {
			t.Errorf("the page holds %q", never)
		}
	}
	for _, f := range report.figures() {
		d := xml.NewDecoder(strings.NewReader(f.svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("a figure is not well-formed: %v", err)
			}
		}
	}
}

func TestPointsFromZeroOnAreDrawn(t *testing.T) {
	e := pingPong(2, 6)
	for i := range e.Runs {
		e.Runs[i].Points = slices.Clone(e.Runs[i].Points[:4])
		for n, size := range []float64{0, 25, 75, 150} {
			e.Runs[i].Points[n].X = size
		}
	}
	e.Highlights = nil
	report, err := NewReport(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.figures() {
		if strings.Contains(f.svg, "NaN") || strings.Contains(f.svg, "Inf") || !strings.Contains(f.svg, ">150</text>") && !strings.Contains(f.svg, ">150 B</text>") {
			t.Errorf("points are missing: %.300s", f.svg)
		}
	}
}

func TestThingsInARowAreDrawnByTheirNames(t *testing.T) {
	e := Experiment{
		Title: "t", Axis: Axis{Name: "Kernel", Labels: []string{"bfs", "nw"}}, Metrics: []Metric{{Name: "work_ms", Title: "Work", Unit: "ms"}},
		Sides:      []Side{{Name: "local"}, {Name: "memory"}, {Name: "TCP"}},
		Highlights: []Highlight{{Metric: "work_ms", Side: "memory", X: 2, Goal: 0.9}},
		Tables:     []Table{{Title: "More", Header: []string{"a", "b"}, Rows: [][]string{{"x", "y < z"}}, Note: "what it is"}},
	}
	for pair := range 6 {
		for i, side := range e.Sides {
			e.Runs = append(e.Runs, Run{Side: side.Name, Pair: pair, Points: []Point{
				{X: 1, Values: map[string]float64{"work_ms": float64(1 + i)}}, {X: 2, Values: map[string]float64{"work_ms": 10 * float64(1+i)}},
			}})
		}
	}
	report, err := NewReport(e, 0)
	if err != nil {
		t.Fatal(err)
	}
	var text, page bytes.Buffer
	if err := errors.Join(report.WriteText(&text), WriteHTML(&page, "t", time.Unix(0, 0), report)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bfs", "nw", "0.500", "0.333", "More", "y < z", "what it is", "Work at nw", "goal 0.9 not reached"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, text.String())
		}
	}
	figures := report.figures()
	if len(figures) != 1 || strings.Count(figures[0].svg, `class="mark s1"`) != 3 || !strings.Contains(figures[0].svg, ">nw</text>") || strings.Contains(figures[0].svg, `class="line s1" d="M66`) {
		t.Errorf("%d figures, want one with two marks of memory and one in the legend, by names and without lines: %v", len(figures), figures)
	}
	if !strings.Contains(page.String(), "y &lt; z") || !strings.Contains(page.String(), `<p class="note">what it is</p>`) {
		t.Error("the page lacks the experiment's own table")
	}
}

func TestTooFewPairsAreSaidAndDrawnWithoutInterval(t *testing.T) {
	report, err := NewReport(pingPong(3, 2), 0)
	if err != nil {
		t.Fatal(err)
	}
	var text, page bytes.Buffer
	if err := errors.Join(report.WriteText(&text), WriteHTML(&page, "t", time.Unix(0, 0), report)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "no interval: too few pairs") || !strings.Contains(text.String(), "undecided") {
		t.Errorf("the text claims more than 2 pairs can show:\n%s", text.String())
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
		t.Error("the page draws an interval that is not there")
	}
}

func TestNumbersHaveThreeSignificantDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0.012345: "0.0123", 1.2345: "1.23", 12.345: "12.3", 123.45: "123", 1234.5: "1230", 45678: "45700", 0: "0", 9.999: "10.00",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
	bytes := Axis{Bytes: true}
	for v, want := range map[float64]string{8: "8 B", 1024: "1 KiB", 4 << 20: "4 MiB", 1536: "1.5 KiB", 1 << 30: "1 GiB"} {
		if got := bytes.size(v); got != want {
			t.Errorf("size(%v) = %q, want %q", v, got, want)
		}
	}
}
