package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// Fixed work quanta (Sottile and Minnich, "Analysis of microbenchmarks for performance tuning of clusters", 2004): the same work, again and
// again; whatever takes longer than the quickest was disturbed.
//
// Server and agent are stopped (SIGSTOP) and continued (SIGCONT) in short windows while the quanta run, so that both sides see the same
// machine half a second apart. What they put off while stopped they do when continued: their noise is overstated by that, and never
// understated. Of a timer that beats several times in a window only the last beat is made up for, so a window is a few beats of etcd's clock
// (100 ms) long: with windows of one beat everything counted twice. Windows are summed up to blocks, because what server and agent do at times
// would not show in the median window.
const (
	quantumTurns = 400_000 // about a millisecond
	noiseWindow  = 500 * time.Millisecond
	// blockWindows is how many windows with the site running, and as many without, make a block. It is even, since every other pair of
	// windows begins with the other side.
	blockWindows = 4
	noiseBlocks  = 60
	// idleTime is how long an idle site's own processor time is watched: two rounds of an agent's audit.
	idleTime = time.Minute
	// quantaVariable makes the bench run quanta instead; its value names the processes to stop and continue, with commas.
	quantaVariable = "NEARMETAL_BENCH_QUANTA"
)

// noiseBlock is what was done in one block, on all cores together.
type noiseBlock struct {
	// Quanta are how many were done, parts included, and Seconds how long the windows were: with the site running, and stopped.
	RunningQuanta, StoppedQuanta   float64
	RunningSeconds, StoppedSeconds float64
}

// efficiency is the rate of work beside the site over the rate without it.
func (b noiseBlock) efficiency() float64 {
	return b.RunningQuanta / b.RunningSeconds / (b.StoppedQuanta / b.StoppedSeconds)
}

// quantaResult is what a run of quanta tells.
type quantaResult struct {
	Blocks []noiseBlock
	// QuickestSeconds is the shortest quantum of all.
	QuickestSeconds float64
	Cores           []int
	// Isolated tells whether the cores are those that the kernel keeps other processes from (isolcpus).
	Isolated bool
}

// noiseCores are the cores to keep busy: the isolated ones, or all.
func noiseCores(isolated string, count int) (cores []int, only bool) {
	for part := range strings.SplitSeq(strings.TrimSpace(isolated), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			continue
		}
		for core := from; core <= to; core++ {
			cores = append(cores, core)
		}
	}
	if len(cores) > 0 {
		return cores, true
	}
	for core := range count {
		cores = append(cores, core)
	}
	return cores, false
}

// runQuanta keeps cores busy with quanta, stops and continues the site meanwhile, and prints how long they took.
func runQuanta() error {
	debug.SetGCPercent(-1)
	var pids []int
	for field := range strings.SplitSeq(os.Getenv(quantaVariable), ",") {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("%s is %q: %w", quantaVariable, os.Getenv(quantaVariable), err)
		}
		pids = append(pids, pid)
	}
	isolated, _ := os.ReadFile("/sys/devices/system/cpu/isolated") // none where the kernel has no such file
	var result quantaResult
	result.Cores, result.Isolated = noiseCores(string(isolated), runtime.NumCPU())
	runtime.GOMAXPROCS(len(result.Cores) + 2) // one to give the windows, whatever the others do
	begun := time.Now()
	var done atomic.Bool
	ends := make([][]float64, len(result.Cores))
	var group sync.WaitGroup
	for i, core := range result.Cores {
		group.Go(func() { ends[i] = quantaOn(core, begun, &done) })
	}
	windows, err := giveWindows(begun, pids)
	done.Store(true)
	group.Wait()
	if err != nil {
		return err
	}
	result.Blocks, result.QuickestSeconds = noiseBlocksOf(windows, ends)
	return json.NewEncoder(os.Stdout).Encode(result)
}

// noiseWindows are when windows began, in seconds since the beginning, and whether the site runs in each; the last one is only an end.
type noiseWindows struct {
	begins  []float64
	running []bool
}

