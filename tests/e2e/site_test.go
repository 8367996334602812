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
)

// Programs in NEARMETAL_BIN_DIR.
const (
	ordinary   = "nearmetal"
	failpoints = "nearmetal-failpoints" // crashes where NEARMETAL_FAILPOINT says
)

// site is a running "nearmetal dev" with a state directory of its own.
type site struct {
	t       *testing.T
	program string
	dir     string
	addr    string
	args    []string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  *lockedBuffer
}

// program returns the path of a built program, and skips the test where it can't run.
func program(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("NEARMETAL_BIN_DIR")
	if dir == "" {
		t.Skip("NEARMETAL_BIN_DIR does not name a folder with built programs; run make e2e")
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: namespaces, cgroups and networks can't be made")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; run make e2e", err)
	}
	return path
}

// newSite returns a site that is not started yet. At the end of the test it is stopped, and its log is shown if the test failed.
func newSite(t *testing.T, name string, args ...string) *site {
	t.Helper()
	s := &site{t: t, program: program(t, name), dir: t.TempDir(), addr: freeAddress(t), args: args, log: &lockedBuffer{}}
	t.Cleanup(s.end)
	return s
}

// end deletes every cluster, stops the site and shows its log if the test failed. Members outlive a site that is only stopped.
func (s *site) end() {
	if s.cmd == nil {
		return
	}
	defer func() {
		s.stop()
		if s.t.Failed() {
			s.t.Logf("log of nearmetal dev:\n%s", s.log)
		}
	}()
	if s.ended() {
		s.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var clusters []api.Cluster
	s.eventually(time.Minute, "clusters to be gone", func() bool {
		clusters = nil
		a := s.run(ctx, "cluster", "list", "-o", "json")
		if a.code != 0 || json.Unmarshal([]byte(a.out), &clusters) != nil {
			return false
		}
		for _, c := range clusters {
			s.run(ctx, "cluster", "delete", c.Name)
		}
		return len(clusters) == 0
	})
}

// ended tells whether the site's process has ended.
func (s *site) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// startSite starts "nearmetal dev" with these further arguments and waits until this many nodes are ready.
func startSite(t *testing.T, nodes int, args ...string) *site {
	t.Helper()
	s := newSite(t, ordinary, args...)
	s.start()
	s.waitForNodes(nodes)
	return s
}

// start starts the process, also again after stop or kill; env is added to its environment.
func (s *site) start(env ...string) {
	s.t.Helper()
	s.cmd = exec.Command(s.program, append([]string{"dev", "--state", s.dir, "--listen", s.addr}, s.args...)...)
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
}

// stop ends the process politely and waits for it.
func (s *site) stop() { s.signal(syscall.SIGTERM) }

// kill ends the process as a crash would and waits for it.
func (s *site) kill() { s.signal(syscall.SIGKILL) }

func (s *site) signal(sig syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.done:
	case <-time.After(time.Minute):
		_ = s.cmd.Process.Kill()
		s.t.Errorf("nearmetal dev did not end within a minute of %v", sig)
	}
}

// answer is what one CLI command gave.
type answer struct {
	out, err string
	code     int
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
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env = append(os.Environ(), "NEARMETAL_ADDR="+s.addr, "NEARMETAL_TOKEN_FILE="+filepath.Join(s.dir, "token"))
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); cmd.ProcessState == nil {
		s.t.Fatalf("nearmetal %s: %v", strings.Join(args, " "), err)
	}
	return answer{out: out.String(), err: problems.String(), code: cmd.ProcessState.ExitCode()}
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
		case <-s.done:
			s.t.Fatalf("nearmetal dev ended while the test waited for %s", what)
		case <-end:
			s.t.Fatalf("waited %v in vain for %s", deadline, what)
		}
	}
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
