package powertest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

//go:embed testdata
var testdata embed.FS

// User and Password are those of all peers.
const (
	User     = "admin"
	Password = "secret"
)

// Machines are machines of libvirt's test driver behind sushy-tools and virtualbmc: what one is told, the other knows.
type Machines struct {
	// Redfish is the service's URL; IPMI the BMCs' addresses, by name.
	Redfish string
	IPMI    map[string]string
	// Systems are the machines' UUIDs, by name.
	Systems map[string]string
}

// StartMachines starts machines that are off. It skips the test if python3-libvirt is not installed or the BMCs' software can't be had.
func StartMachines(t *testing.T, names ...string) Machines {
	t.Helper()
	python := environment(t)
	dir := t.TempDir()
	m := Machines{IPMI: map[string]string{}, Systems: map[string]string{}}
	address := FreeTCP(t)
	m.Redfish = "http://" + address
	args := []string{unpacked(t, dir, "machines.py"), dir, address}
	for i, name := range names {
		m.IPMI[name] = FreeUDP(t)
		m.Systems[name] = fmt.Sprintf("6695eb01-f6a4-8304-79aa-97f2502e%04x", i)
		args = append(args, name+"="+m.IPMI[name])
	}
	run(t, "ready", exec.Command(python, args...))
	return m
}

// Names are names for as many machines as the suite asks for.
func Names() []string {
	return []string{"m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"}
}

// environment is the Python of the testbed's emulated BMCs, made on first use.
func environment(t *testing.T) string {
	t.Helper()
	if err := exec.Command("/usr/bin/python3", "-c", "import libvirt, venv, ensurepip").Run(); err != nil {
		needs.Missing(t, "python3-libvirt or python3-venv is not installed (make setup installs them)")
	}
	peers := filepath.Join(moduleRoot(t), "testbed/vdc/peers")
	requirements := filepath.Join(peers, "requirements.txt")
	text, err := os.ReadFile(requirements)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	venv := filepath.Join("/var/cache/nearmetal/testbed", "bmc-"+hex.EncodeToString(sum[:6])) // the virtual data centre's
	if output, err := exec.Command("sh", filepath.Join(peers, "install.sh"), requirements, venv).CombinedOutput(); err != nil {
		needs.Missing(t, "can't install sushy-tools and virtualbmc from PyPI: %v\n%s", err, output)
	}
	return filepath.Join(venv, "bin", "python")
}

// moduleRoot is the root of the module's source, in which tests run. Binaries that are built with -trimpath do not know it.
func moduleRoot(t *testing.T) string {
	t.Helper()
	folder, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := os.Stat(filepath.Join(folder, "go.mod")); err != nil; _, err = os.Stat(filepath.Join(folder, "go.mod")) {
		if folder == filepath.Dir(folder) {
			t.Fatal("this test is not run in the module's source")
		}
		folder = filepath.Dir(folder)
	}
	return folder
}

// Sim is OpenIPMI's BMC simulator: one machine whose power and boot device are files, with a serial console.
type Sim struct {
	// Address is the BMC's.
	Address string
	// Console is the machine's side of its serial line.
	Console net.Listener
	// KCS is where the machine's side of its system interface connects to.
	KCS     string
	host    net.Conn
	answers *bufio.Reader
	dir     string
	input   io.Writer
}

// StartSim starts a machine that is off. commands are more of what its BMC is to have, as of ipmi_sim_cmd(5). The test needs the package openipmi.
func StartSim(t *testing.T, commands ...string) *Sim {
	t.Helper()
	return startSim(t, "", commands)
}

// Host is how a simulator's BMC treats what it is told about its system interface.
type Host string

// The ways.
const (
	HostClosable Host = ""      // it has a firmware firewall, which is emulated
	HostFixed    Host = "fixed" // it has none
	HostDeaf     Host = "deaf"  // it takes what it is told of that, and new passwords, and does not follow
)

// StartSimWithHost starts a machine with a system interface. The test needs a C compiler and the package libopenipmi-dev, too.
func StartSimWithHost(t *testing.T, host Host) *Sim {
	t.Helper()
	source := filepath.Join(moduleRoot(t), "testbed/vdc/inner/hostinterface.c") // the virtual data centre's
	return startSim(t, fmt.Sprintf("loadlib %q %q\n", module(t, source), host), nil)
}

