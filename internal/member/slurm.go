package member

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/children"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

const (
	// slurmEvery is how often the configuration is looked at.
	slurmEvery = time.Second
	// slurmWatch is how often a member that is ready asks slurmctld about itself.
	slurmWatch = 20 * time.Second
	// slurmAsk bounds one question to slurmctld.
	slurmAsk = 10 * time.Second
	// slurmPatience is how long a member waits, before it is ready, for a controller in another member.
	slurmPatience = 15 * time.Second
	// mungeSocket is where munged answers, and mungePatience how long it may take to.
	mungeSocket   = "/run/munge/munge.socket.2"
	mungePatience = 5 * time.Second
)

// errNoController: slurmctld does not answer.
var errNoController = errors.New("slurmctld does not answer")

// slurm runs the daemons of Slurm in a member that the generated slurm.conf names: munged and slurmd, and slurmctld in the member that is the
// controller. They follow the file: Slurm 22.05 takes nodes in and out when its daemons start.
//
// Jobs go on while a daemon starts anew. Those on a node that is gone are queued again, as when Slurm finds it down. While the controller is lost, all
// stays as it is.
type slurm struct {
	member, assignment string
	// root is "/" but for tests.
	root     string
	children *children.Children
	log      *slog.Logger
	began    time.Time

	// For the goroutine that serves: the daemons, nil until the member is a node, and what was last acted on.
	munged, slurmctld, slurmd *daemon
	seen                      os.FileInfo
	conf                      slurmConf

	mu   sync.Mutex
	look slurmLook
}

// slurmLook is what came of the last look at the configuration.
type slurmLook struct {
	done bool
	// daemons are those that should run, none in a member that is no node.
	daemons []*daemon
	// controller is the member that runs slurmctld.
	controller string
	problem    error
}

func newSlurm(cfg Config, c *children.Children) *slurm {
	return &slurm{member: cfg.Member, assignment: cfg.AssignmentID, root: "/", children: c, log: cfg.Log, began: time.Now()}
}

func (s *slurm) at(path string) string { return filepath.Join(s.root, path) }

// serve follows the configuration until ctx ends.
func (s *slurm) serve(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.follow(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("Slurm can't be set up; trying again", "error", err)
		}
		s.mu.Lock()
		s.look.done, s.look.problem = true, err
		s.mu.Unlock()
		pause(ctx, slurmEvery)
	}
	if s.slurmctld != nil {
		s.slurmctld.stop() // it saves its state
	}
}

// follow acts on the configuration when it changed.
func (s *slurm) follow(ctx context.Context) error {
	info, err := os.Stat(s.at(memberconfig.SlurmPath))
	if err != nil {
		return nil // there is no Slurm
	}
	if s.seen != nil && os.SameFile(info, s.seen) && info.ModTime().Equal(s.seen.ModTime()) {
		return nil
	}
	text, err := os.ReadFile(s.at(memberconfig.SlurmPath))
	if err != nil {
		return err
	}
	next := parseSlurmConf(text)
	if next.nodes[s.member] != "" && next.address != "" { // a lost controller has none
		if err := s.apply(ctx, next); err != nil {
			return err
		}
	}
	s.seen = info
	return nil
}

// apply starts the daemons, or starts them anew.
func (s *slurm) apply(ctx context.Context, next slurmConf) error {
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.startMunge(ctx); err != nil {
		return err
	}
	if err := s.standInForGPUs(next.gpus[s.member]); err != nil {
		return err
	}
	adopted := false
	if next.controller != s.member {
		s.slurmctld.stop()
	} else {
		if gone := s.conf.gone(next); len(gone) > 0 && s.slurmctld.running() {
			s.down(ctx, gone)
		}
		s.slurmctld.stop()
		var state *os.File
		var err error
		if state, adopted, err = s.openState(); err != nil {
			return fmt.Errorf("slurmctld's state: %w", err)
		}
		s.slurmctld.start(state)
	}
	s.slurmd.stop()
	if next.controller == s.member {
		s.await(ctx) // slurmd would pause before it tries again
	}
	if adopted {
		s.down(ctx, []string{s.member}) // what ran in the member that this one replaces has ended
	}
	s.slurmd.start(nil)
	s.conf = next
	look := slurmLook{done: true, daemons: []*daemon{s.munged, s.slurmd}, controller: next.controller}
	if next.controller == s.member {
		look.daemons = append(look.daemons, s.slurmctld)
	}
	s.mu.Lock()
	s.look = look
	s.mu.Unlock()
	return nil
}

