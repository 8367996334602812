// Package measure turns paired runs into efficiencies with intervals, and reports that people can read and print.
//
// Efficiency is the metric in the virtualized environment over the metric on the baseline with the same resources, turned
// so that 1.0 means "as good as the baseline" and more is better, whatever the metric's direction. A comparison is made of
// pairs: the two sides run one after the other, in alternating order, so that what drifts with time hits both alike.
//
// The package must never start a cluster or a job itself and must never drop a run: what was measured is in the report,
// oversubscription included. Start with Experiment (what was run), Pairs (how sides take turns), Analyze (what it says) and Report (how
// it is shown). mpi.go holds the MPI programs whose output is measured, hpcc.go the HPC Challenge benchmark.
package measure

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Metric is one thing measured, such as a latency.
type Metric struct {
	// Name ends in its unit as field names do: "latency_us".
	Name string `json:"name"`
	// Title and Unit are for people: "Latency", "µs".
	Title string `json:"title"`
	Unit  string `json:"unit"`
	// HigherIsBetter turns the efficiency: a bandwidth is better when higher, a latency when lower.
	HigherIsBetter bool `json:"higher_is_better"`
	// DerivedFrom names the metric this one is computed from at the same size, when it is: their efficiencies are equal, and
	// reports show them once.
	DerivedFrom string `json:"derived_from,omitempty"`
}

// Highlight is a result to be looked at first, chosen before measuring: a metric at a size. Goal, when not 0, is the efficiency
// to be reached; the interval decides whether it was.
type Highlight struct {
	Metric string  `json:"metric"`
	Side   string  `json:"side"`
	X      float64 `json:"x"`
	Goal   float64 `json:"goal,omitempty"`
}

// Side is one of the things compared.
type Side struct {
	// Name is the short word used in tables and plots: "host", "cluster".
	Name string `json:"name"`
	// Description says how this side was run, for people: transport, cores, command.
	Description string `json:"description"`
	// Reference is true for a side that is measured to be looked at but not compared: its runs are in no pair.
	Reference bool `json:"reference,omitempty"`
}

// Condition is one fact the runs were made under: the kernel, the processor, a version.
type Condition struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Point is what one run measured at one size.
type Point struct {
	// X is the size, in the unit of the experiment's X axis: bytes of a message, members of a cluster.
	X float64 `json:"x"`
	// Values hold the metrics by name, in the metric's unit. All are positive.
	Values map[string]float64 `json:"values"`
	// Job is the job of a cluster that measured it, "" where there is none.
	Job string `json:"job,omitempty"`
}

// Run is one run of one side.
type Run struct {
	Side string `json:"side"`
	// Pair numbers the rounds from 0; runs of different sides with the same number make a pair.
	Pair      int       `json:"pair"`
	StartedAt time.Time `json:"started_at"`
	// DurationSeconds is how long the run took by the wall clock, for the record.
	DurationSeconds float64 `json:"duration_seconds"`
	// CarriedBy is what carried the messages between the ranks, nil where there are none.
	CarriedBy *Carrier `json:"carried_by,omitempty"`
	Points    []Point  `json:"points"`
}

// Axis is the experiment's X axis.
type Axis struct {
	// Name and Unit are for people: "Message size", "B".
	Name string `json:"name"`
	Unit string `json:"unit"`
	// Bytes is true when X is a number of bytes, written as 8 B, 4 KiB, 4 MiB.
	Bytes bool `json:"bytes,omitempty"`
	// Labels, if there are any, name the values 1, 2, 3 ... of X: things in a row, such as programs, and no sizes.
	Labels []string `json:"labels,omitempty"`
}

// Table is a table of an experiment's own, shown after those of its metrics.
type Table struct {
	Title  string     `json:"title"`
	Header []string   `json:"header"`
	Rows   [][]string `json:"rows"`
	// Note says below the table what its numbers are.
	Note string `json:"note,omitempty"`
}

