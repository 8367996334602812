package study

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// Software is a study of a program whose files are far away: they are fetched as they are read, verified, and kept within a limit.
type Software struct {
	// Out is the directory of the results. Runs that are there count, if they are of the same study.
	Out string
	// Tree is the directory that has the program's files, and Command starts it. {} in a word of it is where the tree is mounted.
	Tree    string
	Command []string
	// Megabytes are the limits to compare, and Delay and Rate are the link to the tree's server.
	Megabytes []int
	Delay     time.Duration
	Rate      api.Rate
	Rounds    int
	// Say tells of progress.
	Say func(format string, args ...any)
}

// The starts of a round, in their order.
const (
	firstStart   = "first"
	againStart   = "again"
	pagesDropped = "page cache dropped"
	droppedAgain = "page cache dropped once more"
	dropSoftware = "software cache dropped"
)

var starts = []string{firstStart, againStart, pagesDropped, droppedAgain, dropSoftware}

// downloaded is what crossed the link for the tree.
const downloaded = "downloaded_mb"

// softwareHead tells studies apart.
type softwareHead struct {
	Study     string        `json:"study"`
	Tree      string        `json:"tree"`
	Command   []string      `json:"command"`
	Megabytes []int         `json:"megabytes"`
	Delay     time.Duration `json:"delay_ns"`
	Rate      api.Rate      `json:"rate_bits_per_second,omitempty"`
	Rounds    int           `json:"rounds"`
}

// softwareRun is a round with one limit.
type softwareRun struct {
	measure.Run
	TreeBytes int64 `json:"tree_bytes"`
	// Downloaded has the bytes of each start; TooSmall whether the limit turned out to be below what is read again and again.
	Downloaded []int64 `json:"downloaded_bytes"`
	TooSmall   bool    `json:"too_small"`
}

// Validate returns what is wrong with a study.
func (s Software) Validate() error {
	errs := []error{once("sizes", s.Megabytes)}
	if s.Rounds < 1 {
		errs = append(errs, fmt.Errorf("%d rounds: at least 1 is needed, and 6 for an interval", s.Rounds))
	}
	if len(s.Megabytes) < 2 {
		errs = append(errs, errors.New("fewer than two sizes of the cache: there is nothing to compare"))
	}
	for _, n := range s.Megabytes {
		if n < 1 || n > 1_000_000 {
			errs = append(errs, fmt.Errorf("a cache of %d MB: it must have 1 to 1000000", n))
		}
	}
	if s.Delay < 0 || s.Delay > maxDelay {
		errs = append(errs, fmt.Errorf("a delay of %v: it must be between 0 and %v", s.Delay, maxDelay))
	}
	if len(s.Command) == 0 {
		errs = append(errs, errors.New("no program: name one behind --"))
	}
	if info, err := os.Stat(s.Tree); err != nil {
		errs = append(errs, err)
	} else if !info.IsDir() {
		errs = append(errs, fmt.Errorf("%s is not a directory", s.Tree))
	}
	return errors.Join(errs...)
}

// Run runs the study, or what is left of it, and writes runs.jsonl, report.json and report.html into Out. It returns the report.
func (s Software) Run(ctx context.Context) (report measure.Report, err error) {
	if err := s.Validate(); err != nil {
		return report, err
	}
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return report, err
	}
	record, err := openRecord[softwareRun](s.Out, softwareHead{"software-cache", s.Tree, s.Command, s.Megabytes, s.Delay, s.Rate, s.Rounds})
	if err != nil {
		return report, err
	}
	if err := errors.Join(s.measureMissing(ctx, record), record.close()); err != nil {
		return report, err
	}
	if report, err = measure.NewReport(s.experiment(record.runs), 0.95); err != nil {
		return report, err
	}
	return report, writeReport(s.Out, "A program whose files are far away", report)
}

func side(megabytes int) string { return fmt.Sprintf("%d MB", megabytes) }

// sizes are the limits, the largest first: the others are compared with it.
func (s Software) sizes() []int {
	all := slices.Sorted(slices.Values(s.Megabytes))
	slices.Reverse(all)
	return all
}

// measureMissing does all rounds that the record lacks.
func (s Software) measureMissing(ctx context.Context, record *record[softwareRun]) error {
	var names []string
	limit := map[string]int{}
	for _, n := range s.sizes() {
		names = append(names, side(n))
		limit[side(n)] = n
	}
	var far *softwareServer
	defer func() {
		if far != nil {
			far.close()
		}
	}()
	for pair, order := range measure.Schedule(names, s.Rounds) {
		for _, name := range order {
			if record.has(func(r softwareRun) bool { return r.Side == name && r.Pair == pair }) {
				continue
			}
			if far == nil {
				var err error
				s.Say("making an image of %s, and a server far away", s.Tree)
				if far, err = newSoftwareServer(ctx, s.Tree, setting{delay: s.Delay, rate: s.Rate}); err != nil {
					return err
				}
			}
			run, err := s.round(ctx, far, limit[name])
			if err != nil {
				return fmt.Errorf("round %d of %d with %s: %w", pair+1, s.Rounds, name, err)
			}
			run.Side, run.Pair = name, pair
			if err := record.add(run); err != nil {
				return err
			}
			s.Say("%s", run.line())
		}
	}
	return nil
}

