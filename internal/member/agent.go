package member

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/children"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// Config is the configuration of a member agent.
type Config struct {
	memberconfig.File
	// SSHD is the command that serves one SSH connection, its standard input and output, and logs to standard error.
	SSHD []string
	// SSHPort is where members answer.
	SSHPort uint16
	// SSHDDirectory is made for sshd (its privilege separation changes root to it).
	SSHDDirectory string
	// SpoolBytes bounds how much of a job's output is kept until the server has stored it; a job that prints more waits.
	SpoolBytes int64
	// OutputPatience is how long a job waits for that at most while nothing is stored.
	OutputPatience time.Duration
	// ProbeEvery is the time between two looks at whether a member that was ready still is.
	ProbeEvery time.Duration
	// ReadyPatience is after which time a member that sshd does not make ready tells so.
	ReadyPatience time.Duration
	// InterruptGrace and TerminateGrace are how long a cancelled job has after SIGINT and then after SIGTERM, before SIGKILL.
	InterruptGrace, TerminateGrace time.Duration
	// StopGrace is how long all jobs have when the member ends; what is left ends with the member's first process.
	StopGrace time.Duration
	Log       *slog.Logger
}

// LoadConfig reads the member's file and fills in what holds for every member.
func LoadConfig(path string) (Config, error) {
	c := Config{
		SSHD: []string{"/usr/sbin/sshd", "-i", "-e"}, SSHPort: 22, SSHDDirectory: "/run/sshd",
		SpoolBytes: 8 << 20, OutputPatience: time.Minute, ReadyPatience: 15 * time.Second, StopGrace: time.Second, ProbeEvery: 5 * time.Second,
		// mpirun gives its ranks a second between SIGTERM and SIGKILL when it is interrupted.
		InterruptGrace: 4 * time.Second, TerminateGrace: 2 * time.Second,
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &c.File)
	}
	if err != nil {
		return Config{}, fmt.Errorf("the member's configuration %s can't be read: %w", path, err)
	}
	return c, nil
}

// agent is a running member agent.
type agent struct {
	cfg      Config
	log      *slog.Logger
	instance string
	children *children.Children
	jobs     *jobs
	health   *health
	stop     context.CancelFunc
	dialer   memberlink.Dialer
	slurm    *slurm

	mu      sync.Mutex
	ready   *Ready
	problem *Problem
	changed chan struct{} // has an element when ready, problem or health changed
}

// Run is the member agent: it returns when ctx ends or the node agent asks for it, with all jobs told to end. The process
// must start its children by Run only, since it waits for every child (a first process must).
func Run(ctx context.Context, cfg Config) error {
	dialer, err := memberlink.Open(cfg.Link)
	if err != nil {
		return fmt.Errorf("the member's configuration is invalid: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	a := &agent{
		cfg: cfg, log: cfg.Log, instance: rand.Text(), stop: stop, dialer: dialer, changed: make(chan struct{}, 1),
		children: children.New(),
	}
	a.jobs, a.slurm = newJobs(cfg, a.children), newSlurm(cfg, a.children)
	a.health = newHealth(ctx, a.runCheck, a.signalChange)
	if err := raiseLoopback(); err != nil {
		a.log.Warn("the loopback interface is down and can't be raised", "error", err)
	}
	reaping, reaped := context.WithCancel(context.Background())
	defer reaped()
	go a.children.Reap(reaping)
	var running sync.WaitGroup
	running.Go(func() { a.serveSSH(ctx) })
	running.Go(func() { a.link(ctx) })
	running.Go(func() { a.slurm.serve(ctx) })
	<-ctx.Done()
	a.jobs.end(cfg.StopGrace)
	running.Wait()
	return nil
}

// setReady notes that sshd answers.
func (a *agent) setReady() {
	a.note(&Ready{At: time.Now().UTC()}, nil)
}

// setProblem notes that the member is not ready and why.
func (a *agent) setProblem(message string) {
	a.log.Warn("the member is not ready", "problem", message)
	a.note(nil, &Problem{Message: message})
}

func (a *agent) note(ready *Ready, problem *Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready, a.problem = ready, problem
	a.signalChange()
}

// signalChange has the node agent told of what changed.
func (a *agent) signalChange() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// status returns what there is to tell about readiness.
func (a *agent) status() (*Ready, *Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ready, a.problem
}

// sshAddress is where others reach sshd.
func (a *agent) sshAddress() string { return netip.AddrPortFrom(a.cfg.Address, a.cfg.SSHPort).String() }
