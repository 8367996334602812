package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// hpccBudget is about how long one run is to take at most: 12 of them leave time for the rest of the demo.
	hpccBudget = 8 * time.Second
	// measureTime bounds all that is measured, the ping-pong included, by the number of pairs.
	measureTime = 22 * time.Second
	// hplSolves is how often HPL solves in one run; solving takes a fraction of a second, so that one alone is at the mercy of chance.
	hplSolves = 10
)

// hpcc measures how a cluster computes, on both sides in turn: HPL and STREAM of HPC Challenge. A run that is not whole or not right ends
// the demo.
func (v *visit) hpcc(ctx context.Context) error {
	v.part("How near to the bare machine: computing")
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	setting, err := measure.PlanHPCC(members, memory, hpccBudget)
	if err != nil {
		return err
	}
	setting.Solves = hplSolves
	script, err := setting.Script()
	if err != nil {
		return err
	}
	onHost := filepath.Join(v.scratch, "hpcc-rank")
	if err := os.WriteFile(onHost, script, 0o755); err != nil {
		return fmt.Errorf("the benchmark's script can't be written: %w", err)
	}
	inHome, err := v.install(onHost)
	if err != nil {
		return err
	}
	e := v.hpccExperiment(cpus, setting)
	var results []measure.HPCCResult
	parse := func(output []byte) ([]measure.Point, error) {
		result, err := measure.ParseHPCC(output, setting)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
		return result.Points(), nil
	}
	err = v.step("measuring HPL and STREAM by hpcc", func() error {
		v.say("%s; %.0f s a run or less when nothing disturbs", v.terms(cpus), setting.Expected().Seconds())
		e.Runs, err = v.inTurn(ctx, measure.Pairs{
			Run: map[string]measure.Runner{
				hostSide:    v.onHost(cpus, measure.TransportTCP, onHost),
				clusterSide: v.onCluster(inHome),
			},
			Parse: parse, Patience: time.Duration(v.opts.Pairs)*measureTime - v.measured,
		}, hpccLine)
		return err
	})
	if err != nil {
		return err
	}
	largest := 0.0
	for _, r := range results {
		largest = max(largest, r.Residual)
	}
	right := fmt.Sprintf("all %d runs: HPL's scaled residual is at most %.3g (has to be below 16), STREAM's vectors are right", len(results), largest)
	e.Conditions = append(e.Conditions, results[0].Conditions()...)
	e.Conditions = append(e.Conditions, measure.Condition{Name: "Checked", Value: right})
	v.say("checked %s", right)
	return v.publish(e)
}

// hpccExperiment describes what is measured and under which conditions; the runs come later.
func (v *visit) hpccExperiment(cpus []int, setting measure.HPCC) measure.Experiment {
	ranks := float64(setting.Ranks())
	return measure.Experiment{
		Title: "HPL and STREAM: bare host and cluster",
		Summary: "HPC Challenge, Debian's package hpcc, runs as two ranks on either side, pinned and connected as for the ping-pong. HPL solves " +
			"a dense system of linear equations over both ranks, which exchange messages as they go. STREAM's triad moves vectors on both " +
			"cores at once, without messages. The problem is small so that a run ends soon: HPL takes a fraction of a second, and STREAM's " +
			"vectors lie in the caches, so it is not the memory's bandwidth. Debian's hpcc computes with the reference BLAS, far below what the cores " +
			"can do with a tuned one. What counts is the ratio of the sides. Every run was checked: one with a wrong result would not be here.",
		Axis:    measure.HPCCAxis(),
		Metrics: measure.HPCCMetrics(),
		Sides:   tcpSides(cpus),
		Highlights: []measure.Highlight{
			{Metric: measure.HPLGflops, Side: clusterSide, X: ranks, Goal: goal},
			{Metric: measure.StreamTriadGBPerS, Side: clusterSide, X: ranks, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions:     append(machine(), measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
}

// hpccLine says what a run measured.
func hpccLine(r measure.Run) string {
	values := r.Points[0].Values
	return fmt.Sprintf("%.2f Gflop/s, %.1f GB/s", values[measure.HPLGflops], values[measure.StreamTriadGBPerS])
}
