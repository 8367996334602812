package study

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// The metrics of a study of GPUs.
const (
	workMS  = "work_ms"
	wholeMS = "whole_ms"
)

// remoteGoal is how many times as long as locally a kernel may take by shared memory, at most.
const remoteGoal = 1.05

// published returns how many times as long as on a local GPU a kernel took by a remote API, in the published study of these kernels: 7% longer for seven of
// the eight, 128% longer for needleman-wunsch.
func published(kernel string) float64 {
	if kernel == "nw" {
		return 2.28
	}
	return 1.07
}

const publishedNote = "Published: a study of a remote API against local GPUs reports 7% more time on seven of these eight kernels and 128% more on needleman-wunsch (nw). " +
	"Its devices, network and inputs differ from these."

// labelled is a problem of a kernel.
type labelled struct{ kernel, problem string }

func (l labelled) String() string { return l.kernel + ", " + l.problem }

// problems are all that were run, in the order of the kernels.
func (s GPU) problems(runs []gpuRun) (all []labelled) {
	for _, kernel := range s.Kernels {
		if i := slices.IndexFunc(runs, func(r gpuRun) bool { return r.Kernel == kernel }); i >= 0 {
			for _, p := range runs[i].Problems {
				all = append(all, labelled{kernel, p.Problem})
			}
		}
	}
	return all
}

// report draws what was measured, and what was expected, unless that is 0.
func (s GPU) report(runs []gpuRun, expected float64) (measure.Report, error) {
	problems := s.problems(runs)
	report, err := measure.NewReport(s.experiment(runs, problems), measure.DefaultLevel)
	if err != nil {
		return report, err
	}
	report.Experiment.Tables = []measure.Table{s.besidePublished(report, runs, problems), s.calls(runs, problems)}
	if expected > 0 {
		report.Experiment.Tables = slices.Insert(report.Experiment.Tables, 1, s.beside(expected, report, problems))
	}
	text, err := os.Create(filepath.Join(s.Out, "report.txt"))
	if err != nil {
		return report, err
	}
	return report, errors.Join(report.WriteText(text), text.Close(), writeReport(s.Out, "One GPU, by several ways", report))
}

func (s GPU) experiment(runs []gpuRun, problems []labelled) measure.Experiment {
	e := measure.Experiment{
		Title: "Eight kernels on one GPU, by several ways",
		Summary: "Each kernel runs by each way in turn, once to warm up and once measured, in a process of its own that checks the result. Work is from the first allocation to the last " +
			"free, a whole run is that with the setup before and the end after it. A remote GPU here is one by a server: how much its calls and copies cost is shown, and not how fast a GPU is.",
		Axis: measure.Axis{Name: "Kernel"},
		Metrics: []measure.Metric{
			{Name: workMS, Title: "Work", Unit: "ms"},
			{Name: wholeMS, Title: "Whole run", Unit: "ms"},
		},
		Sides: []measure.Side{
			{Name: local, Description: "the machine's own driver"},
			{Name: memory, Description: "a server on this machine, by memory that both share"},
			{Name: tcp, Description: "a server on this machine, by TCP over the loopback interface"},
		},
		Conditions: append([]measure.Condition{
			{Name: "size", Value: s.Size}, {Name: "API", Value: s.API}, {Name: "rounds", Value: strconv.Itoa(s.Rounds)},
		}, gpuConditions(runs)...),
		Runs: asRuns(runs, problems),
	}
	if len(runs) > 0 {
		e.Title += ": " + runs[0].Device
	}
	if s.InMember != nil {
		i := slices.IndexFunc(runs, func(r gpuRun) bool { return r.Side == network })
		where := "a GPU of another node, in member " + s.Member
		if i >= 0 {
			where += fmt.Sprintf(", whose server is at %s: %s; the member's node: %s", runs[i].ServerAddress, runs[i].Device, runs[i].Host)
		}
		e.Sides = append(e.Sides, measure.Side{Name: network, Description: where})
	}
	for i, p := range problems {
		e.Axis.Labels = append(e.Axis.Labels, p.kernel)
		if i > 0 && problems[i-1].kernel == p.kernel {
			e.Axis.Labels[i] = fmt.Sprintf("%s %d", p.kernel, i-slices.IndexFunc(problems, func(q labelled) bool { return q.kernel == p.kernel })+1)
		}
		e.Highlights = append(e.Highlights, measure.Highlight{Metric: workMS, Side: memory, X: float64(i + 1), Goal: 1 / remoteGoal})
	}
	return e
}