// Experiment is what was run: sides, conditions and all runs.
type Experiment struct {
	Title string `json:"title"`
	// Summary says in a few sentences what was compared and how, and what the reader must not conclude.
	Summary string   `json:"summary"`
	Axis    Axis     `json:"axis"`
	Metrics []Metric `json:"metrics"`
	// Sides are compared with the first of them, the baseline.
	Sides      []Side      `json:"sides"`
	Highlights []Highlight `json:"highlights,omitempty"`
	Conditions []Condition `json:"conditions"`
	// Oversubscribed is not empty when cores were shared, and says whose; every output carries it.
	Oversubscribed string `json:"oversubscribed,omitempty"`
	// OversubscribedFrom is the smallest size that Oversubscribed is about; 0: all.
	OversubscribedFrom float64 `json:"oversubscribed_from,omitempty"`
	// Tables say more of the runs than their metrics.
	Tables []Table `json:"tables,omitempty"`
	Runs   []Run   `json:"runs"`
}

// Schedule returns the order in which the sides run in each of n rounds: A B, B A, A B, ... so that a drift that is linear
// in time cancels over two rounds, for any number of sides. An even n makes it cancel fully.
func Schedule(sides []string, n int) [][]string {
	rounds := make([][]string, n)
	for i := range rounds {
		rounds[i] = slices.Clone(sides)
		if i%2 == 1 {
			slices.Reverse(rounds[i])
		}
	}
	return rounds
}

// Validate tells what is wrong with an experiment: unknown sides or metrics, values that are not positive, a side that ran
// twice in one pair.
func (e Experiment) Validate() error {
	if len(e.Sides) < 2 || e.Sides[0].Reference {
		return fmt.Errorf("experiment %q has no two sides to compare; the first side is the baseline", e.Title)
	}
	seen := map[[2]any]bool{}
	for _, r := range e.Runs {
		side := slices.IndexFunc(e.Sides, func(s Side) bool { return s.Name == r.Side })
		if side < 0 {
			return fmt.Errorf("experiment %q has a run of the unknown side %q", e.Title, r.Side)
		}
		key := [2]any{r.Side, r.Pair}
		if seen[key] && !e.Sides[side].Reference {
			return fmt.Errorf("experiment %q: side %q ran twice in pair %d", e.Title, r.Side, r.Pair)
		}
		seen[key] = true
		for _, p := range r.Points {
			for name, v := range p.Values {
				if !slices.ContainsFunc(e.Metrics, func(m Metric) bool { return m.Name == name }) {
					return fmt.Errorf("experiment %q: run %d of %q holds the unknown metric %q", e.Title, r.Pair, r.Side, name)
				}
				if !(v > 0) {
					return fmt.Errorf("experiment %q: run %d of %q: %s at %v is %v; a ratio needs positive values",
						e.Title, r.Pair, r.Side, name, p.X, v)
				}
			}
		}
	}
	return nil
}

// ParsePoints reads the ping-pong's output: one JSON object a line with a "bytes" field and the metrics. Lines that are not
// JSON objects are skipped (mpirun and the system may print), lines of another kind as well.
func ParsePoints(output []byte, metrics ...string) ([]Point, error) {
	return parsePoints(output, "bytes", metrics...)
}

// parsePoints reads points whose size is in the named field.
func parsePoints(output []byte, axis string, metrics ...string) ([]Point, error) {
	var points []Point
	for line := range slices.Values(splitLines(output)) {
		if len(line) == 0 || line[0] != '{' {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			return nil, fmt.Errorf("the program's output has a broken line %q: %w", line, err)
		}
		size, ok := fields[axis].(float64)
		if !ok {
			continue
		}
		p := Point{X: size, Values: map[string]float64{}}
		for _, m := range metrics {
			v, ok := fields[m].(float64)
			if !ok {
				return nil, fmt.Errorf("the program's output lacks %q in %q", m, line)
			}
			p.Values[m] = v
		}
		points = append(points, p)
	}
	if len(points) == 0 {
		return nil, fmt.Errorf("the program printed no measurement; its output was: %q", truncate(output, 500))
	}
	return points, nil
}
