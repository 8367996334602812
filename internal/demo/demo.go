// Package demo is `nearmetal demo`: it shows the whole product in under three minutes on the machine at hand. It starts an
// embedded site, creates a cluster, runs MPI on it, measures it against the bare host on the same cores, lets it grow, kills a
// member of it and shows how it heals, drains a node, shrinks it, and proves that nothing is left.
//
// The proof must not depend on what is to be proven. So the demo is two processes: the outer one looks at the whole host, runs
// the inner one (this program again), collects whatever it leaves orphaned, and looks again once it has ended; the inner one
// does the tour and knows nothing of the snapshots. Both have a network namespace and a group of their own, so that what
// other programs do to this host meanwhile is not taken for the demo's (enclose.go).
//
// The package must never touch members other than through the API, but for the one it kills; and it must never measure on
// cores that are shared without saying so.
//
// Start with Run; the outer process is in prove.go, the inner one in tour.go, the measurements in pingpong.go and hpcc.go, what
// happens to the cluster afterwards in life.go.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
)

// Client is what the demo needs of the API; *client.Client has it.
type Client interface {
	Nodes(ctx context.Context) ([]api.Node, error)
	Node(ctx context.Context, name string) (api.Node, error)
	DrainNode(ctx context.Context, name, reason string) (api.Node, error)
	UndrainNode(ctx context.Context, name string) (api.Node, error)
	CreateCluster(ctx context.Context, req api.ClusterRequest) (api.Cluster, error)
	WatchCluster(ctx context.Context, name string) iter.Seq2[client.ClusterChange, error]
	ScaleCluster(ctx context.Context, name string, req api.ScaleRequest) (api.Cluster, error)
	DeleteCluster(ctx context.Context, name string) (api.Cluster, error)
	Events(ctx context.Context, name string, after int64) ([]api.Event, error)
	FollowEvents(ctx context.Context, name string, after int64) iter.Seq2[api.Event, error]
	CreateJob(ctx context.Context, cluster string, req api.JobRequest) (api.Job, error)
	Job(ctx context.Context, id string) (api.Job, error)
	JobLog(ctx context.Context, id string, offset int64, follow bool, w io.Writer) (int64, error)
	JobAttemptLog(ctx context.Context, id string, attempt int, offset int64, follow bool, w io.Writer) (int64, error)
	Usage(ctx context.Context, q client.UsageQuery) (api.UsageReport, error)
}

// Serve runs an embedded site until ctx ends, and calls ready once its API answers. What it started has ended when it returns.
type Serve func(ctx context.Context, opts config.Dev, ready func(Client)) error

// Options are what a demo is made of.
type Options struct {
	config.Demo
	// Serve is how the embedded site is started; the wiring passes it in.
	Serve Serve
	// SizeMilliseconds is how long one message size is measured in one run; 0 means 60.
	SizeMilliseconds int
	// SingleProcess runs the tour in this process, without the proof; tests use it.
	SingleProcess bool

	// cpus is how many this machine is taken to have, 0: as many as there are; kill ends a member's first process, nil: really.
	cpus int
	kill func(uid, member string) (int, error)
	// pairTime bounds what a pair of measurements may take, 0: as long as a visitor waits.
	pairTime time.Duration
	// cache is what this machine's last-level cache is taken to have, in bytes, 0: as much as the kernel says.
	cache int64
	// free is how much memory is taken to be free on this machine, in bytes, 0: as much as the kernel says.
	free int64
}

// stage marks in the environment which of its processes this one is.
const (
	stage      = "NEARMETAL_DEMO_STAGE"
	proofStage = "proof"
	tourStage  = "tour"
)

// ErrLeft: something of the demo is still on the host.
var ErrLeft = errors.New("the demo left resources behind")

// Run runs the demo and writes what happens to out, as it happens. It fails when any step failed or anything is left.
func Run(ctx context.Context, opts Options, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("nearmetal demo needs root to make namespaces and control groups, and to inspect the whole host; run it with sudo")
	}
	if opts.SingleProcess || os.Getenv(stage) == tourStage {
		return tour(ctx, opts, newNarrator(out))
	}
	report, err := reportFiles(opts.Report)
	if err != nil {
		return err
	}
	if os.Getenv(stage) != proofStage {
		return enclose()
	}
	return prove(ctx, opts, report, newNarrator(out))
}

// files are what the demo leaves on purpose.
type files struct {
	html, json string
}

// reportFiles returns where the report goes: the HTML page as asked for, the data beside it.
func reportFiles(path string) (files, error) {
	if path == "" {
		path = "nearmetal-demo.html"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return files{}, fmt.Errorf("the report's path: %w", err)
	}
	// Found now, and not after a minute of measuring.
	probe, err := os.CreateTemp(filepath.Dir(path), ".nearmetal-report-*")
	if err != nil {
		return files{}, fmt.Errorf("the report can't be written to %s: %w; choose another path with --report", path, err)
	}
	_ = probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return files{}, err
	}
	return files{html: path, json: strings.TrimSuffix(path, filepath.Ext(path)) + ".json"}, nil
}
