package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	slurm         = "slurm"
	runSeconds    = "run_seconds"
	jobsPerSecond = "jobs_per_second"

	// singleJobs are run one after the other in a round, whose value is their median.
	singleJobs = 20
	// manyJobs are submitted by one client in a round: as many unfinished jobs as a cluster may have, and as many ended ones as are kept.
	manyJobs = 1000
	// jobsInFlight is how many submissions one client has under way. Each waits for a commit on disk, which holds all that came meanwhile. With 16,
	// submitting takes an eighth of the time until all have ended, which 4 and 64 leave as it is; with 1 it is half of it (docs/performance.md).
	jobsInFlight = 16
	// relist is the pause between two questions whether all jobs have ended, on both sides (bench/peers/slurm.sh).
	relist = 200 * time.Millisecond
	// quiet is how long the sides are left alone before each run: Slurm's last jobs complete, Nearmetal's oldest are removed.
	quiet = 2 * time.Second
)

// jobSide runs jobs of true, each as its users do.
type jobSide interface {
	// One runs a job from the command line and returns when it has ended.
	One(ctx context.Context) error
	// Many submits jobs from one client and returns when all have ended.
	Many(ctx context.Context, count int) error
	// Prove fails unless each of so many jobs has run.
	Prove(ctx context.Context, count int) error
}

// jobs measures jobs on a cluster of one member, and on a Slurm of one node, in turn.
func jobs(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (reports []measure.Report, err error) {
	peer := slurmPeer{script: filepath.Join(o.peers, "slurm.sh"), dir: filepath.Join(work, slurm)}
	absent, err := peer.missing(ctx)
	if err != nil {
		return nil, err
	}
	if why := withoutSlurm(absent); why != "" {
		log.Warn(why)
		fmt.Fprintf(text, "%s.\n\n", why)
		return nil, nil
	}
	own, err := startJobSite(ctx, o, work)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.site.Delete(context.WithoutCancel(ctx)), own.site.stop()) }()
	if err := peer.start(ctx); err != nil {
		return nil, err
	}
	defer peer.stop()
	runs, times, err := jobsInTurn(ctx, o.rounds, map[string]jobSide{slurm: &peer, nearmetal: own}, log)
	if err != nil {
		return nil, err
	}
	if reports, err = jobReports(runs); err != nil {
		return nil, err
	}
	for _, r := range reports {
		if err := r.WriteText(text); err != nil {
			return nil, err
		}
		text.WriteString("\n")
	}
	for _, name := range []string{slurm, nearmetal} {
		text.WriteString(summary("One job from the command line, "+name, times[name].singles))
	}
	for _, name := range []string{slurm, nearmetal} {
		rates := times[name].rates
		fmt.Fprintf(text, "%-46s median %8.1f jobs/s  [%.1f to %.1f jobs/s]  n=%d\n", fmt.Sprintf("%d jobs from one client, %s", manyJobs, name),
			measure.Median(rates), measure.Quantile(rates, 0), measure.Quantile(rates, 1), len(rates))
	}
	text.WriteString("\n")
	return reports, nil
}

// withoutSlurm says why jobs are not measured; "" if nothing is missing.
func withoutSlurm(absent []string) string {
	if len(absent) == 0 {
		return ""
	}
	return fmt.Sprintf("jobs beside Slurm omitted: not installed: %s; setup/install.sh bench installs them", strings.Join(absent, ", "))
}

// jobTimes is what one side has measured: seconds of single jobs, and jobs a second of many.
type jobTimes struct {
	singles, rates []float64
}

// jobsInTurn runs both sides in turn. Round 0 is not counted: it warms up and proves that jobs run.
func jobsInTurn(ctx context.Context, rounds int, sides map[string]jobSide, log *slog.Logger) (runs []measure.Run, times map[string]*jobTimes, err error) {
	names := []string{slurm, nearmetal}
	times = map[string]*jobTimes{slurm: {}, nearmetal: {}}
	for i, order := range append([][]string{names}, measure.Schedule(names, rounds)...) {
		for _, name := range order {
			side := sides[name]
			if i == 0 {
				if err := side.Prove(ctx, manyJobs); err != nil {
					return nil, nil, fmt.Errorf("jobs of %s: %w", name, err)
				}
			}
			run := measure.Run{Side: name, Pair: i - 1, StartedAt: time.Now()}
			one, rate, err := jobsOnce(ctx, side)
			if err != nil {
				return nil, nil, fmt.Errorf("jobs of %s: %w", name, err)
			}
			run.DurationSeconds = time.Since(run.StartedAt).Seconds()
			run.Points = []measure.Point{
				{X: 1, Values: map[string]float64{runSeconds: measure.Median(one)}},
				{X: manyJobs, Values: map[string]float64{jobsPerSecond: rate}},
			}
			log.Info("ran jobs", "round", i, "of", rounds, "side", name, "one_ms", fmt.Sprintf("%.1f", 1e3*measure.Median(one)), "per_second", fmt.Sprintf("%.1f", rate))
			if i > 0 {
				runs = append(runs, run)
				times[name].singles, times[name].rates = append(times[name].singles, one...), append(times[name].rates, rate)
			}
		}
	}
	return runs, times, nil
}