// asRuns are the runs as the analysis has them: one of each way and round, with a point for each problem.
func asRuns(runs []gpuRun, problems []labelled) (all []measure.Run) {
	for _, r := range runs {
		i := slices.IndexFunc(all, isRun(r.Side, r.Pair))
		if i < 0 {
			i = len(all)
			all = append(all, measure.Run{Side: r.Side, Pair: r.Pair, StartedAt: r.StartedAt})
		}
		all[i].DurationSeconds += r.Seconds
		for _, p := range r.Problems {
			x := slices.Index(problems, labelled{r.Kernel, p.Problem}) + 1
			all[i].Points = append(all[i].Points, measure.Point{X: float64(x), Values: map[string]float64{
				workMS: p.WorkSeconds * 1e3, wholeMS: (p.SetupSeconds + p.WorkSeconds + p.CloseSeconds) * 1e3,
			}})
		}
	}
	return all
}

// gpuConditions say on what was measured, and how busy the machine was with other things.
func gpuConditions(runs []gpuRun) []measure.Condition {
	here := slices.DeleteFunc(slices.Clone(runs), func(r gpuRun) bool { return r.Side == network })
	if len(here) == 0 {
		return nil
	}
	var others, took float64
	for _, r := range here {
		others, took = others+r.OthersCPUSeconds, took+r.Seconds
	}
	return []measure.Condition{
		{Name: "device", Value: here[0].Device},
		{Name: "machine", Value: here[0].Host},
		{Name: "measured", Value: fmt.Sprintf("%s to %s", here[0].StartedAt.UTC().Format(time.RFC3339), runs[len(runs)-1].StartedAt.UTC().Format(time.RFC3339))},
		{Name: "load", Value: fmt.Sprintf("other processes of this machine used %.2f processors on average during the runs", others/took)},
	}
}

// of are the runs of a kernel's problem by a way.
func of(runs []gpuRun, side string, l labelled) (all []gpuProblem) {
	for _, r := range runs {
		if r.Side != side || r.Kernel != l.kernel {
			continue
		}
		for _, p := range r.Problems {
			if p.Problem == l.problem {
				all = append(all, p)
			}
		}
	}
	return all
}

// callSeconds are those of a run's calls, and of those of them that copy between host and device, with their bytes.
func (p gpuProblem) callSeconds() (all, copies float64, bytes int64) {
	for _, c := range p.Calls {
		all += c.TotalSeconds
		if c.Transfer == "to_device" || c.Transfer == "from_device" {
			copies, bytes = copies+c.TotalSeconds, bytes+c.Bytes
		}
	}
	return all, copies, bytes
}

