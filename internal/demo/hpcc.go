package demo

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// hpccTime is about how long one run is to take, and hplTime how much more for solving again and again: solving once takes a fraction
	// of a second, and is at the mercy of chance. 12 runs leave time for the rest of the demo.
	hpccTime = 6 * time.Second
	hplTime  = 1500 * time.Millisecond
	// trialTime is what the plan of the run before all others may say.
	trialTime = 3500 * time.Millisecond
	// measureTime bounds all that is measured, the ping-pong included, by the number of pairs.
	measureTime = 24 * time.Second
	// hplLeast is how long HPL takes at least in a thorough demo, and thoroughTrial what the plan of its trial may say: its matrix has to be
	// large enough to go by. thoroughPair bounds a pair then. hpcc's tests of random access take up to a minute each.
	hplLeast      = 20 * time.Second
	thoroughTrial = 15 * time.Second
	thoroughPair  = 15 * time.Minute
)

// hpcc measures how a cluster computes, on both sides in turn: HPL and STREAM of HPC Challenge. A run that is not whole or not right ends
// the demo.
func (v *visit) hpcc(ctx context.Context) error {
	v.part("How near to the bare machine: computing")
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	var setting measure.HPCC
	err = v.step("choosing a problem for hpcc by a trial on the host", func() error {
		setting, err = v.chooseProblem(ctx, cpus)
		return err
	})
	if err != nil {
		return err
	}
	onHost, err := v.writeScript(setting)
	if err != nil {
		return err
	}
	inHome, err := v.install(onHost)
	if err != nil {
		return err
	}
	e := v.hpccExperiment(cpus)
	var results []measure.HPCCResult
	parse := func(output []byte) ([]measure.Point, error) {
		result, err := measure.ParseHPCC(output, setting)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
		return result.Points(), nil
	}
	hostTransport, clusterTransport := v.ownTransport()
	pairs, patience := v.hplPairs()
	err = v.step("measuring HPL by hpcc", func() error {
		v.say("%s", terms(pairs, cpus))
		v.say("HPL of order %d, solved %d times a run of which the fastest counts", setting.N, setting.Solves)
		e.Runs, err = v.inTurn(ctx, measure.Pairs{
			Count: pairs,
			Run: map[string]measure.Runner{
				hostSide:    v.onHost(cpus, hostTransport, onHost),
				clusterSide: v.onCluster(clusterTransport, inHome),
			},
			Parse: parse, Carrier: measure.FindCarrier, Patience: patience,
		}, hpccLine)
		return err
	})
	if err != nil {
		return err
	}
	largest, shortest := 0.0, math.Inf(1)
	for _, r := range results {
		largest, shortest = max(largest, r.Residual), min(shortest, r.HPLSeconds)
	}
	if v.opts.Thorough {
		e.Conditions = append(e.Conditions, measure.Condition{Name: "HPL's time", Value: hplTimeText(shortest)})
	}
	right := fmt.Sprintf("all %d runs: HPL's scaled residual is at most %.3g (has to be below 16), STREAM's vectors are right", len(results), largest)
	e.Conditions = append(e.Conditions, results[0].Conditions()...)
	e.Conditions = append(e.Conditions, measure.Condition{Name: "Checked", Value: right})
	v.say("checked %s", right)
	return v.publish(e, pairs)
}

// hplTimeText says how long the shortest solution took, and whether that is as long as was asked for.
func hplTimeText(seconds float64) string {
	text := fmt.Sprintf("%.1f s for the shortest solution", seconds)
	if seconds < hplLeast.Seconds() {
		text += fmt.Sprintf(", less than the %.0f s asked for: members have no memory for more, or the trial ran on a busier machine", hplLeast.Seconds())
	}
	return text
}

// hplPairs is how many pairs of hpcc are measured, and for how long at most.
func (v *visit) hplPairs() (pairs int, patience time.Duration) {
	if v.opts.Thorough {
		pairs = min(v.opts.Pairs, max(6, v.opts.Pairs/3))
		return pairs, time.Duration(pairs) * thoroughPair
	}
	return v.opts.Pairs, time.Duration(v.opts.Pairs)*cmp.Or(v.opts.pairTime, measureTime) - v.measured
}

// writeScript writes the program of both sides and returns where the host finds it.
func (v *visit) writeScript(setting measure.HPCC) (string, error) {
	script, err := setting.Script()
	if err != nil {
		return "", err
	}
	path := filepath.Join(v.scratch, "hpcc-rank")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		return "", fmt.Errorf("the benchmark's script can't be written: %w", err)
	}
	return path, nil
}