// jobsOnce measures one side once: the seconds of single jobs, and how many of many jobs ended in a second.
func jobsOnce(ctx context.Context, side jobSide) (one []float64, rate float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case <-time.After(quiet):
	}
	for range singleJobs {
		start := time.Now()
		if err := side.One(ctx); err != nil {
			return nil, 0, err
		}
		one = append(one, time.Since(start).Seconds())
	}
	start := time.Now()
	if err := side.Many(ctx, manyJobs); err != nil {
		return nil, 0, err
	}
	return one, manyJobs / time.Since(start).Seconds(), nil
}

// jobReports compares single jobs, and many.
func jobReports(runs []measure.Run) ([]measure.Report, error) {
	experiments := []measure.Experiment{
		{
			Title: "One trivial job from the command line: Nearmetal and Slurm",
			Summary: fmt.Sprintf("The command runs true as a job and ends with it. Each round's value is the median of %d, one after the other. All daemons are "+
				"on this machine.", singleJobs),
			Metrics: []measure.Metric{{Name: runSeconds, Title: "Command to its end", Unit: "s"}},
			Sides: []measure.Side{
				{Name: slurm, Description: "srun true, on the idle node of bench/peers/slurm.sh"},
				{Name: nearmetal, Description: "nearmetal dev with one node: nearmetal run CLUSTER -- true, on a running cluster of one member"},
			},
			Highlights: []measure.Highlight{{Metric: runSeconds, Side: nearmetal, X: 1}},
		},
		{
			Title: fmt.Sprintf("%d trivial jobs from one client: Nearmetal and Slurm", manyJobs),
			Summary: "From the first submission until all jobs have ended, which either client asks for five times a second. Slurm saves its state in the " +
				"background; Nearmetal answers a submission when it is on disk.",
			Metrics: []measure.Metric{{Name: jobsPerSecond, Title: "Jobs completed", Unit: "jobs/s", HigherIsBetter: true}},
			Sides: []measure.Side{
				{Name: slurm, Description: fmt.Sprintf("bench/peers/slurm.sh: sbatch --array=1-%d --wrap true, and squeue; the script says what is tuned", manyJobs)},
				{Name: nearmetal, Description: fmt.Sprintf("one client of the API, %d submissions in flight, then the watch of jobs and their list", jobsInFlight)},
			},
			Highlights: []measure.Highlight{{Metric: jobsPerSecond, Side: nearmetal, X: manyJobs}},
		},
	}
	reports := make([]measure.Report, 0, len(experiments))
	for _, e := range experiments {
		e.Axis = measure.Axis{Name: "Jobs", Unit: "jobs"}
		e.Conditions = append(conditions(), slurmVersion()...)
		for _, run := range runs {
			run.Points = pointsWith(run.Points, e.Metrics[0].Name)
			e.Runs = append(e.Runs, run)
		}
		r, err := measure.NewReport(e, 0)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// pointsWith returns the points that have a metric.
func pointsWith(points []measure.Point, metric string) []measure.Point {
	var with []measure.Point
	for _, p := range points {
		if _, ok := p.Values[metric]; ok {
			with = append(with, p)
		}
	}
	return with
}

func slurmVersion() []measure.Condition {
	out, err := exec.Command("slurmctld", "-V").Output()
	if err != nil {
		return nil
	}
	return []measure.Condition{{Name: "Slurm", Value: strings.TrimPrefix(strings.TrimSpace(string(out)), "slurm-wlm ")}}
}

// jobSite is Nearmetal's side: a site with a running cluster of one member that has all cores, as Slurm's jobs have.
type jobSite struct {
	site    *site
	program string
	address string
}

func startJobSite(ctx context.Context, o options, work string) (*jobSite, error) {
	state := filepath.Join(work, "jobs", "state")
	cores := runtime.NumCPU()
	s, err := startSite(ctx, o.nearmetal, state, 1, cores, memory)
	if err != nil {
		return nil, err
	}
	request := api.ClusterRequest{Name: clusterName, Size: 1, Cores: cores, Memory: s.memory}
	if _, err := s.client.CreateCluster(ctx, request); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := s.await(ctx, func(c api.Cluster) bool { return c.Status.ReadyMembers == 1 }); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return &jobSite{site: s, program: o.nearmetal, address: "unix:" + filepath.Join(state, "server.sock")}, nil
}

func (s *jobSite) One(ctx context.Context) error {
	return quietly(exec.CommandContext(ctx, s.program, "run", "--addr", s.address, clusterName, "--", "true"))
}

func (s *jobSite) Many(ctx context.Context, count int) error {
	mine, err := s.submit(ctx, count)
	if err != nil {
		return err
	}
	return s.allEnded(ctx, mine)
}

// Prove needs nothing more than Many, which fails unless every job has succeeded.
func (s *jobSite) Prove(ctx context.Context, count int) error { return s.Many(ctx, count) }

// submit creates jobs, several at a time, and returns their IDs.
func (s *jobSite) submit(ctx context.Context, count int) (map[string]bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun atomic.Int64
	var mu sync.Mutex
	mine := make(map[string]bool, count)
	var group sync.WaitGroup
	for range jobsInFlight {
		group.Go(func() {
			for begun.Add(1) <= int64(count) {
				job, err := s.site.client.CreateJob(ctx, clusterName, api.JobRequest{Command: []string{"true"}})
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				mine[job.ID] = true
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return mine, context.Cause(ctx)
}

// allEnded waits for jobs as docs/decisions/024 says: it reads the list when the watch begins and when the watch has reported a change since.
func (s *jobSite) allEnded(ctx context.Context, mine map[string]bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() {
		for _, err := range s.site.client.Changes(ctx, client.Selection{Kind: api.KindJob}) {
			if err != nil {
				cancel(err)
				return
			}
			select {
			case changed <- struct{}{}:
			default: // reported already
			}
		}
	})
	defer func() { cancel(nil); watching.Wait() }()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		}
		all, err := s.site.client.Jobs(ctx, clusterName)
		if err != nil {
			return err
		}
		if left, err := unfinished(all, mine); left == 0 || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(relist):
		}
	}
}

// unfinished counts those of my jobs that have not ended. It is an error that one failed, or is not listed.
func unfinished(all []api.Job, mine map[string]bool) (int, error) {
	seen, left := 0, 0
	for _, job := range all {
		switch {
		case !mine[job.ID]:
			continue
		case !job.Phase.Ended():
			left++
		case job.Phase != api.JobSucceeded:
			return 0, fmt.Errorf("job %s is %s: %s", job.ID, job.Phase, job.Message)
		}
		seen++
	}
	if seen != len(mine) {
		return 0, fmt.Errorf("%d of %d jobs are listed", seen, len(mine))
	}
	return left, nil
}

// slurmPeer is Slurm's side: daemons of its own, by bench/peers/slurm.sh.
type slurmPeer struct {
	script, dir string
	process     *exec.Cmd
}

// missing returns what is not installed.
func (p *slurmPeer) missing(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, p.script, "missing").Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.script, err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), nil
}

