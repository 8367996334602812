// Package boot tests machines that boot over the network, from outside: the built program beside a virtual data centre of emulated
// machines, with firmware, loaders, kernels, BMCs and power protocols that others wrote.
//
// It needs root, and NEARMETAL_TESTBED=1 ("make test-testbed", or the quick part of "make test"); without it, tests skip and say so. The programs
// come from NEARMETAL_BIN_DIR. A test must never look inside the program, nor wait by the clock where it can wait for an event. Start with
// site.
package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// bootDeadline is how long a machine may take from off to ready here: emulated, two at once, on a busy machine.
	bootDeadline = 5 * time.Minute
	// buildDeadline is how long the build of an environment may take, its packages to be fetched first.
	buildDeadline = 15 * time.Minute
	// provisioningAddress is the server's on the data centre's provisioning network.
	provisioningAddress = "10.99.40.1/24"
)

// site is a "nearmetal dev" beside a virtual data centre.
type site struct {
	t        *testing.T
	dc       *vdc.DataCentre
	program  string
	dir      string
	listen   string
	link     string
	password string // a file with the BMCs' password
	args     []string

	mu  sync.Mutex
	log bytes.Buffer
	cmd *exec.Cmd
}

// newSite brings up a data centre and a server with one builder node beside it. All of it goes with the test.
func newSite(t *testing.T, name string, machines []vdc.MachineConfig, args ...string) *site {
	t.Helper()
	if os.Getenv("NEARMETAL_TESTBED") == "" {
		t.Skip("boots emulated machines for minutes: set NEARMETAL_TESTBED=1, or run: make test-testbed")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes namespaces and emulated machines")
	}
	dir, err := os.MkdirTemp("", "boot")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &site{
		t: t, program: filepath.Join(os.Getenv("NEARMETAL_BIN_DIR"), "nearmetal"), dir: dir, listen: freeAddress(t), link: name + "prov",
		password: filepath.Join(dir, "bmc-password"), args: args,
	}
	s.dc, err = vdc.Start(context.WithoutCancel(t.Context()), vdc.Config{
		Name: name, Machines: machines, ProvisioningLink: s.link, BMCLink: name + "bmc", BMCNetwork: netip.MustParsePrefix("10.98.40.0/24"),
	})
	must(t, err)
	t.Cleanup(func() {
		if err := s.dc.Close(); err != nil {
			t.Error(err)
		}
	})
	link, err := netlink.LinkByName(s.link)
	must(t, err)
	address, err := netlink.ParseAddr(provisioningAddress)
	must(t, err)
	must(t, netlink.AddrAdd(link, address))
	must(t, netlink.LinkSetUp(link))
	must(t, os.WriteFile(s.password, []byte(s.dc.Machines()[0].Password), 0o600))
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("the server said:\n%s", tail(s.log.String(), 60))
		}
	})
	s.start()
	return s
}

// start starts the server, also again after stop or kill.
func (s *site) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.program, append([]string{"dev", "--state", s.dir, "--listen", s.listen, "--provision", s.link}, s.args...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	must(s.t, s.cmd.Start())
	s.until(time.Minute, "the builder node to be ready", func() bool {
		out, err := s.try("node", "list", "-o", "json")
		return err == nil && strings.Contains(out, `"phase": "ready"`)
	})
}

// Write takes what the server says.
func (s *site) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// stop ends the server politely, kill at once; its node's agent goes on after kill.
func (s *site) stop() { s.end(syscall.SIGTERM) }
func (s *site) kill() { s.end(syscall.SIGKILL) }

func (s *site) end(signal syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(signal)
	_ = s.cmd.Wait()
	s.cmd = nil
}

// try runs the command line and returns what it printed.
func (s *site) try(args ...string) (string, error) {
	cmd := exec.Command(s.program, args...)
	cmd.Env = append(os.Environ(), "NEARMETAL_STATE="+s.dir)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("nearmetal %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return out.String(), nil
}

// run is try that must succeed.
func (s *site) run(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// until waits for a condition that nothing tells of.
func (s *site) until(limit time.Duration, what string, condition func() bool) {
	s.t.Helper()
	deadline, tick := time.After(limit), time.NewTicker(200*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("waited %s for %s", limit, what)
		}
	}
}

// enroll takes a machine of the data centre in, by this kind of power control.
func (s *site) enroll(name string, kind api.PowerKind, more ...string) {
	s.t.Helper()
	m := s.machine(name)
	args := []string{"node", "enroll", name, "--mac", m.MAC, "--console", m.Console, "--power", string(kind), "--no-inspect"}
	switch kind {
	case api.PowerRedfish:
		args = append(args, "--bmc", m.RedfishURL, "--bmc-user", m.User, "--bmc-password-file", s.password)
	case api.PowerIPMI:
		args = append(args, "--bmc", m.IPMI, "--bmc-user", m.User, "--bmc-password-file", s.password)
	}
	s.run(append(args, more...)...)
}

// machine is a machine of the data centre.
func (s *site) machine(name string) vdc.Machine {
	s.t.Helper()
	m, err := s.dc.Machine(name)
	must(s.t, err)
	return m
}

// node is a node as the API shows it.
func (s *site) node(name string) api.Node {
	s.t.Helper()
	var n api.Node
	must(s.t, json.Unmarshal([]byte(s.run("node", "show", name, "-o", "json")), &n))
	return n
}

// build builds a shipped environment.
func (s *site) build(name string) {
	s.t.Helper()
	began := time.Now()
	s.run("env", "build", name)
	s.t.Logf("environment %s was built in %.0f s", name, time.Since(began).Seconds())
}

// waitFor waits until a machine is in a phase, and fails at once when it has failed instead.
func (s *site) waitFor(name string, phase api.MachinePhase, limit time.Duration) api.Node {
	s.t.Helper()
	var n api.Node
	deadline, tick := time.After(limit), time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		n = s.node(name)
		if n.Machine.Record.Phase == phase {
			return n
		}
		if n.Machine.Record.Phase == api.MachineFailed {
			s.t.Fatalf("machine %s failed: %s\nits console:\n%s", name, n.Machine.Record.Message, s.console(name))
		}
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("machine %s is %s, not %s, after %s; stages %v\nits console:\n%s",
				name, n.Machine.Record.Phase, phase, limit, n.Machine.Record.Boot, s.console(name))
		}
	}
}

// console is the end of what a machine's serial console printed.
func (s *site) console(name string) string {
	text, err := os.ReadFile(s.machine(name).ConsoleLog)
	if err != nil {
		return err.Error()
	}
	return tail(strings.ReplaceAll(string(text), "\r", ""), 40)
}

func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freeAddress is a loopback address that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	must(t, errors.Join(l.Close()))
	return address
}