// chooseProblem runs a small problem on the host, uncounted, and takes from it how fast this machine is.
func (v *visit) chooseProblem(ctx context.Context, cpus []int) (measure.HPCC, error) {
	budget := trialTime
	if v.opts.Thorough {
		budget = thoroughTrial
	}
	trial, err := measure.PlanHPCC(members, v.memory, budget)
	if err != nil {
		return measure.HPCC{}, err
	}
	result, took, err := v.try(ctx, cpus, trial)
	if err != nil {
		return measure.HPCC{}, err
	}
	if v.opts.Thorough {
		return v.largeProblem(ctx, cpus, result)
	}
	return problem(trial, v.memory, took, time.Duration(result.HPLSeconds*float64(time.Second)))
}

// try runs a problem on the host, uncounted, and returns what came out and what it took in all.
func (v *visit) try(ctx context.Context, cpus []int, setting measure.HPCC) (measure.HPCCResult, time.Duration, error) {
	script, err := v.writeScript(setting)
	if err != nil {
		return measure.HPCCResult{}, 0, err
	}
	transport, _ := v.ownTransport()
	began := time.Now()
	output, err := v.onHost(cpus, transport, script)(ctx)
	if err != nil {
		return measure.HPCCResult{}, 0, err
	}
	took := time.Since(began)
	result, err := measure.ParseHPCC(output, setting)
	return result, took, err
}

// largestTries is how often a larger problem is tried.
const largestTries = 4

// largeProblem chooses a problem that was seen to take long enough, or as large a one as members have memory for. A small trial alone says too
// little: on a busy machine it takes many times as long as its work.
func (v *visit) largeProblem(ctx context.Context, cpus []int, tried measure.HPCCResult) (measure.HPCC, error) {
	for range largestTries {
		setting, err := measure.PlanHPL(tried, v.memory, hplLeast)
		if err != nil || setting.N <= tried.Setting.N {
			return tried.Setting, err
		}
		v.say("trying HPL of order %d, which may take some minutes", setting.N)
		if tried, _, err = v.try(ctx, cpus, setting); err != nil {
			return measure.HPCC{}, err
		}
		v.say("it was solved in %.1f s", tried.HPLSeconds)
		if tried.HPLSeconds >= hplLeast.Seconds() {
			break
		}
	}
	return tried.Setting, nil
}

// problem chooses the setting by what a trial took in all, and for solving: its size fills the time of a run, as far as memory and the
// coarse steps allow, and it is solved as often as the time for that holds.
func problem(trial measure.HPCC, memory int64, took, solving time.Duration) (measure.HPCC, error) {
	pace := float64(took) / float64(trial.Expected())
	budget := max(time.Duration(float64(hpccTime)/max(pace, 0.1)), trial.Expected())
	setting, err := measure.PlanHPCC(members, memory, budget)
	if err != nil {
		return measure.HPCC{}, err
	}
	each := float64(solving) * math.Pow(float64(setting.N)/float64(trial.N), 3)
	setting.Solves = min(max(int(float64(hplTime)/each), 2), 25)
	return setting, nil
}

// hpccExperiment describes what is measured and under which conditions; the runs come later.
func (v *visit) hpccExperiment(cpus []int) measure.Experiment {
	_, transport := v.ownTransport()
	return measure.Experiment{
		Title: "HPL: bare host and cluster",
		Summary: "HPC Challenge, Debian's package hpcc, runs as two ranks on either side, pinned and connected as for the ping-pong. HPL solves " +
			"a dense system of linear equations over both ranks, which exchange messages as they go. " + v.hplSize() + "Debian's hpcc computes " +
			"with the reference BLAS, far below what the cores can do with a tuned one. What counts is the ratio of the sides. Every run was " +
			"checked: one with a wrong result would not be here. The triad is that of hpcc, whose vectors are no longer than HPL's matrix allows.",
		Axis:    measure.HPCCAxis(),
		Metrics: measure.HPCCMetrics(),
		Sides:   sides(cpus, transport),
		Highlights: []measure.Highlight{
			{Metric: measure.HPLGflops, Side: clusterSide, X: members, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions:     append(machine(), measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
}

// hplSize says of the problem what a reader must know.
func (v *visit) hplSize() string {
	if v.opts.Thorough {
		return ""
	}
	return "The problem is small so that a run ends soon: HPL takes a fraction of a second (nearmetal demo --thorough: 20 s at least). "
}

// hpccLine says what a run measured.
func hpccLine(r measure.Run) string {
	values := r.Points[0].Values
	return fmt.Sprintf("%.2f Gflop/s, %.1f GB/s", values[measure.HPLGflops], values[measure.StreamTriadGBPerS])
}