// line is a run for people.
func (r softwareRun) line() string {
	said := "cache of " + r.Side + ":"
	for i, p := range r.Points {
		said += fmt.Sprintf(" %.2f s and %.0f MB (%s),", p.Values[seconds], float64(r.Downloaded[i])/1e6, starts[i])
	}
	return strings.TrimSuffix(said, ",")
}

// round does all starts with one limit.
func (s Software) round(ctx context.Context, far *softwareServer, megabytes int) (softwareRun, error) {
	run := softwareRun{Run: measure.Run{StartedAt: time.Now()}, TreeBytes: far.root.SizeBytes}
	tree, err := far.mount(int64(megabytes) * 1e6)
	if err != nil {
		return run, err
	}
	defer tree.close()
	before := int64(0) // what mounting reads belongs to the start after it
	for i, start := range starts {
		switch start {
		case pagesDropped, droppedAgain:
			err = tree.dropPages()
		case dropSoftware:
			err = tree.dropSoftware()
		}
		if err != nil {
			return run, err
		}
		took, err := far.start(ctx, tree, s.Command)
		if err != nil {
			return run, err
		}
		values := map[string]float64{seconds: took.Seconds()}
		got := tree.fetched() - before
		before += got
		if got > 0 {
			values[downloaded] = float64(got) / 1e6
		}
		run.Downloaded = append(run.Downloaded, got)
		run.TooSmall = run.TooSmall || tree.image().Progress().TooSmall
		run.Points = append(run.Points, measure.Point{X: float64(i + 1), Values: values})
	}
	run.DurationSeconds = time.Since(run.StartedAt).Seconds()
	return run, nil
}

func (s Software) experiment(runs []softwareRun) measure.Experiment {
	var all []measure.Run
	for _, r := range runs {
		all = append(all, r.Run)
	}
	var sides []measure.Side
	for _, n := range s.sizes() {
		sides = append(sides, measure.Side{Name: side(n), Description: fmt.Sprintf("the node keeps %d MB of the tree at most", n)})
	}
	rate := "unlimited"
	if s.Rate > 0 {
		rate = s.Rate.String() + "/s"
	}
	return measure.Experiment{
		Title: "A program whose files are far away",
		Summary: "A program is started again and again. Its files are in an image far away, of which the node fetches the parts that are read, verifies them, and keeps them within a limit: " +
			"what was read longest ago makes room. The kernel keeps pages of it as well. The two caches are dropped apart: the page cache by mounting the image again, the software cache by " +
			"beginning with an empty one while the image stays mounted. Times are from the start of the program to its end.",
		Axis:    measure.Axis{Name: "Start", Labels: starts},
		Metrics: []measure.Metric{{Name: seconds, Title: "Time", Unit: "s"}, {Name: downloaded, Title: "Downloaded", Unit: "MB"}},
		Sides:   sides,
		Conditions: []measure.Condition{
			{Name: "program", Value: strings.Join(s.Command, " ")},
			{Name: "tree", Value: fmt.Sprintf("%.0f MB as an image", float64(runs[0].TreeBytes)/1e6)},
			{Name: "rounds", Value: fmt.Sprint(s.Rounds)},
			{Name: "added round trip", Value: s.Delay.String()},
			{Name: "rate", Value: rate},
		},
		Tables: []measure.Table{s.verdicts(runs)},
		Runs:   all,
	}
}

// verdicts is a table of what each limit came to.
func (s Software) verdicts(runs []softwareRun) measure.Table {
	t := measure.Table{
		Title: "Downloaded at each start, and whether the cache is large enough", Header: append(append([]string{"Cache"}, starts...), "Too small"),
		Note: "Medians, in MB. A cache is too small if a quarter of what was fetched had been there before, and had made room.",
	}
	for _, n := range s.sizes() {
		var small, of int
		got := make([][]float64, len(starts))
		for _, r := range runs {
			if r.Side != side(n) {
				continue
			}
			of++
			if r.TooSmall {
				small++
			}
			for i, bytes := range r.Downloaded {
				got[i] = append(got[i], float64(bytes)/1e6)
			}
		}
		row := []string{side(n)}
		for _, values := range got {
			row = append(row, fmt.Sprintf("%.1f", measure.Median(values)))
		}
		verdict := "no"
		if small > 0 {
			verdict = fmt.Sprintf("yes (%d of %d rounds)", small, of)
		}
		t.Rows = append(t.Rows, append(row, verdict))
	}
	return t
}
