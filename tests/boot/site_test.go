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
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// bootDeadline is how long a machine may take from off to ready here: emulated, two at once, on a busy machine.
	bootDeadline = 8 * time.Minute
	// memory is enough for debian-mpi, its root and an MPI job.
	memoryMiB = 1536
)

// site is a "nearmetal dev" beside a virtual data centre.
type site struct {
	t       *testing.T
	dc      *vdc.DataCentre
	program string
	dir     string
	listen  string
	networks
	link     string // what the server provisions on
	password string // a file with the BMCs' password
	args     []string
	// switched: the data network is a managed switch.
	switched bool
	cmd      *exec.Cmd
	// released lets go of the thread that started cmd: it gets a signal when that thread ends.
	released chan struct{}

	mu      sync.Mutex
	log     bytes.Buffer
	powered []string // what the data centre said
}

// newSite brings up a data centre and a server with one builder node beside it, which has the images of template. All of it goes with the
// test.
func newSite(t *testing.T, machines []vdc.MachineConfig, args ...string) *site {
	t.Helper()
	return newSiteOf(t, "nearmetal", machines, args...)
}

// newSiteOf is newSite with another program of the same folder: one that was built to fail.
func newSiteOf(t *testing.T, program string, machines []vdc.MachineConfig, args ...string) *site {
	t.Helper()
	needTestbed(t)
	s := prepare(t, machines, args)
	s.program = filepath.Join(filepath.Dir(s.program), program)
	if _, err := os.Stat(s.program); err != nil {
		t.Fatalf("%v; run: make build-uncleaned", err)
	}
	s.connect()
	s.copyTemplate()
	s.start()
	return s
}

// needTestbed skips what boots machines unless it is asked for.
func needTestbed(t *testing.T) {
	t.Helper()
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
	needs.Root(t, "makes namespaces and emulated machines")
}

// prepare brings up the data centre only.
func prepare(t *testing.T, machines []vdc.MachineConfig, args []string) *site {
	t.Helper()
	return prepareData(t, machines, false, args)
}

// prepareData is prepare with a data network that is a managed switch, or a bridge.
func prepareData(t *testing.T, machines []vdc.MachineConfig, switched bool, args []string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "boot")
	must(t, err)
	must(t, os.Chmod(dir, 0o711)) // builds and members have users of their own
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	s := &site{
		t: t, program: program(t), dir: dir, listen: freeAddress(t), networks: claimNetworks(t), password: filepath.Join(dir, "bmc-password"), args: args, switched: switched,
	}
	s.link = s.name + "prov"
	s.stock(machines)
	t.Cleanup(func() { must(t, s.dc.Close()) })
	t.Cleanup(func() {
		s.stop()
		s.wantNoPassword(s.dc.Machines()[0].Password)
		if t.Failed() {
			t.Logf("the server said:\n%s", tail(s.said(), 80))
		}
	})
	must(t, os.WriteFile(s.password, []byte(s.dc.Machines()[0].Password), 0o600))
	return s
}

// stock brings up the data centre with these machines.
func (s *site) stock(machines []vdc.MachineConfig) {
	s.t.Helper()
	var err error
	s.dc, err = vdc.Start(context.WithoutCancel(s.t.Context()), vdc.Config{
		Name: s.name, Machines: machines, ProvisioningLink: s.name + "prov", BMCLink: s.name + "bmc", BMCNetwork: s.bmc, Switch: s.switched, Log: s.note,
	})
	must(s.t, err)
}

// note takes what the data centre says.
func (s *site) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.powered = append(s.powered, fmt.Sprintf(format, args...))
}

// powerUps is how often a machine was powered on, by its hypervisor.
func (s *site) powerUps(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	ups := 0
	for _, said := range s.powered {
		if said == name+" is on" {
			ups++
		}
	}
	return ups
}

func program(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("NEARMETAL_BIN_DIR")
	if dir == "" {
		t.Fatal("NEARMETAL_BIN_DIR doesn't tell where the built program is; run: make test-testbed")
	}
	return filepath.Join(dir, "nearmetal")
}

// start starts the server, also again after stop or kill, and waits for its builder node.
func (s *site) start() {
	s.t.Helper()
	s.launch()
	s.until(2*time.Minute, "the builder node to be ready", func() bool {
		out, err := s.try("node", "show", "n1", "-o", "json")
		var n api.Node
		return err == nil && json.Unmarshal([]byte(out), &n) == nil && n.Phase == api.NodeReady
	})
}