// StartSimWithPower starts a machine whose BMC reads its power by DCMI: so many watts, or none now. commands are as of StartSim. The test needs what
// StartSimWithHost does.
func StartSimWithPower(t *testing.T, watts int, active bool, commands ...string) *Sim {
	t.Helper()
	state := 0
	if active {
		state = 1
	}
	source := unpacked(t, t.TempDir(), "dcmi.c")
	return startSim(t, fmt.Sprintf("loadlib %q \"%d %d\"\n", module(t, source), watts, state), commands)
}

// module makes a module of ipmi_sim from its source.
func module(t *testing.T, source string) string {
	t.Helper()
	compiler := needs.Program(t, "cc")
	if _, err := os.Stat("/usr/include/OpenIPMI/mcserv.h"); err != nil {
		needs.Missing(t, "libopenipmi-dev is not installed (make setup installs it)")
	}
	library := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c")+".so")
	if output, err := exec.CommandContext(t.Context(), compiler, "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("make the module of ipmi_sim: %v\n%s", err, output)
	}
	return library
}

func startSim(t *testing.T, more string, commands []string) *Sim {
	t.Helper()
	program := needs.Program(t, "ipmi_sim")
	s := &Sim{Address: FreeUDP(t), KCS: FreeTCP(t), dir: t.TempDir()}
	var err error
	if s.Console, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Console.Close() })
	script := unpacked(t, s.dir, "chassis.sh")
	emulated := unpacked(t, s.dir, "sim.emu")
	if len(commands) > 0 {
		text, err := os.ReadFile(emulated)
		if err != nil {
			t.Fatal(err)
		}
		enable := "mc_enable 0x20\n"
		all := strings.Replace(string(text), enable, strings.Join(commands, "\n")+"\n"+enable, 1)
		if err := os.WriteFile(emulated, []byte(all), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := testdata.ReadFile("testdata/sim.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("@ADDRESS@", strings.Replace(s.Address, ":", " ", 1), "@CONSOLE@", port(s.Console.Addr().String()), "@CHASSIS@", script+" "+s.dir,
		"@KCS@", strings.Replace(s.KCS, ":", " ", 1), "@USER@", User, "@PASSWORD@", Password).Replace(string(config)) + more
	file := filepath.Join(s.dir, "sim.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.input = run(t, "> ", exec.Command(program, "-c", file, "-f", emulated, "-s", s.dir))
	return s
}

// Tell gives the simulator a command, as of ipmi_sim_cmd(5), while it runs. It does not wait until the simulator has obeyed.
func (s *Sim) Tell(t *testing.T, command string) {
	t.Helper()
	if _, err := io.WriteString(s.input, command+"\n"); err != nil {
		t.Fatal(err)
	}
}

// Read is the machine's power ("0" or "1") or boot device ("pxe"), "" when it was never set.
func (s *Sim) Read(t *testing.T, what string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, what))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// IPMITool runs ipmitool, the independent reader, and returns what it printed.
func IPMITool(t *testing.T, address string, args ...string) string {
	t.Helper()
	program := needs.Program(t, "ipmitool")
	host, port, _ := net.SplitHostPort(address)
	all := append([]string{"-I", "lanplus", "-C", "3", "-H", host, "-p", port, "-U", User, "-P", Password}, args...)
	for attempt := 1; ; attempt++ {
		output, err := exec.CommandContext(t.Context(), program, all...).CombinedOutput()
		if err == nil {
			return string(output)
		}
		if attempt == 3 { // it gives up at an answer that comes twice, as on a busy machine
			t.Fatalf("ipmitool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}

func port(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// unpacked writes a file of testdata into dir.
func unpacked(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// run starts a peer, waits until it has printed what it prints when it is ready, and ends it with the test. It returns the peer's input.
func run(t *testing.T, ready string, cmd *exec.Cmd) io.Writer {
	t.Helper()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	input, err := cmd.StdinPipe() // stays open: one that reads commands ends with its input
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	seen := make(chan bool, 1)
	go func() {
		defer close(ended)
		reader := bufio.NewReader(output)
		var text strings.Builder
		for told := false; ; {
			b, err := reader.ReadByte()
			if err != nil {
				break
			}
			if text.WriteByte(b); !told && strings.HasSuffix(text.String(), ready) {
				told = true
				seen <- true
			}
		}
		_ = cmd.Wait()
		select {
		case seen <- false:
		default:
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	ctx, cancel := context.WithTimeout(t.Context(), peerStart)
	defer cancel()
	select {
	case ok := <-seen:
		if !ok {
			t.Fatalf("%s ended:\n%s", cmd.Path, complaints.String())
		}
	case <-ctx.Done():
		t.Fatalf("%s did not start in %s", cmd.Path, peerStart)
	}
	return input
}

// peerStart is how long a peer may take to start.
const peerStart = time.Minute
