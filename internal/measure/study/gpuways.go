package study

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/gpu"
)

// kernelsProgram runs the kernels, in the folder with the programs of remote GPUs.
const kernelsProgram = "nearmetal-gpu-kernels"

// serverPatience bounds how long a server may take until it listens.
const serverPatience = 30 * time.Second

// gpuWays are the ways to this machine's GPU, and that to the GPU of a member.
type gpuWays struct {
	study GPU
	dir   string
	// memoryAt and tcpAt are where the server listens; the server ends with this process.
	memoryAt, tcpAt string
	server          *exec.Cmd
	ended           chan struct{}
	// inMember is where the member has its server.
	inMember string
}

// openWays starts a server on this machine, and makes sure that programs which call it have no other device.
func (s GPU) openWays(ctx context.Context) (*gpuWays, error) {
	programs, err := filepath.Abs(s.Programs)
	if err != nil {
		return nil, err
	}
	s.Programs = programs
	for _, name := range []string{kernelsProgram, gpu.ServerProgram} {
		if _, err := os.Stat(filepath.Join(programs, name)); err != nil {
			return nil, fmt.Errorf("%s is not there; run: make gpuremote, and give the folder by --gpu-programs", filepath.Join(programs, name))
		}
	}
	dir, err := os.MkdirTemp("", "nearmetal-gpu-")
	if err != nil {
		return nil, err
	}
	w := &gpuWays{study: s, dir: dir, memoryAt: "unix:" + filepath.Join(dir, "server"), ended: make(chan struct{})}
	err = w.startServer(ctx)
	if err == nil {
		err = w.checkHidden(ctx)
	}
	if err == nil && s.InMember != nil {
		err = w.findServer(ctx)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *gpuWays) path(name string) string { return filepath.Join(w.dir, name) }

func (w *gpuWays) startServer(ctx context.Context) error {
	token := make([]byte, 32)
	if _, err := rand.Read(token); err != nil {
		return err
	}
	// The only OpenCL driver that programs find is the remote one: the loader takes those whose names are in files of a folder.
	err := errors.Join(
		os.WriteFile(w.path("token"), []byte(hex.EncodeToString(token)+"\n"), 0o600),
		os.Mkdir(w.path("vendors"), 0o700),
		os.WriteFile(w.path("vendors/nearmetal.icd"), []byte(filepath.Join(w.study.Programs, openCLDriver)+"\n"), 0o600),
	)
	if err != nil {
		return err
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.tcpAt = "tcp:" + free.Addr().String()
	if err := free.Close(); err != nil {
		return err
	}
	log, err := os.Create(w.path("log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	w.server = exec.Command(filepath.Join(w.study.Programs, gpu.ServerProgram), "--token-file", w.path("token"), "--listen", w.memoryAt, "--listen", w.tcpAt)
	w.server.Env, w.server.Stdout, w.server.Stderr = ownDriver(), log, log
	w.server.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := w.keepServer(); err != nil {
		w.server = nil
		return fmt.Errorf("starting a GPU server: %w", err)
	}
	return w.awaitServer(ctx)
}

// keepServer starts the server. The kernel ends it with the thread that starts it (prctl(2), PR_SET_PDEATHSIG), so that thread waits for it and does
// nothing else.
func (w *gpuWays) keepServer() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := w.server.Start()
		started <- err
		if err == nil {
			_ = w.server.Wait()
			close(w.ended)
		}
	}()
	return <-started
}

// awaitServer returns once the server listens at both addresses.
func (w *gpuWays) awaitServer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverPatience)
	defer cancel()
	for {
		err := errors.Join(dial(ctx, w.memoryAt), dial(ctx, w.tcpAt))
		if err == nil {
			return nil
		}
		select {
		case <-w.ended:
			said, _ := os.ReadFile(w.path("log"))
			return fmt.Errorf("the GPU server has ended: %s", lastLines(string(said)))
		case <-ctx.Done():
			return fmt.Errorf("the GPU server does not listen: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// dial connects to unix:PATH or tcp:HOST:PORT, and hangs up.
func dial(ctx context.Context, at string) error {
	kind, address, _ := strings.Cut(at, ":")
	conn, err := (&net.Dialer{}).DialContext(ctx, kind, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// close ends the server, and removes the files of the study's world.
func (w *gpuWays) close() {
	if w.server != nil {
		_ = w.server.Process.Kill() // its clients have ended, and it keeps nothing
		<-w.ended
	}
	_ = os.RemoveAll(w.dir)
}

// openCLDriver is the remote driver among the programs of remote GPUs.
const openCLDriver = "libnearmetal_opencl.so"

// ownDriver is the environment of programs that use the machine's own driver.
func ownDriver() []string {
	var kept []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "NEARMETAL_GPU_") && !strings.HasPrefix(e, "OCL_ICD_VENDORS=") {
			kept = append(kept, e)
		}
	}
	return kept
}

// byServer is the environment of programs that use the GPU by a server. Nothing leads them to the machine's own driver.
func (w *gpuWays) byServer(at string) []string {
	programs := w.study.Programs
	return append(ownDriver(), "NEARMETAL_GPU_SERVER="+at, "NEARMETAL_GPU_TOKEN_FILE="+w.path("token"), "OCL_ICD_VENDORS="+w.path("vendors"), "LD_LIBRARY_PATH="+programs)
}

// checkHidden makes sure that what is to be measured by a server is not the machine's own driver: without the server there is no device.
func (w *gpuWays) checkHidden(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(w.study.Programs, kernelsProgram), "--api", w.study.API, "--size", "test", "--kernel", "nn", "--runs", "1")
	cmd.Env = w.byServer("unix:" + w.path("nobody"))
	if err := cmd.Run(); err == nil {
		return errors.New("a program that is to use the GPU by a server found one without: the machine's own driver can't be hidden from it, so there is nothing to compare")
	}
	return ctx.Err()
}

// findServer asks the member for its GPU server.
func (w *gpuWays) findServer(ctx context.Context) error {
	said, err := w.study.InMember(ctx, "cat /etc/nearmetal/gpu-server")
	if err != nil {
		return fmt.Errorf("%s has no remote GPU: %w; create its cluster with --gpu 1:remote:SIZE", w.study.Member, err)
	}
	w.inMember = strings.TrimSpace(string(said))
	if !strings.HasPrefix(w.inMember, "tcp:") {
		return fmt.Errorf("%s has its GPU by %s, and not by the network; name a member on another node", w.study.Member, w.inMember)
	}
	return nil
}

// run runs a kernel once by a way.
func (w *gpuWays) run(ctx context.Context, side, kernel string) (gpuRun, error) {
	run := gpuRun{Side: side, Kernel: kernel, StartedAt: time.Now()}
	args := []string{"--api", w.study.API, "--size", w.study.Size, "--kernel", kernel, "--runs", "1"}
	var data []byte
	before, err := w.cpuSeconds()
	if err != nil {
		return run, err
	}
	var own float64
	if side == network {
		run.ServerAddress = w.inMember
		data, err = w.study.InMember(ctx, memberScript(args))
	} else {
		data, own, err = w.runHere(ctx, side, args)
	}
	if err != nil {
		return run, err
	}
	run.Seconds = time.Since(run.StartedAt).Seconds()
	after, err := w.cpuSeconds()
	if err != nil {
		return run, err
	}
	run.OthersCPUSeconds = max(0, after-before-own)
	return run, run.read(data)
}

// memberScript runs the kernels in a member, and prints what they measured and nothing else.
func memberScript(args []string) string {
	return "f=$(mktemp) && /run/nearmetal-gpu/lib/" + kernelsProgram + " " + strings.Join(args, " ") + ` --json "$f" >/dev/null && cat "$f"; s=$?; rm -f "$f"; exit $s`
}

// runHere runs the kernels on this machine, and returns what they measured and their own seconds of processors.
func (w *gpuWays) runHere(ctx context.Context, side string, args []string) ([]byte, float64, error) {
	file := w.path("run.json")
	cmd := exec.CommandContext(ctx, filepath.Join(w.study.Programs, kernelsProgram), append(args, "--json", file)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	switch side {
	case local:
		cmd.Env = ownDriver()
	case memory:
		cmd.Env = w.byServer(w.memoryAt)
	default:
		cmd.Env = w.byServer(w.tcpAt)
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
		return nil, 0, fmt.Errorf("%w: %s", err, lastLines(said.String()))
	}
	data, err := os.ReadFile(file)
	return data, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), errors.Join(err, os.Remove(file))
}

// cpuSeconds are those that all processes of this machine have computed, without the server.
func (w *gpuWays) cpuSeconds() (float64, error) {
	all, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	server, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.server.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("the GPU server has ended: %w", err)
	}
	busy, err := busyTicks(string(all))
	if err != nil {
		return 0, err
	}
	own, err := processTicks(string(server))
	return float64(busy-own) / ticksPerSecond, err
}

// ticksPerSecond is the unit of times in /proc: USER_HZ, which is 100 on all architectures that Nearmetal runs on.
const ticksPerSecond = 100

// busyTicks are those of /proc/stat in which a processor was not idle (proc_stat(5): user, nice, system, irq, softirq, steal; guests are in user).
func busyTicks(text string) (int64, error) {
	var name string
	var user, nice, system, idle, waiting, irq, softirq, steal int64
	if n, err := fmt.Sscan(text, &name, &user, &nice, &system, &idle, &waiting, &irq, &softirq, &steal); n != 9 || name != "cpu" {
		return 0, fmt.Errorf("/proc/stat does not begin with the times of all processors: %w", err)
	}
	return user + nice + system + irq + softirq + steal, nil
}

// processTicks are those of a process and of its children that have ended (proc_pid_stat(5): utime, stime, cutime, cstime are the fields 14 to 17).
func processTicks(text string) (int64, error) {
	_, rest, found := strings.Cut(text[max(0, strings.LastIndex(text, ")")):], " ")
	fields := strings.Fields(rest)
	if !found || len(fields) < 15 {
		return 0, fmt.Errorf("%q says nothing of a process's times", text)
	}
	var sum int64
	for _, f := range fields[11:15] { // the third field is the first here
		var n int64
		if _, err := fmt.Sscan(f, &n); err != nil {
			return 0, fmt.Errorf("%q is no time of a process: %w", f, err)
		}
		sum += n
	}
	return sum, nil
}

// gpuProblem is what a run measured of one problem: nearmetal-gpu-kernels writes it (gpuremote/kernels/src/measure.rs, Run). Times are in seconds.
type gpuProblem struct {
	Problem string `json:"problem"`
	// SetupSeconds are until a context and its program are ready, WorkSeconds from the first allocation to the last free, CloseSeconds the end of all.
	SetupSeconds float64 `json:"setup_s"`
	WorkSeconds  float64 `json:"work_s"`
	CloseSeconds float64 `json:"close_s"`
	// Calls are those of the work.
	Calls []gpuCall `json:"work_calls"`
}

// gpuCall is all calls of one function of the API in a run.
type gpuCall struct {
	Name string `json:"name"`
	// Transfer is what the function copies: none, to_device, from_device or on_device.
	Transfer       string  `json:"transfer"`
	Count          int64   `json:"count"`
	TotalSeconds   float64 `json:"total_s"`
	LongestSeconds float64 `json:"longest_s"`
	Bytes          int64   `json:"bytes"`
}

// read reads what nearmetal-gpu-kernels wrote.
func (r *gpuRun) read(data []byte) error {
	var said struct {
		Machine struct {
			Processor  string `json:"processor"`
			Processors int    `json:"processors"`
			System     string `json:"system"`
		} `json:"machine"`
		Measurements []struct {
			Problem string       `json:"problem"`
			Device  string       `json:"device"`
			Runs    []gpuProblem `json:"runs"`
		} `json:"measurements"`
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return fmt.Errorf("%s wrote %.80q: %w", kernelsProgram, data, err)
	}
	r.Host = fmt.Sprintf("%s, %d processors, %s", said.Machine.Processor, said.Machine.Processors, said.Machine.System)
	for _, m := range said.Measurements {
		if len(m.Runs) != 1 || !(m.Runs[0].WorkSeconds > 0) || r.Device != "" && r.Device != m.Device {
			return fmt.Errorf("%s measured %d runs of %q on %s, and one of each problem on one device was asked for", kernelsProgram, len(m.Runs), m.Problem, m.Device)
		}
		p := m.Runs[0]
		p.Problem, r.Device = m.Problem, m.Device
		r.Problems = append(r.Problems, p)
	}
	if len(r.Problems) == 0 {
		return fmt.Errorf("%s measured nothing", kernelsProgram)
	}
	return nil
}
