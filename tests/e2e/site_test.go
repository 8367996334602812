// Package e2e tests the built program from outside, as a user runs it: real processes, namespaces and networks.
//
// Programs come from the folder NEARMETAL_BIN_DIR, which "make e2e" sets; without it, or without root, tests skip and say so. A
// test must never look inside the program, leave anything on the host, or wait by the clock where it can wait for an event.
// Start with startSite.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// Programs in NEARMETAL_BIN_DIR.
const (
	ordinary   = "nearmetal"
	failpoints = "nearmetal-failpoints" // crashes where NEARMETAL_FAILPOINT says
)

// Exit codes of the command line (docs/cli.md).
const (
	exitFailed       = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitConflict     = 4
	exitRefused      = 5
	exitUnreachable  = 6
	exitUnauthorized = 7
	exitInterrupted  = 130
)

// site is a "nearmetal dev" with a state directory of its own, as one test sees it.
type site struct {
	t *testing.T
	*daemon
}

// newSite returns a site that is not started yet. At the end of the test it is stopped.
func newSite(t *testing.T, name string, args ...string) *site {
	t.Helper()
	return newSiteIn(t, name, shortDir(t), args...)
}

// newSiteIn is newSite with a given state directory.
func newSiteIn(t *testing.T, name, dir string, args ...string) *site {
	t.Helper()
	s := &site{t, &daemon{program: program(t, name), dir: dir, addr: freeAddress(t), args: args, log: &lockedBuffer{}}}
	t.Cleanup(s.end)
	return s
}

// shortDir is a temporary directory without the test's name in its path: the path of a socket has room for 107 bytes (unix(7)).
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "site")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// startSite starts "nearmetal dev" with these further arguments and waits until this many nodes are ready.
func startSite(t *testing.T, nodes int, args ...string) *site {
	t.Helper()
	s := newSite(t, ordinary, args...)
	s.start()
	s.waitForNodes(nodes)
	return s
}

// as returns the same site for a subtest.
func (s *site) as(t *testing.T) *site { return &site{t, s.daemon} }

// start starts the process, also again after stop or kill; env is added to its environment.
func (s *site) start(env ...string) {
	s.t.Helper()
	if err := s.launch(env); err != nil {
		s.t.Fatal(err)
	}
}

// stop ends the process politely and waits for it.
func (s *site) stop() {
	s.t.Helper()
	if how, ok := s.signal(syscall.SIGTERM); !ok || how.ExitStatus() != 0 {
		s.t.Errorf("nearmetal dev ended with code %d (%v), want 0 within a minute of SIGTERM", how.ExitStatus(), how.Signal())
	}
}

// kill ends the process as a crash would and waits for it.
func (s *site) kill() { s.signal(syscall.SIGKILL) }

// end deletes every cluster, stops the site and shows its log. Members outlive a site that is only stopped.
func (s *site) end() {
	if !s.started() {
		return
	}
	defer func() {
		if !s.ended() {
			s.stop()
		}
		if s.t.Failed() {
			s.t.Logf("log of nearmetal dev:\n%s", s.log)
			s.showAgentLogs()
		}
	}()
	if s.ended() {
		s.start(s.env...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	s.eventually(time.Minute, "clusters to be gone", func() bool {
		var clusters []api.Cluster
		a := s.run(ctx, "cluster", "list", "-o", "json")
		if a.code != 0 || json.Unmarshal([]byte(a.out), &clusters) != nil {
			return false
		}
		for _, c := range clusters {
			s.run(ctx, "cluster", "delete", c.Name, "--yes")
		}
		return len(clusters) == 0
	})
}

func (s *site) showAgentLogs() {
	logs, _ := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "agent.log"))
	for _, name := range logs {
		text, _ := os.ReadFile(name)
		s.t.Logf("%s:\n%s", name, text[max(0, len(text)-20_000):])
	}
}

// must runs a command that has to succeed and returns what it printed.
func (s *site) must(args ...string) string {
	s.t.Helper()
	a := s.cli(args...)
	if a.code != 0 {
		s.t.Fatalf("nearmetal %s: exit code %d\n%s%s", strings.Join(args, " "), a.code, a.out, a.err)
	}
	return a.out
}

// mustJSON runs a command with -o json that has to succeed and decodes what it printed.
func (s *site) mustJSON(into any, args ...string) {
	s.t.Helper()
	out := s.must(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		s.t.Fatalf("nearmetal %s -o json: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// cli runs a command against the site.
func (s *site) cli(args ...string) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Minute)
	defer cancel()
	return s.run(ctx, args...)
}

func (s *site) run(ctx context.Context, args ...string) answer {
	s.t.Helper()
	c := s.background(ctx, args...)
	return c.wait()
}

// background starts a command against the site and does not wait for it.
func (s *site) background(ctx context.Context, args ...string) *command {
	s.t.Helper()
	env := []string{"NEARMETAL_ADDR=" + s.addr, "NEARMETAL_TOKEN_FILE=" + filepath.Join(s.dir, "token")}
	return startCommand(s.t, exec.CommandContext(ctx, s.program, args...), env...)
}

// api returns a client of the site's API.
func (s *site) api() *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Addr: "unix:" + filepath.Join(s.dir, "server.sock")})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// waitForNodes waits until this many nodes are ready.
func (s *site) waitForNodes(n int) {
	s.t.Helper()
	s.eventually(time.Minute, "nodes to be ready", func() bool {
		var nodes []api.Node
		a := s.cli("node", "list", "-o", "json")
		if a.code != 0 || json.Unmarshal([]byte(a.out), &nodes) != nil {
			return false
		}
		ready := 0
		for _, node := range nodes {
			if node.Phase == api.NodeReady {
				ready++
			}
		}
		return ready >= n
	})
}