// start returns when Slurm takes jobs. Its daemons are in a PID namespace, which ends with the script.
func (p *slurmPeer) start(ctx context.Context) error {
	var said bytes.Buffer
	p.process = exec.Command(p.script, "serve", p.dir)
	p.process.Stderr = &said
	p.process.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := p.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.process.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.process.Process.Kill() })
	defer stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if strings.TrimSpace(line) != "ready" {
		p.stop()
		return fmt.Errorf("%s serve: %w: %s", p.script, errors.Join(err, ctx.Err()), said.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return nil
}

// stop kills the first process of Slurm's PID namespace, and with it the kernel kills all others.
func (p *slurmPeer) stop() {
	_ = p.process.Process.Kill()
	_ = p.process.Wait() // killed
}

func (p *slurmPeer) One(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "srun", "true")
	cmd.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(p.dir, "slurm.conf"))
	return quietly(cmd)
}

func (p *slurmPeer) Many(ctx context.Context, count int) error {
	return quietly(exec.CommandContext(ctx, p.script, "many", p.dir, strconv.Itoa(count)))
}

func (p *slurmPeer) Prove(ctx context.Context, count int) error {
	return quietly(exec.CommandContext(ctx, p.script, "check", p.dir, strconv.Itoa(count)))
}

// quietly runs a command that should print nothing of interest, and returns what it printed if it fails.
func quietly(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
