package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// Fixed work quanta (Sottile and Minnich, "Analysis of microbenchmarks for performance tuning of clusters", 2004): the same work, again and
// again; whatever takes longer than the quickest was disturbed.
const (
	quantumTurns = 400_000 // about a millisecond
	quanta       = 2000
	noisePairs   = 8
	// quantaVariable makes the bench run quanta instead.
	quantaVariable = "NEARMETAL_BENCH_QUANTA"
)

// quantaResult is what one run of quanta on all cores tells.
type quantaResult struct {
	// Seconds of every quantum, all cores together.
	Seconds []float64
}

// runQuanta keeps every core busy with quanta and prints how long each took.
func runQuanta() error {
	debug.SetGCPercent(-1)
	cores := runtime.NumCPU()
	all := make([][]float64, cores)
	var group sync.WaitGroup
	for core := range cores {
		all[core] = make([]float64, quanta)
		group.Go(func() {
			runtime.LockOSThread()
			var set unix.CPUSet
			set.Set(core)
			_ = unix.SchedSetaffinity(0, &set) // a core that is not ours is left to the scheduler, on both sides alike
			sum := uint64(core)
			for i := range all[core] {
				start := time.Now()
				for turn := range uint64(quantumTurns) {
					sum = sum*6364136223846793005 + turn // Knuth's MMIX generator: the next turn needs the last
				}
				all[core][i] = time.Since(start).Seconds()
			}
			runtime.KeepAlive(sum)
		})
	}
	group.Wait()
	var result quantaResult
	for _, times := range all {
		result.Seconds = append(result.Seconds, times...)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// noise compares quanta beside a site that carries an idle cluster with quanta on the bare machine.
func noise(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) error {
	var ratios, disturbed, bare []float64
	for pair := range noisePairs {
		var with, without quantaResult
		first, second := &with, &without
		if pair%2 == 1 {
			first, second = second, first
		}
		for _, result := range []*quantaResult{first, second} {
			var err error
			if result == &with {
				err = besideSite(ctx, o, filepath.Join(work, fmt.Sprintf("noise%d", pair), "state"), result)
			} else {
				err = quantaNow(ctx, result)
			}
			if err != nil {
				return err
			}
		}
		ratios = append(ratios, sum(without.Seconds)/sum(with.Seconds))
		disturbed, bare = append(disturbed, disturbance(with.Seconds)), append(bare, disturbance(without.Seconds))
		log.Info("ran quanta", "pair", pair+1, "of", noisePairs, "efficiency", ratios[pair])
	}
	interval := measure.MedianInterval(ratios, 0.95)
	fmt.Fprintf(text, "Fixed work quanta on %s, without a site over beside one that carries an idle cluster: %.4f [%.4f, %.4f], %d pairs\n"+
		"  lost to disturbance (mean over quickest, less one): beside the site %.2f%%, without %.2f%% (medians)\n\n",
		coresOf(), interval.Value, interval.Low, interval.High, noisePairs, 100*measure.Median(disturbed), 100*measure.Median(bare))
	return nil
}

// besideSite runs quanta while a site carries an idle cluster of two members.
func besideSite(ctx context.Context, o options, dir string, into *quantaResult) error {
	dev, err := startSite(ctx, o.nearmetal, dir, 1, max(2, runtime.NumCPU()), memory)
	if err != nil {
		return err
	}
	err = dev.Create(ctx, 2)
	if err == nil {
		err = quantaNow(ctx, into)
	}
	if err == nil {
		err = dev.Delete(ctx)
	}
	if stopErr := dev.stop(); err == nil {
		err = stopErr
	}
	return err
}

// quantaNow runs quanta in a process of their own.
func quantaNow(ctx context.Context, into *quantaResult) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), quantaVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("quanta: %w", err)
	}
	return json.Unmarshal(out, into)
}

func disturbance(seconds []float64) float64 {
	return sum(seconds)/float64(len(seconds))/measure.Quantile(seconds, 0) - 1
}

func sum(values []float64) float64 {
	total := 0.0
	for _, v := range values {
		total += v
	}
	return total
}
