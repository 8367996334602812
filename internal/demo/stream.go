package demo

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// mostMemory is what a member gets at most, in bytes; memoryShare the part of what is free on the machine: the cluster grows to three
	// members on one of two nodes, which have half of the machine each.
	mostMemory  = 4 << 30
	memoryShare = 8
)

// planMemory chooses how much memory members get, and how long the memory program's vectors are.
func (v *visit) planMemory() error {
	cache := v.opts.cache
	if cache == 0 {
		cache, _ = measure.LastLevelCache("/sys")
	}
	wanted := measure.StreamMemory(cache)
	if v.opts.Thorough {
		wanted = mostMemory // HPL chooses by it, too
	}
	free := cmp.Or(v.opts.free, availableMemory(read("/proc/meminfo")))
	v.memory = max(leastMemory, min(wanted, mostMemory, free/memoryShare)) >> 20 << 20
	var err error
	v.stream, err = measure.PlanStream(cache, v.memory)
	return err
}

// availableMemory reads what may be used without swapping, in bytes, from /proc/meminfo; 0 if it does not say.
func availableMemory(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 53)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}

// streams measures the bandwidth of the memory, on both sides in turn.
func (v *visit) streams(ctx context.Context) error {
	v.part("How near to the bare machine: memory")
	program, err := v.install(v.programs.Stream)
	if err != nil {
		return err
	}
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	e := measure.Experiment{
		Title: "STREAM: bare host and cluster",
		Summary: "Both ranks move vectors through memory at once, without messages, pinned to the same cores on either side. The vectors are far longer " +
			"than the caches, so it is the memory's bandwidth. The same file runs on both sides. Every run checks its vectors.",
		Axis: measure.HPCCAxis(), Metrics: measure.StreamMetrics(), Sides: streamSides(cpus),
		Highlights: []measure.Highlight{
			{Metric: measure.TriadGBPerS, Side: clusterSide, X: members, Goal: goal},
			{Metric: measure.CopyGBPerS, Side: clusterSide, X: members, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions:     append(machine(), v.stream.Condition(), measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
	err = v.step("measuring STREAM", func() error {
		v.say("%s", terms(v.opts.Pairs, cpus))
		v.say("%s", v.stream.Condition().Value)
		e.Runs, err = v.inTurn(ctx, measure.Pairs{
			Count: v.opts.Pairs,
			Run: map[string]measure.Runner{
				hostSide:    v.onHost(cpus, measure.TransportTCP, v.programs.Stream, v.stream.Arguments()...),
				clusterSide: v.onCluster(measure.TransportTCP, program, v.stream.Arguments()...),
			},
			Parse: measure.ParseStream, Patience: v.patience(cmp.Or(v.opts.pairTime, streamTime)),
		}, streamLine)
		return err
	})
	if err != nil {
		return err
	}
	return v.publish(e, v.opts.Pairs)
}

func streamSides(cpus []int) []measure.Side {
	return []measure.Side{
		{Name: hostSide, Description: fmt.Sprintf("bare processes on CPUs %s", list(cpus))},
		{Name: clusterSide, Description: fmt.Sprintf("container members on CPUs %s, one core each, on one node", list(cpus))},
	}
}

// streamLine says what a run measured.
func streamLine(r measure.Run) string {
	return fmt.Sprintf("triad %.1f GB/s", r.Points[0].Values[measure.TriadGBPerS])
}
