package measure

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The MPI programs. They are compiled on the machine that measures, so that they fit the MPI library installed there; the
// same file then runs on every side.
var (
	//go:embed mpi/hello.c
	helloSource []byte
	//go:embed mpi/pingpong.c
	pingPongSource []byte
	//go:embed mpi/steps.c
	stepsSource []byte
	//go:embed mpi/stream.c
	streamSource []byte
)

// Names of the ping-pong's metrics in its output.
const (
	LatencyUS       = "latency_us"
	BandwidthMBPerS = "bandwidth_mb_per_s"
)

// PingPongMetrics are what the ping-pong measures.
func PingPongMetrics() []Metric {
	return []Metric{
		{Name: LatencyUS, Title: "Latency", Unit: "µs"},
		{Name: BandwidthMBPerS, Title: "Bandwidth", Unit: "MB/s", HigherIsBetter: true, DerivedFrom: LatencyUS},
	}
}

// ErrNoCompiler: mpicc is not installed.
var ErrNoCompiler = errors.New("mpicc, which compiles the measured MPI programs, is not installed; run: apt-get install gcc libopenmpi-dev")

// Programs are the compiled MPI programs on this machine.
type Programs struct {
	Hello    string
	PingPong string
	// Steps computes in steps and goes on where an earlier attempt in the same directory stopped; it measures nothing.
	Steps string
	// Stream measures the bandwidth of the memory.
	Stream string
}

// BuildPrograms compiles the MPI programs into dir with mpicc; ErrNoCompiler when there is none.
func BuildPrograms(ctx context.Context, dir string) (Programs, error) {
	mpicc, err := exec.LookPath("mpicc")
	if err != nil {
		return Programs{}, ErrNoCompiler
	}
	build := func(name string, source []byte) (string, error) {
		in, out := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
		if err := os.WriteFile(in, source, 0o644); err != nil {
			return "", fmt.Errorf("the source of %s can't be written: %w", name, err)
		}
		if text, err := exec.CommandContext(ctx, mpicc, "-O2", "-o", out, in, "-lm").CombinedOutput(); err != nil {
			return "", fmt.Errorf("mpicc can't compile %s: %w: %s", in, err, strings.TrimSpace(string(text)))
		}
		return out, os.Remove(in)
	}
	var p Programs
	if p.Hello, err = build("hello", helloSource); err != nil {
		return Programs{}, err
	}
	if p.PingPong, err = build("pingpong", pingPongSource); err != nil {
		return Programs{}, err
	}
	if p.Steps, err = build("steps", stepsSource); err != nil {
		return Programs{}, err
	}
	if p.Stream, err = build("stream", streamSource); err != nil {
		return Programs{}, err
	}
	return p, nil
}

// Transport is what carries the messages between two ranks.
type Transport string

// The transports: those of Open MPI's byte transfer layer (ompi_info --param btl all), and UCX.
const (
	// TransportTCP goes through the kernel's TCP stack, over loopback on a host and over the network between members.
	TransportTCP Transport = "tcp"
	// TransportSharedMemory works only between ranks of one host: what one node can do without a network.
	TransportSharedMemory Transport = "vader"
	// TransportUCX leaves the choice to UCX, which on one host takes shared memory, as it does between members of one node.
	TransportUCX Transport = "ucx"
	// TransportOwn is what MPI chooses where it runs, of all that it finds there.
	TransportOwn Transport = ""
)

// Environment returns the settings that make Open MPI use this transport and no other: a run that can't fails, instead of
// silently measuring something else. Interface, when not empty, is the one TCP may use. MPI then says what it uses, too (FindCarrier).
func (t Transport) Environment(networkInterface string) map[string]string {
	env := map[string]string{"OMPI_MCA_btl_base_verbose": "5", "UCX_LOG_LEVEL": "info"}
	switch t {
	case TransportOwn:
		return env
	case TransportUCX: // also where it finds no network adapter, without which Open MPI leaves it alone
		env["OMPI_MCA_pml"], env["OMPI_MCA_opal_common_ucx_tls"], env["OMPI_MCA_opal_common_ucx_devices"] = "ucx", "any", "any"
		return env
	}
	env["OMPI_MCA_pml"], env["OMPI_MCA_btl"] = "ob1", string(t)+",self"
	if t == TransportTCP && networkInterface != "" {
		env["OMPI_MCA_btl_tcp_if_include"] = networkInterface
	}
	return env
}

// mpirunGrace is how long mpirun is given to end its ranks and to remove what they left.
const mpirunGrace = 10 * time.Second

// HostCommand returns the command that runs a program on the bare host with one rank on each of the CPUs, the same that the
// members of a cluster hold. mpirun binds nothing by itself, taskset does.
func HostCommand(ctx context.Context, cpus []int, t Transport, scratch, program string, args ...string) *exec.Cmd {
	argv := []string{"--bind-to", "none"}
	for i, cpu := range cpus {
		if i > 0 {
			argv = append(argv, ":")
		}
		argv = append(argv, "-np", "1", "taskset", "-c", strconv.Itoa(cpu), program)
		argv = append(argv, args...)
	}
	cmd := exec.CommandContext(ctx, "mpirun", argv...)
	// Killed outright, mpirun would leave its ranks and their segments in /dev/shm.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = mpirunGrace
	// mpirun refuses root unless told twice; its session files go to the scratch directory, which the caller removes.
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "TMPDIR="+scratch)
	for name, value := range t.Environment("lo") {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}