// giveWindows stops and continues the processes in turn, each first in every other pair of windows, and leaves them running. What they do as
// soon as they are continued is in the window.
func giveWindows(begun time.Time, pids []int) (w noiseWindows, err error) {
	defer func() { err = errors.Join(err, signalAll(pids, unix.SIGCONT)) }()
	ticks := time.NewTicker(noiseWindow)
	defer ticks.Stop()
	for pair := range noiseBlocks * blockWindows {
		for _, running := range []bool{pair%2 == 0, pair%2 == 1} {
			before := time.Since(begun).Seconds()
			signal := unix.SIGCONT
			if !running {
				signal = unix.SIGSTOP
			}
			if err := signalAll(pids, signal); err != nil {
				return w, err
			}
			if !running {
				before = time.Since(begun).Seconds()
			}
			w.begins, w.running = append(w.begins, before), append(w.running, running)
			<-ticks.C
		}
	}
	w.begins = append(w.begins, time.Since(begun).Seconds())
	return w, nil
}

func signalAll(pids []int, signal unix.Signal) error {
	var err error
	for _, pid := range pids {
		if e := unix.Kill(pid, signal); e != nil {
			err = errors.Join(err, fmt.Errorf("process %d of the site: %w", pid, e))
		}
	}
	return err
}

// quantaOn keeps a core busy until done, and returns when it began and when each quantum ended, in seconds since the beginning.
func quantaOn(core int, begun time.Time, done *atomic.Bool) []float64 {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	_ = unix.SchedSetaffinity(0, &set) // a core that is not ours is left to the scheduler, on both sides alike
	total, ends := uint64(core), make([]float64, 1, 1<<18)
	for ends[0] = time.Since(begun).Seconds(); !done.Load(); ends = append(ends, time.Since(begun).Seconds()) {
		for turn := range uint64(quantumTurns) {
			total = total*6364136223846793005 + turn // Knuth's MMIX generator: the next turn needs the last
		}
	}
	runtime.KeepAlive(total)
	return ends
}

// noiseBlocksOf sums the quanta of all cores up by window. One that lies in two windows is shared out by the time it took in each: if it were
// left out, so would be the long ones, which are the disturbed ones. It returns the quickest quantum, too.
func noiseBlocksOf(w noiseWindows, ends [][]float64) (blocks []noiseBlock, quickest float64) {
	quanta, quickest := make([]float64, len(w.running)), math.Inf(1)
	for _, core := range ends {
		at := 0
		for i := 1; i < len(core); i++ {
			from, to := core[i-1], core[i]
			quickest = min(quickest, to-from)
			for at+1 < len(quanta) && w.begins[at+1] <= from {
				at++
			}
			for in := at; in < len(quanta) && w.begins[in] < to; in++ {
				if overlap := min(to, w.begins[in+1]) - max(from, w.begins[in]); overlap > 0 {
					quanta[in] += overlap / (to - from)
				}
			}
		}
	}
	blocks = make([]noiseBlock, (len(quanta)+2*blockWindows-1)/(2*blockWindows))
	for i, n := range quanta {
		b, seconds := &blocks[i/(2*blockWindows)], w.begins[i+1]-w.begins[i]
		if w.running[i] {
			b.RunningQuanta, b.RunningSeconds = b.RunningQuanta+n, b.RunningSeconds+seconds
		} else {
			b.StoppedQuanta, b.StoppedSeconds = b.StoppedQuanta+n, b.StoppedSeconds+seconds
		}
	}
	return blocks, quickest
}

// noise compares quanta beside a site that carries an idle cluster with quanta while its server and agent are stopped, and reads how much
// processor time these two take.
func noise(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	dev, err := startSite(ctx, o.nearmetal, filepath.Join(work, "noise", "state"), 1, max(2, runtime.NumCPU()), memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.stop()) }()
	if err := dev.Create(ctx, 2); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Delete(context.WithoutCancel(ctx))) }()
	agents := dev.children()
	if len(agents) != 1 {
		return fmt.Errorf("the site has %d children, want its one agent", len(agents))
	}
	server := dev.process.Process.Pid
	if err := wait(ctx, settle); err != nil {
		return err
	}
	serverHour, agentHour, err := idleProcessorTime(ctx, server, agents[0])
	if err != nil {
		return err
	}
	log.Info("watched an idle site", "for", idleTime, "server_cpu_seconds_an_hour", serverHour, "agent_cpu_seconds_an_hour", agentHour)
	result, err := quantaNow(ctx, []int{server, agents[0]})
	if err != nil {
		return err
	}
	text.WriteString(noiseText(result, serverHour, agentHour))
	return nil
}

