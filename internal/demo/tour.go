package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	clusterName = "demo"
	members     = 2
	// leastMemory is what a member has, in bytes, unless it needs more to measure.
	leastMemory = 512 << 20

	startWindow  = 30 * time.Second
	readyWindow  = 60 * time.Second
	deleteWindow = 60 * time.Second
	// runWindow is how long a program may run, thoroughWindow one that is measured thoroughly.
	runWindow      = 2 * time.Minute
	thoroughWindow = 20 * time.Minute
)

// visit is one tour under way.
type visit struct {
	*narrator
	opts     Options
	files    files
	api      Client
	programs measure.Programs
	stateDir string
	// scratch holds what the tour needs besides the state; it is removed at the end.
	scratch string
	// memory is what each member of the next cluster gets, in bytes.
	memory  int64
	cluster api.Cluster
	// siteBegan is when the site was started.
	siteBegan time.Time
	reports   []measure.Report
	// measured is how long it was measured so far.
	measured time.Duration
	// stream is the setting of the memory program.
	stream measure.Stream
	// own is what carries messages between members when nothing is asked for.
	own measure.Carrier
}

// act is something done on the cluster.
type act func(*visit, context.Context) error

// layout is a site, and what is done on a cluster of it.
type layout struct {
	nodes, cores int
	// measures tells that members are measured on it, and get the memory for that.
	measures bool
	acts     []act
}

// layouts chooses the sites. The members that are measured are on one node and have cores of their own; what comes after wants two nodes.
// A machine with too few cores for both at once gets one site after the other, and the cores of the second are shared.
func layouts(cpus int) []layout {
	measured := []act{(*visit).hello, (*visit).messages, (*visit).streams, (*visit).hpcc}
	life := []act{(*visit).grow, (*visit).heal, (*visit).drain, (*visit).usage}
	if cpus >= 2*members {
		return []layout{{nodes: 2, cores: members, measures: true, acts: append(measured, life...)}}
	}
	// At least one slot a member, though they may have to share a core.
	return []layout{{nodes: 1, cores: max(cpus, members), measures: true, acts: measured}, {nodes: 2, cores: members, acts: life}}
}