// openState opens the controller's state in the home, else in the member itself: a home that root can't use must not keep jobs from running.
func (s *slurm) openState() (dir *os.File, adopted bool, err error) {
	cluster, _, _ := strings.Cut(s.assignment, ".")
	if dir, adopted, err = openState(s.at("/home"), cluster, s.assignment); err == nil {
		return dir, adopted, nil
	}
	s.log.Warn("the home can't keep the queue of Slurm, which will end with this member", "error", err)
	private := filepath.Dir(s.at(memberconfig.SlurmGPUs))
	if err := os.MkdirAll(private, 0o755); err != nil {
		return nil, false, err
	}
	return openState(private, cluster, s.assignment)
}

// prepare makes the daemons, without starting any.
func (s *slurm) prepare() (err error) {
	for _, one := range []struct {
		at   **daemon
		args []string
	}{
		{&s.munged, []string{
			s.at("/usr/sbin/munged"), "--foreground", "--key-file=" + memberconfig.MungeKeyPath, "--socket=" + s.at(mungeSocket),
			"--pid-file=" + s.at("/run/munge/munged.pid"), "--seed-file=" + s.at("/run/munge/munged.seed"),
		}},
		{&s.slurmctld, []string{s.at("/usr/sbin/slurmctld"), "-D"}},
		{&s.slurmd, []string{s.at("/usr/sbin/slurmd"), "-D"}},
	} {
		if *one.at == nil && err == nil {
			*one.at, err = newDaemon(s.children, s.log, one.args...)
		}
	}
	return err
}

// standInForGPUs makes a file for each GPU. Slurm looks whether it is a device, and at its number.
func (s *slurm) standInForGPUs(count int) error {
	for i := range count {
		path := s.at(memberconfig.SlurmGPUs + strconv.Itoa(i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(os.DevNull, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// startMunge returns once munged answers.
func (s *slurm) startMunge(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(s.at(mungeSocket)), 0o755); err != nil {
		return err
	}
	s.munged.start(nil)
	for deadline := time.Now().Add(mungePatience); ctx.Err() == nil; pause(ctx, 10*time.Millisecond) {
		if _, err := os.Stat(s.at(mungeSocket)); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("munged does not answer; its last output: %s", s.munged.said.get())
		}
	}
	return ctx.Err()
}

// await returns once slurmctld answers, or after a while.
func (s *slurm) await(ctx context.Context) {
	for deadline := time.Now().Add(slurmAsk); ctx.Err() == nil && time.Now().Before(deadline); pause(ctx, 100*time.Millisecond) {
		if _, err := s.ask(ctx, "show", "node", s.member); err == nil {
			return
		}
	}
}

// down has slurmctld queue again, or end, the jobs on nodes.
func (s *slurm) down(ctx context.Context, nodes []string) {
	said, err := s.ask(ctx, "update", "NodeName="+strings.Join(nodes, ","), "State=DOWN", "Reason=replaced or removed")
	if err != nil {
		s.log.Warn("jobs on nodes that are gone may not be queued again", "nodes", nodes, "error", err, "scontrol", said)
	}
}

// ask runs scontrol and returns what it printed.
func (s *slurm) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, slurmAsk)
	defer cancel()
	program := s.at("/usr/bin/scontrol")
	var said bytes.Buffer
	r, err := startRun(s.children, program, append([]string{program}, args...), &syscall.ProcAttr{Dir: "/", Env: rootEnv, Sys: &syscall.SysProcAttr{Setsid: true}}, &said)
	if err != nil {
		return "", err
	}
	status, late := r.wait(ctx.Done(), r.kill)
	r.collect()
	if late || status.ExitStatus() != 0 {
		if words := strings.TrimSpace(said.String()); words != "" {
			return words, fmt.Errorf("%w: %s", errNoController, words)
		}
		return "", errNoController
	}
	return said.String(), nil
}

// usable is nil when jobs can run in this member, or it is no node, or a controller that is lost or away in another member is all that keeps
// them from it.
func (s *slurm) usable(ctx context.Context) error {
	s.mu.Lock()
	look := s.look
	s.mu.Unlock()
	switch {
	case !look.done:
		return errors.New("the daemons of Slurm are not started yet")
	case look.problem != nil:
		return look.problem
	case len(look.daemons) == 0:
		return nil
	}
	for _, d := range look.daemons {
		if problem := d.problem(); problem != "" {
			return errors.New(problem)
		}
	}
	said, err := s.ask(ctx, "show", "node", s.member, "--oneliner")
	switch {
	case err == nil:
		return nodeProblem(said)
	case look.controller == s.member || time.Since(s.began) < slurmPatience:
		return err
	default:
		return nil
	}
}