// noiseText tells what came out.
func noiseText(r quantaResult, serverHour, agentHour float64) string {
	var b strings.Builder
	ratios, running, stopped := make([]float64, 0, len(r.Blocks)), []float64{}, []float64{}
	for _, block := range r.Blocks {
		ratios = append(ratios, block.efficiency())
		most := float64(len(r.Cores)) / r.QuickestSeconds // quanta a second, if nothing disturbed
		running = append(running, 1-block.RunningQuanta/block.RunningSeconds/most)
		stopped = append(stopped, 1-block.StoppedQuanta/block.StoppedSeconds/most)
	}
	where := fmt.Sprintf("all %d cores, none of them isolated", len(r.Cores))
	if r.Isolated {
		where = fmt.Sprintf("isolated cores %v", r.Cores)
	}
	interval := measure.MedianInterval(ratios, measure.DefaultLevel)
	fmt.Fprintf(&b, "Fixed work quanta on %s, at load %s: work done with server and agent running over stopped, every %s in turn, %d blocks of %.0f s: %.4f [%.4f, %.4f]\n",
		where, load(), noiseWindow, len(r.Blocks), 2*blockWindows*noiseWindow.Seconds(), interval.Value, interval.Low, interval.High)
	fmt.Fprintf(&b, "  goal %v: %s\n", noiseGoal, strings.TrimPrefix(measure.GoalText(ratios, noiseGoal), fmt.Sprintf("goal %.3g ", noiseGoal)))
	fmt.Fprintf(&b, "  of the time lost to disturbance, by the quickest quantum: running %.3f%%, stopped %.3f%% (medians)\n", 100*measure.Median(running), 100*measure.Median(stopped))
	fmt.Fprintf(&b, "  processor time of an idle site with a cluster of 2: server %.1f s, agent %.1f s an hour, %.3f%% of one core\n\n",
		serverHour, agentHour, 100*(serverHour+agentHour)/time.Hour.Seconds())
	return b.String()
}

// noiseGoal is how much of the work is to be done beside a site, at least.
const noiseGoal = 0.995

// idleProcessorTime watches how much processor time two processes take, and returns it in seconds an hour.
func idleProcessorTime(ctx context.Context, server, agent int) (serverHour, agentHour float64, err error) {
	var before, after [2]float64
	begun := time.Now()
	for i, pid := range []int{server, agent} {
		if before[i], err = processorTime(pid); err != nil {
			return 0, 0, err
		}
	}
	if err := wait(ctx, idleTime); err != nil {
		return 0, 0, err
	}
	for i, pid := range []int{server, agent} {
		if after[i], err = processorTime(pid); err != nil {
			return 0, 0, err
		}
	}
	hours := time.Since(begun).Hours()
	return (after[0] - before[0]) / hours, (after[1] - before[1]) / hours, nil
}

// processorTime is what all threads of a process have taken so far, in seconds, by its CPU-time clock (clock_getcpuclockid(3)): unlike
// /proc/PID/stat it counts nanoseconds.
func processorTime(pid int) (float64, error) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel's posix-timers_types.h
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()).Seconds(), nil
}

// quantaNow runs quanta in a process of their own, and lets the site run on whatever becomes of it.
func quantaNow(ctx context.Context, pids []int) (quantaResult, error) {
	var result quantaResult
	self, err := os.Executable()
	if err != nil {
		return result, err
	}
	var names []string
	for _, pid := range pids {
		names = append(names, strconv.Itoa(pid))
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), quantaVariable+"="+strings.Join(names, ","))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err := errors.Join(err, signalAll(pids, unix.SIGCONT)); err != nil {
		return result, fmt.Errorf("quanta: %w", err)
	}
	return result, json.Unmarshal(out, &result)
}