// tour does everything but the snapshots.
func tour(ctx context.Context, opts Options, n *narrator) (err error) {
	report, err := reportFiles(opts.Report)
	if err != nil {
		return err
	}
	if opts.cpus == 0 {
		opts.cpus = runtime.NumCPU()
	}
	if opts.kill == nil {
		opts.kill = killMember
	}
	v := &visit{narrator: n, opts: opts, files: report, stateDir: opts.StateDir}
	if err := v.prepare(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(v.scratch)) }()
	for _, l := range layouts(opts.cpus) {
		v.memory = leastMemory
		if l.measures {
			if err := v.planMemory(); err != nil {
				return err
			}
		}
		err := v.withSite(ctx, l, func(ctx context.Context) error {
			return v.withCluster(ctx, func(ctx context.Context) error {
				for _, act := range l.acts {
					if err := act(v, ctx); err != nil {
						return err
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkPrograms tells everything that is missing at once.
func checkPrograms() error {
	var missing, packages []string
	for _, need := range []struct{ program, packages string }{
		{"mpirun", "openmpi-bin"},
		{"mpicc", "libopenmpi-dev gcc libc6-dev"},
		{"hpcc", "hpcc"},
		{"taskset", "util-linux"},
	} {
		if _, err := exec.LookPath(need.program); err != nil {
			missing, packages = append(missing, need.program), append(packages, need.packages)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not installed: %s; the demo compiles, runs and measures MPI programs: apt-get install %s (make demo does it)",
		strings.Join(missing, ", "), strings.Join(packages, " "))
}

// prepare checks what is needed and compiles the programs.
func (v *visit) prepare(ctx context.Context) error {
	if err := checkPrograms(); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "nearmetal-demo-")
	if err != nil {
		return fmt.Errorf("the demo's files have no directory: %w; set TMPDIR to another one", err)
	}
	v.scratch = scratch
	if v.stateDir == "" {
		v.stateDir = filepath.Join(scratch, "state")
	}
	// Members' users must be able to pass.
	if err := os.Chmod(scratch, 0o711); err != nil {
		return err
	}
	err = v.step("compiling the MPI programs", func() error {
		v.programs, err = measure.BuildPrograms(ctx, scratch)
		return err
	})
	if err != nil {
		return errors.Join(err, os.RemoveAll(scratch))
	}
	return nil
}

// withCluster has a cluster around do, and deletes it whatever happens.
func (v *visit) withCluster(ctx context.Context, do func(context.Context) error) error {
	err := v.step(fmt.Sprintf("creating cluster %q: %d members, 1 core and %d MiB each", clusterName, members, v.memory>>20), func() error {
		request := api.ClusterRequest{Name: clusterName, Size: members, Cores: 1, Memory: api.Bytes(v.memory)}
		if _, err := v.api.CreateCluster(ctx, request); err != nil {
			return err
		}
		return v.clusterReady(ctx, members)
	})
	if err == nil {
		v.show(describe(v.cluster))
		err = do(ctx)
	}
	v.part("Giving it back")
	return errors.Join(err, v.step("deleting the cluster", func() error { return v.deleteCluster(context.WithoutCancel(ctx)) }))
}

// clusterReady waits until the cluster has so many members and no others, all of them ready.
func (v *visit) clusterReady(ctx context.Context, size int) error {
	ctx, cancel := context.WithTimeout(ctx, readyWindow)
	defer cancel()
	for change, err := range v.api.WatchCluster(ctx, clusterName) {
		switch {
		case err != nil:
			return fmt.Errorf("cluster %q did not have %d members ready in %s (it is %s: %s): %w", clusterName, size, readyWindow,
				v.cluster.Status.Phase, v.cluster.Status.Message, err)
		case change.Deleted:
			return fmt.Errorf("cluster %q was deleted by someone else", clusterName)
		case change.Synced:
			continue
		}
		v.cluster = change.Cluster
		switch v.cluster.Status.Phase {
		case api.ClusterReady:
			if readyMembers(v.cluster) == size && len(v.cluster.Status.Members) == size {
				return nil
			}
		case api.ClusterRefused, api.ClusterFailed:
			return fmt.Errorf("cluster %q is %s: %s", clusterName, v.cluster.Status.Phase, v.cluster.Status.Message)
		default:
		}
	}
	return fmt.Errorf("the watch on cluster %q ended early", clusterName)
}

func readyMembers(c api.Cluster) int {
	count := 0
	for _, m := range c.Status.Members {
		if m.Phase == api.MemberReady {
			count++
		}
	}
	return count
}

func (v *visit) deleteCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deleteWindow)
	defer cancel()
	if _, err := v.api.DeleteCluster(ctx, clusterName); isGone(err) {
		return nil // it was never made
	} else if err != nil {
		return err
	}
	for change, err := range v.api.WatchCluster(ctx, clusterName) {
		if isGone(err) || (err == nil && change.Deleted) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cluster %q was not deleted in %s: %w", clusterName, deleteWindow, err)
		}
	}
	return nil
}

// hello runs the first MPI program.
func (v *visit) hello(ctx context.Context) error {
	return v.step("running an MPI hello on it", func() error {
		program, err := v.install(v.programs.Hello)
		if err != nil {
			return err
		}
		return v.run(ctx, api.JobRequest{Command: []string{program}, Ranks: members}, v.narrator)
	})
}

// install copies a program into the cluster's shared home and returns its path in the members. The site is on this machine,
// so its state directory holds the home.
func (v *visit) install(program string) (string, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	name := filepath.Base(program)
	home := filepath.Join(v.stateDir, "home", v.cluster.UID, "hpc")
	if err := os.WriteFile(filepath.Join(home, name), content, 0o755); err != nil {
		return "", fmt.Errorf("the program can't be put into the shared home: %w", err)
	}
	return "/home/hpc/" + name, nil
}

// run runs a job to its end and copies what it prints.
func (v *visit) run(ctx context.Context, request api.JobRequest, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, v.jobWindow())
	defer cancel()
	job, err := v.api.CreateJob(ctx, clusterName, request)
	if err != nil {
		return err
	}
	if _, err := v.api.JobLog(ctx, job.ID, 0, true, out); err != nil {
		return fmt.Errorf("the output of job %s: %w", job.ID, err)
	}
	job, err = v.api.Job(ctx, job.ID)
	if err != nil {
		return err
	}
	if job.Phase != api.JobSucceeded {
		code := "none"
		if job.ExitCode != nil {
			code = fmt.Sprint(*job.ExitCode)
		}
		return fmt.Errorf("job %s (%s) is %s with exit code %s %s", job.ID, strings.Join(request.Command, " "), job.Phase, code, job.Message)
	}
	return nil
}

// describe writes the members of a cluster as a table.
func describe(c api.Cluster) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MEMBER\tRANK\tNODE\tADDRESS\tCPUS\tMEMORY\tPHASE")
	for _, m := range c.Status.Members {
		cpus := strings.Trim(fmt.Sprint(m.CPUs), "[]")
		if m.Oversubscribed {
			cpus += " (oversubscribed)"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.Rank, m.Node, m.Address, cpus, api.Bytes(m.MemoryBytes), m.Phase)
	}
	_ = t.Flush()
	return b.String()
}
