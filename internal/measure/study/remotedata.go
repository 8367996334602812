// Package study runs studies whose sides are more than two programs: worlds with links, servers and caches.
//
// Remote is a study of jobs that read remote data in several ways, over a link whose conditions vary (matrix.go). What was measured is written as soon as
// it is there, so a study that was stopped goes on where it was. The package must never leave out a run. Package measure turns runs into ratios and
// reports.
package study

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// The sides: where the job's data come from.
const (
	near   = "near"
	copied = "copied"
	stream = "streamed"
	cold   = "cold cache"
	warm   = "warm cache"
	loaded = "preloaded cache"
)

// The metrics.
const (
	seconds   = "time_s"
	slowest   = "slowest_s"
	wireBytes = "wire_mb"
	roundTrip = "round_trip_ms"
	tailTrip  = "round_trip_95_ms"
	joules    = "energy_j"
)

// Remote is a study of remote data.
type Remote struct {
	// Out is the directory of the results. Runs that are there count, if they are of the same study.
	Out string
	// Python is an interpreter with uproot and XRootD.
	Python string
	// Matrix is what jobs run under.
	Matrix
	Rounds int
	// Megabytes is the size of the file that jobs read parts of. A cluster has its own.
	Megabytes int
	// Cluster is where the jobs run; nil is this machine.
	Cluster *Cluster
	// Say tells of progress.
	Say func(format string, args ...any)
}

// remoteHead tells studies of remote data apart.
type remoteHead struct {
	Study string `json:"study"`
	Matrix
	Rounds    int    `json:"rounds"`
	Megabytes int    `json:"megabytes"`
	Site      string `json:"site,omitempty"`
}

// site is where the jobs run.
func (s Remote) site() site {
	if s.Cluster != nil {
		return s.Cluster
	}
	return machine{python: s.Python, megabytes: s.Megabytes}
}

func (s Remote) record() (*record[measure.Run], error) {
	return openRecord[measure.Run](s.Out, remoteHead{Study: "remote-data", Matrix: s.Matrix, Rounds: s.Rounds, Megabytes: s.Megabytes, Site: s.site().identity()})
}

// isRun tells the run of a side in a round from others.
func isRun(side string, pair int) func(measure.Run) bool {
	return func(run measure.Run) bool { return run.Side == side && run.Pair == pair }
}

// Validate returns what is wrong with a study.
func (s Remote) Validate() error {
	errs := []error{s.Matrix.Validate()}
	if s.Rounds < 2 {
		errs = append(errs, fmt.Errorf("%d rounds: an interval needs at least 2, better 6", s.Rounds))
	}
	return errors.Join(append(errs, s.site().validate(s.Matrix))...)
}

// Run runs the study, or what is left of it, and writes runs.jsonl, report.json and report.html into Out. It returns the report.
func (s Remote) Run(ctx context.Context) (measure.Report, error) {
	if s.Cluster != nil {
		if err := s.Cluster.find(ctx, s.Python); err != nil {
			return measure.Report{}, err
		}
	}
	if err := s.Validate(); err != nil {
		return measure.Report{}, err
	}
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return measure.Report{}, err
	}
	record, err := s.record()
	if err != nil {
		return measure.Report{}, err
	}
	if err := s.measureMissing(ctx, record); err != nil {
		return measure.Report{}, errors.Join(err, record.close())
	}
	if err := record.close(); err != nil {
		return measure.Report{}, err
	}
	known, err := s.site().energy(ctx, record.runs)
	if err != nil {
		return measure.Report{}, err
	}
	return s.report(record.runs, known)
}

// order is that in which the sides run in the first round: first those that leave the server alone.
func (s Remote) order() []string {
	var names []string
	for _, side := range s.site().sides() {
		if side.Name == near {
			names = slices.Insert(names, 0, side.Name)
			continue
		}
		names = append(names, side.Name)
	}
	return names
}

// measureMissing does all runs that the record lacks.
func (s Remote) measureMissing(ctx context.Context, record *record[measure.Run]) error {
	var w place
	defer func() {
		if w != nil {
			w.close()
		}
	}()
	axis, points := s.points()
	all, done := s.Rounds*len(s.order()), 0
	for pair, order := range measure.Schedule(s.order(), s.Rounds) {
		for _, side := range order {
			done++
			if record.has(isRun(side, pair)) {
				continue
			}
			if w == nil {
				var err error
				if w, err = s.site().open(ctx, s.Say); err != nil {
					return err
				}
			}
			run := measure.Run{Side: side, Pair: pair, StartedAt: time.Now()}
			for _, at := range points {
				point, err := w.measure(ctx, side, at, pair)
				if err != nil {
					return fmt.Errorf("round %d of %d, %s, at %v %s: %w", pair+1, s.Rounds, side, at.x, axis.Unit, err)
				}
				run.Points = append(run.Points, point)
			}
			run.DurationSeconds = time.Since(run.StartedAt).Seconds()
			if err := record.add(run); err != nil {
				return err
			}
			s.Say("run %d of %d: %s", done, all, line(run, axis))
		}
	}
	return nil
}

// line is a run for people.
func line(r measure.Run, axis measure.Axis) string {
	said := r.Side + ":"
	for _, p := range r.Points {
		said += fmt.Sprintf(" %.2f s at %v %s,", p.Values[seconds], p.X, axis.Unit)
	}
	return said[:len(said)-1]
}

// report draws what was measured.
func (s Remote) report(runs []measure.Run, energy string) (measure.Report, error) {
	report, err := measure.NewReport(s.experiment(runs, energy), 0.95)
	if err != nil {
		return report, err
	}
	return report, writeReport(s.Out, "The same analysis, near and far", report)
}

func (s Remote) experiment(runs []measure.Run, energy string) measure.Experiment {
	axis, _ := s.points()
	metrics := []measure.Metric{{Name: seconds, Title: "Time", Unit: "s"}}
	for _, m := range []measure.Metric{
		{Name: slowest, Title: "Time of the slowest job", Unit: "s"},
		{Name: wireBytes, Title: "Data over the link", Unit: "MB"},
		{Name: roundTrip, Title: "Round trip meanwhile, median", Unit: "ms"},
		{Name: tailTrip, Title: "Round trip meanwhile, 95th percentile", Unit: "ms"},
		{Name: joules, Title: "Energy of the job", Unit: "J"},
	} {
		if slices.ContainsFunc(runs, func(r measure.Run) bool {
			return slices.ContainsFunc(r.Points, func(p measure.Point) bool { return p.Values[m.Name] > 0 })
		}) {
			metrics = append(metrics, m)
		}
	}
	return measure.Experiment{
		Title:   "An analysis of remote data",
		Summary: s.site().summary(),
		Axis:    axis,
		Metrics: metrics,
		Sides:   s.site().sides(),
		Conditions: slices.Concat([]measure.Condition{{Name: "rounds", Value: strconv.Itoa(s.Rounds)}}, s.Matrix.conditions(), s.site().conditions(),
			[]measure.Condition{{Name: "energy", Value: energy}}),
		Runs: runs,
	}
}