// launch is start without waiting. The server ends with this process.
func (s *site) launch() {
	s.t.Helper()
	args := []string{"dev", "--state", s.dir, "--listen", s.listen}
	if s.link != "" {
		args = append(args, "--provision", s.link)
	}
	s.cmd = exec.Command(s.program, append(args, s.args...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	started, released := make(chan error, 1), make(chan struct{})
	go func(cmd *exec.Cmd) {
		runtime.LockOSThread()
		started <- cmd.Start()
		<-released
	}(s.cmd)
	s.released = released
	must(s.t, <-started)
}

// during makes a subtest the one that problems are told to, until it ends.
func (s *site) during(t *testing.T) {
	before := s.t
	s.t = t
	t.Cleanup(func() { s.t = before })
}

// Write takes what the server says.
func (s *site) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

// said is all that the server said so far.
func (s *site) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
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
	close(s.released)
	s.cmd = nil
}

// command is the command line, as a user of this site has it.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Env = append(os.Environ(), "NEARMETAL_STATE="+s.dir)
	return cmd
}

// try runs the command line and returns what it printed.
func (s *site) try(args ...string) (string, error) {
	cmd := s.command(args...)
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

// refused runs what must fail, with these words in its message.
func (s *site) refused(words string, args ...string) {
	s.t.Helper()
	if out, err := s.try(args...); err == nil || !strings.Contains(err.Error(), words) {
		s.t.Errorf("nearmetal %s: %v %s; want it refused with %q", strings.Join(args, " "), err, out, words)
	}
}

// read decodes what the command line prints as JSON.
func read[T any](s *site, args ...string) (v T) {
	s.t.Helper()
	return parse[T](s, s.run(append(args, "-o", "json")...))
}

func parse[T any](s *site, out string) (v T) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return v
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
	args := append([]string{"node", "enroll", name, "--mac", m.MAC, "--console", m.Console, "--no-inspect"}, s.powerFlags(m, kind)...)
	s.run(append(args, more...)...)
	s.until(time.Minute, name+" to be enrolled", func() bool { return s.record(name).Phase != "" })
}

// powerFlags say how a machine's power is controlled.
func (s *site) powerFlags(m vdc.Machine, kind api.PowerKind) []string {
	args := []string{"--power", string(kind)}
	switch kind {
	case api.PowerRedfish:
		args = append(args, "--bmc", m.RedfishURL, "--bmc-user", m.User, "--bmc-password-file", s.password)
	case api.PowerIPMI:
		args = append(args, "--bmc", m.IPMI, "--bmc-user", m.User, "--bmc-password-file", s.password)
	}
	return args
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
	return read[api.Node](s, "node", "show", name)
}

// record is what the site knows of a machine, the zero record while that is nothing.
func (s *site) record(name string) api.MachineRecord {
	s.t.Helper()
	if m := s.node(name).Machine; m != nil {
		return m.Record
	}
	return api.MachineRecord{}
}

// build builds a shipped environment.
func (s *site) build(name string, more ...string) {
	s.t.Helper()
	began := time.Now()
	s.run(append([]string{"env", "build", name, "--quiet"}, more...)...)
	s.t.Logf("measured: environment %s was built in %.0f s", name, time.Since(began).Seconds())
}

// waitFor waits until a machine is in a phase, and fails at once when it has failed instead.
func (s *site) waitFor(name string, phase api.MachinePhase, limit time.Duration) api.Node {
	s.t.Helper()
	return s.waitUntil(name, string(phase), limit, func(r api.MachineRecord) bool { return r.Phase == phase })
}

// waitUntil waits until the record of a machine is as it should be.
func (s *site) waitUntil(name, what string, limit time.Duration, condition func(api.MachineRecord) bool) api.Node {
	s.t.Helper()
	deadline, tick := time.After(limit), time.NewTicker(200*time.Millisecond)
	defer tick.Stop()
	for {
		n := s.node(name)
		switch {
		case n.Machine != nil && condition(n.Machine.Record):
			return n
		case n.Machine != nil && n.Machine.Record.Phase == api.MachineFailed:
			s.t.Fatalf("machine %s failed: %s\nits console:\n%s", name, n.Machine.Record.Message, s.console(name))
		}
		select {
		case <-tick.C:
		case <-deadline:
			record, _ := json.Marshal(n.Machine)
			s.t.Fatalf("machine %s after %s, still not %s: %s\nits console:\n%s", name, limit, what, record, s.console(name))
		}
	}
}

// console is the end of what a machine's serial console printed.
func (s *site) console(name string) string { return tail(s.printed(name), 40) }

// printed is all that a machine's serial console printed.
func (s *site) printed(name string) string {
	text, err := os.ReadFile(s.machine(name).ConsoleLog)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(text), "\r", "")
}

// wantPower checks the power of a machine at its hypervisor.
func (s *site) wantPower(name string, want api.PowerState) {
	s.t.Helper()
	if state, err := s.dc.Power(name); err != nil || state != want {
		s.t.Errorf("the power of machine %s is %q at its hypervisor, want %q; %v", name, state, want, err)
	}
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
	defer l.Close()
	return l.Addr().String()
}