// besidePublished is the table of how many times as long as locally each kernel takes, beside what was published.
func (s GPU) besidePublished(report measure.Report, runs []gpuRun, problems []labelled) measure.Table {
	t := measure.Table{
		Title:  "Times as long as local, beside the published study",
		Header: []string{"Kernel", "Calls", "Copied MiB"},
		Note:   "Medians of paired ratios of work, with their intervals. Copies are the share of the API's time in calls that copy between host and device. " + publishedNote,
	}
	for _, c := range gpuConditions(runs) { // the text has them nowhere else, and no ratio means anything without the load
		t.Note += " " + strings.ToUpper(c.Name[:1]) + c.Name[1:] + ": " + c.Value + "."
	}
	for _, side := range s.sides()[1:] {
		t.Header = append(t.Header, side+" / local")
	}
	t.Header = append(t.Header, "published / local")
	for _, side := range s.sides() {
		t.Header = append(t.Header, "copies %, "+side)
	}
	for i, p := range problems {
		first := of(runs, local, p)[0]
		_, _, bytes := first.callSeconds()
		row := []string{p.String(), strconv.FormatInt(first.count(), 10), fmt.Sprintf("%.2f", float64(bytes)/(1<<20))}
		for _, side := range s.sides()[1:] {
			row = append(row, timesAsLong(report, side, float64(i+1)))
		}
		row = append(row, fmt.Sprintf("%.2f", published(p.kernel)))
		for _, side := range s.sides() {
			row = append(row, copiesPercent(of(runs, side, p)))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// beside is the table of what was expected of the member's GPU, beside what was measured.
func (s GPU) beside(expected float64, report measure.Report, problems []labelled) measure.Table {
	var logs []float64
	for i := range problems {
		if c, ok := report.Analysis.Find(workMS, network, float64(i+1)); ok && len(c.Ratios) > 0 {
			logs = append(logs, -math.Log(c.Efficiency.Value))
		}
	}
	t := measure.Table{
		Title: "The choice of the GPU of " + s.Member, Header: []string{"", "times as long as local"}, Rows: [][]string{{"expected", fmt.Sprintf("%.2f", expected)}},
		Note: "Expected is the number by which its GPU was chosen, for an average kernel of the published size. Measured is the geometric mean of the kernels' medians here.",
	}
	if len(logs) == 0 {
		return t
	}
	sum := 0.0
	for _, l := range logs {
		sum += l
	}
	measured := math.Exp(sum / float64(len(logs)))
	t.Rows = append(t.Rows, []string{"measured", fmt.Sprintf("%.2f", measured)}, []string{"measured / expected", fmt.Sprintf("%.2f", measured/expected)})
	return t
}

func (p gpuProblem) count() (n int64) {
	for _, c := range p.Calls {
		n += c.Count
	}
	return n
}

// timesAsLong is how many times as long as locally a problem takes by a way, with its interval.
func timesAsLong(report measure.Report, side string, x float64) string {
	c, ok := report.Analysis.Find(workMS, side, x)
	if !ok || len(c.Ratios) == 0 {
		return "-"
	}
	text := fmt.Sprintf("%.2f", 1/c.Efficiency.Value)
	if c.Efficiency.Bounded() {
		text += fmt.Sprintf(" [%.2f, %.2f]", 1/c.Efficiency.High, 1/c.Efficiency.Low)
	}
	return text
}

// copiesPercent is the median share of copies in the time of a run's calls.
func copiesPercent(runs []gpuProblem) string {
	var shares []float64
	for _, p := range runs {
		if all, copies, _ := p.callSeconds(); all > 0 {
			shares = append(shares, 100*copies/all)
		}
	}
	if len(shares) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", measure.Median(shares))
}

// calls is the table of the API's calls: how often each is made in a run, and how long all of them take by each way.
func (s GPU) calls(runs []gpuRun, problems []labelled) measure.Table {
	t := measure.Table{
		Title: "Calls of the API during the work", Header: []string{"Kernel", "Function", "Calls", "KiB"},
		Note: "Milliseconds of the program in all calls of a function in one run, medians. A copy waits for what was launched before it.",
	}
	for _, side := range s.sides() {
		t.Header = append(t.Header, side+" ms")
	}
	for _, p := range problems {
		for _, call := range of(runs, local, p)[0].Calls {
			row := []string{p.String(), call.Name, strconv.FormatInt(call.Count, 10), strconv.FormatInt(call.Bytes>>10, 10)}
			for _, side := range s.sides() {
				row = append(row, callMedian(of(runs, side, p), call.Name))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func callMedian(runs []gpuProblem, name string) string {
	var took []float64
	for _, p := range runs {
		for _, c := range p.Calls {
			if c.Name == name {
				took = append(took, c.TotalSeconds*1e3)
			}
		}
	}
	if len(took) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", measure.Median(took))
}