// waitReady waits until a cluster is ready and returns it.
func (s *site) waitReady(name string) api.Cluster {
	s.t.Helper()
	var c api.Cluster
	s.eventually(time.Minute, "cluster "+name+" to be ready", func() bool {
		a := s.cli("cluster", "show", name, "-o", "json")
		c = api.Cluster{}
		return a.code == 0 && json.Unmarshal([]byte(a.out), &c) == nil && c.Status.Phase == api.ClusterReady
	})
	return c
}

// waitGone waits until there is no cluster of this name.
func (s *site) waitGone(name string) {
	s.t.Helper()
	s.eventually(time.Minute, "cluster "+name+" to be gone", func() bool {
		return s.cli("cluster", "show", name).code == exitNotFound
	})
}

// eventually waits until ok, looking again at short intervals: the program is watched from outside, where there is no event to
// wait for. It fails the test at the deadline, or at once when the site's process has ended.
func (s *site) eventually(deadline time.Duration, what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.After(deadline)
	for !ok() {
		select {
		case <-tick.C:
		case <-s.over():
			s.t.Fatalf("nearmetal dev ended while the test waited for %s", what)
		case <-end:
			s.t.Fatalf("waited %v in vain for %s", deadline, what)
		}
	}
}

// daemon is the process of a site.
type daemon struct {
	program string
	dir     string
	addr    string
	args    []string
	log     *lockedBuffer

	mu       sync.Mutex
	env      []string
	cmd      *exec.Cmd
	done     chan struct{} // closed when the process has ended and is not started again
	reviving bool
}

// revive tells whether the process is started again when it was killed by SIGKILL.
func (d *daemon) revive(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reviving = on
}

// launch starts the process.
func (d *daemon) launch(env []string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.env, d.done = env, make(chan struct{})
	return d.spawn(d.done)
}

// spawn starts the process once; the caller holds mu.
func (d *daemon) spawn(done chan struct{}) error {
	cmd := exec.Command(d.program, append([]string{"dev", "--state", d.dir, "--listen", d.addr}, d.args...)...)
	cmd.Env = append(os.Environ(), d.env...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	cmd.WaitDelay = 5 * time.Second // what a killed dev started may hold its output open
	if err := cmd.Start(); err != nil {
		return err
	}
	d.cmd = cmd
	go func() {
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.reviving && how(cmd).Signal() == syscall.SIGKILL && d.spawn(done) == nil {
			return
		}
		close(done)
	}()
	return nil
}

// signal sends a signal and waits for the end of the process. ok tells whether it came within a minute.
func (d *daemon) signal(sig syscall.Signal) (status syscall.WaitStatus, ok bool) {
	d.mu.Lock()
	d.reviving = false
	cmd, done := d.cmd, d.done
	d.mu.Unlock()
	_ = cmd.Process.Signal(sig)
	select {
	case <-done:
		return how(cmd), true
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-done
		return how(cmd), false
	}
}

// how is the way a process ended.
func how(cmd *exec.Cmd) syscall.WaitStatus {
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status
}

func (d *daemon) started() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd != nil
}

// pid is the process's ID.
func (d *daemon) pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.Process.Pid
}

// over is closed when the process has ended for good.
func (d *daemon) over() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// ended tells whether the process has ended for good.
func (d *daemon) ended() bool {
	select {
	case <-d.over():
		return true
	default:
		return false
	}
}

// answer is what one command gave.
type answer struct {
	out, err string
	code     int
}

// command is one that runs.
type command struct {
	cmd      *exec.Cmd
	out, err *lockedBuffer
	done     chan struct{}
}

// startCommand starts a command with this added to its environment.
func startCommand(t *testing.T, cmd *exec.Cmd, env ...string) *command {
	t.Helper()
	c := &command{cmd: cmd, out: &lockedBuffer{}, err: &lockedBuffer{}, done: make(chan struct{})}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = c.out, c.err
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(c.done)
	}()
	return c
}

// wait waits for the command's end.
func (c *command) wait() answer {
	<-c.done
	return answer{out: c.out.String(), err: c.err.String(), code: c.cmd.ProcessState.ExitCode()}
}

// program returns the path of a built program, and skips the test where it can't run.
func program(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("NEARMETAL_BIN_DIR")
	if dir == "" {
		needs.Missing(t, "NEARMETAL_BIN_DIR does not name a folder with built programs (make e2e sets it)")
	}
	needs.Root(t, "makes namespaces, cgroups and networks")
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run make e2e", err)
	}
	return path
}

// freeAddress returns a loopback address whose port was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// lockedBuffer is a buffer that a process writes while the test reads.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is what was written so far.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
