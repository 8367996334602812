package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	clusterName = "demo"
	members     = 2
	memory      = 512 << 20

	startWindow  = 30 * time.Second
	readyWindow  = 60 * time.Second
	deleteWindow = 60 * time.Second
	jobWindow    = 60 * time.Second
)

// visit is one tour under way.
type visit struct {
	*narrator
	opts     Options
	report   files
	api      Client
	programs measure.Programs
	stateDir string
	// scratch holds what the tour needs besides the state; it is removed at the end.
	scratch string
	cluster api.Cluster
}

// tour does everything but the snapshots.
func tour(ctx context.Context, opts Options, n *narrator) (err error) {
	report, err := reportFiles(opts.Report)
	if err != nil {
		return err
	}
	v := &visit{narrator: n, opts: opts, report: report, stateDir: opts.StateDir}
	if err := v.prepare(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(v.scratch)) }()
	return v.withSite(ctx, func(ctx context.Context) error {
		return v.withCluster(ctx, func(ctx context.Context) error {
			if err := v.hello(ctx); err != nil {
				return err
			}
			return v.measure(ctx)
		})
	})
}

// prepare checks what is needed and compiles the programs.
func (v *visit) prepare(ctx context.Context) error {
	if _, err := exec.LookPath("mpirun"); err != nil {
		return errors.New("mpirun is not installed; the demo runs MPI programs: apt-get install openmpi-bin libopenmpi-dev gcc")
	}
	scratch, err := os.MkdirTemp("", "nearmetal-demo-")
	if err != nil {
		return fmt.Errorf("no place for the demo's files: %w; TMPDIR names another one", err)
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

// withSite runs an embedded site around do.
func (v *visit) withSite(ctx context.Context, do func(context.Context) error) error {
	listen, err := freePort(ctx)
	if err != nil {
		return err
	}
	// At least one slot a member, though they may have to share a core.
	opts := config.Dev{
		Streams: v.opts.Streams, Log: v.opts.Log, StateDir: v.stateDir, Listen: listen, Nodes: 1, NodeCores: max(runtime.NumCPU(), members),
	}
	siteCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ready, ended := make(chan Client, 1), make(chan error, 1)
	err = v.step("starting an embedded server and a node agent", func() error {
		go func() { ended <- v.opts.Serve(siteCtx, opts, func(c Client) { ready <- c }) }()
		select {
		case v.api = <-ready:
			return v.nodeReady(ctx)
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the embedded server did not start: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil {
		err = do(ctx)
	}
	return errors.Join(err, v.step("stopping server and agent", func() error {
		stop()
		return <-ended
	}))
}

// nodeReady waits for a node that members can be placed on.
func (v *visit) nodeReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWindow)
	defer cancel()
	last := "no node has registered"
	for {
		nodes, err := v.api.Nodes(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the nodes can't be listed: %w", err)
		}
		for _, node := range nodes {
			if node.Phase != api.NodeReady {
				last = fmt.Sprintf("node %s is %s: %s", node.Name, node.Phase, node.Message)
				continue
			}
			for _, s := range node.Stacks {
				if s.Stack != api.StackContainer {
					continue
				}
				if s.OK {
					return nil
				}
				return fmt.Errorf("this machine can't carry containers:\n%s", strings.Join(s.Problems, "\n"))
			}
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("no node became ready in %s; %s; the agent's log is below %s", startWindow, last, v.stateDir)
		case <-timer.C:
		}
	}
}

// withCluster has a cluster around do, and deletes it whatever happens.
func (v *visit) withCluster(ctx context.Context, do func(context.Context) error) error {
	err := v.step(fmt.Sprintf("creating cluster %q: %d members, 1 core and %d MiB each", clusterName, members, memory>>20), func() error {
		request := api.ClusterRequest{Name: clusterName, Size: members, Cores: 1, Memory: memory}
		if _, err := v.api.CreateCluster(ctx, request); err != nil {
			return err
		}
		return v.clusterReady(ctx)
	})
	if err == nil {
		v.show(describe(v.cluster))
		err = do(ctx)
	}
	return errors.Join(err, v.step("deleting the cluster", func() error { return v.deleteCluster(context.WithoutCancel(ctx)) }))
}

func (v *visit) clusterReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWindow)
	defer cancel()
	for change, err := range v.api.WatchCluster(ctx, clusterName) {
		switch {
		case err != nil:
			return fmt.Errorf("cluster %q was not ready in %s (it is %s: %s): %w", clusterName, readyWindow,
				v.cluster.Status.Phase, v.cluster.Status.Message, err)
		case change.Deleted:
			return fmt.Errorf("cluster %q was deleted by someone else", clusterName)
		case change.Synced:
			continue
		}
		v.cluster = change.Cluster
		switch v.cluster.Status.Phase {
		case api.ClusterReady:
			return nil
		case api.ClusterRefused, api.ClusterFailed:
			return fmt.Errorf("cluster %q is %s: %s", clusterName, v.cluster.Status.Phase, v.cluster.Status.Message)
		default:
		}
	}
	return fmt.Errorf("the watch on cluster %q ended early", clusterName)
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
	ctx, cancel := context.WithTimeout(ctx, jobWindow)
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

// freePort finds a port on loopback that nobody listens on.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("no port for the embedded server: %w", err)
	}
	return l.Addr().String(), l.Close()
}
