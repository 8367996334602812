// Package ibsim starts simulated InfiniBand fabrics: the program ibsim with a generated topology, and programs that see the fabric as if they ran
// on one of its hosts, such as OpenSM and those of infiniband-diags.
//
// Several fabrics may run at once, beside others' on the same machine. Nothing is left of one after Close, and no process of it after this one was killed. It carries subnet management only:
// there is no data on it, no virtual port, and no M_Key. It is for `nearmetal dev` and for tests, and must never be used on hosts with
// InfiniBand adapters, which their programs would not see. Start with Start.
package ibsim

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// MostPrograms is how many programs may be attached to a fabric at once, its subnet managers included (ibsim 0.10).
const MostPrograms = 10

// startTime bounds the start of ibsim, and each command to it.
const startTime = 20 * time.Second

// Fabric is a simulated fabric that runs.
type Fabric struct {
	Topology
	dir     string
	name    string // of its sockets, which are in the abstract namespace
	preload string
	cmd     *exec.Cmd
	ended   <-chan struct{}
	in      io.WriteCloser

	mu      sync.Mutex // held during a command
	prompts chan string
}

// Start starts a fabric. Its files and those of its programs are in a new folder below dir; "" is the one for temporary files.
func Start(ctx context.Context, dir string, t Topology) (*Fabric, error) {
	preload, err := library()
	if err != nil {
		return nil, err
	}
	program, err := exec.LookPath("ibsim")
	if err != nil {
		return nil, errors.New("the program ibsim is not installed; install the package ibsim-utils")
	}
	if dir, err = os.MkdirTemp(dir, "ibsim"); err != nil {
		return nil, err
	}
	var random [8]byte
	_, _ = rand.Read(random[:])
	f := &Fabric{Topology: t, dir: dir, name: "nearmetal-" + hex.EncodeToString(random[:]), preload: preload, prompts: make(chan string, 1)}
	if err := f.start(ctx, program); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// library returns the path of the library that takes the place of the kernel's InfiniBand.
func library() (string, error) {
	found, err := filepath.Glob("/usr/lib/*/umad2sim/libumad2sim.so")
	if err != nil || len(found) == 0 {
		return "", errors.New("libumad2sim.so is not installed; install the package ibsim-utils")
	}
	return found[0], nil
}

func (f *Fabric) start(ctx context.Context, program string) error {
	net := filepath.Join(f.dir, "net")
	if err := os.WriteFile(net, []byte(f.Text()), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(program, "-s", net)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "IBSIM_SOCKNAME="+f.name)
	// Signals of a terminal are not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	if f.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if f.ended, err = startBound(cmd); err != nil {
		return fmt.Errorf("start ibsim: %w", err)
	}
	f.cmd = cmd
	go f.read(out)
	_, err = f.prompt(ctx)
	return err
}

// startBound starts a program that ends with this process, and waits for its end. The kernel sends Pdeathsig when the thread ends that started the
// program (prctl(2)), so that thread waits for it, and does nothing else.
func startBound(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	return done, <-started
}

// read passes on what ibsim writes, up to each of its prompts.
func (f *Fabric) read(out io.Reader) {
	defer close(f.prompts)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<22)
	lines.Split(func(data []byte, end bool) (int, []byte, error) {
		if i := bytes.Index(data, []byte("sim> ")); i >= 0 {
			return i + 5, data[:i], nil
		}
		return 0, nil, nil
	})
	for lines.Scan() {
		f.prompts <- lines.Text()
	}
	_, _ = io.Copy(io.Discard, out)
}

// prompt returns what ibsim wrote up to its next prompt.
func (f *Fabric) prompt(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	select {
	case text, running := <-f.prompts:
		if !running {
			return "", errors.New("ibsim has ended")
		}
		return text, nil
	case <-ctx.Done():
		return "", fmt.Errorf("ibsim does not answer: %w", ctx.Err())
	}
}

// Do gives ibsim a command of its console and returns what it answers.
func (f *Fabric) Do(ctx context.Context, format string, args ...any) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := fmt.Fprintf(f.in, format+"\n", args...); err != nil {
		return "", err
	}
	text, err := f.prompt(ctx)
	if err == nil && strings.Contains(text, "# nodeid") {
		err = errors.New(strings.TrimSpace(text))
	}
	return text, err
}

// Unlink pulls a host's cable. Relink plugs it in again.
func (f *Fabric) Unlink(ctx context.Context, host string) error {
	_, err := f.Do(ctx, "Unlink %q[1]", host)
	return err
}

// Relink plugs a host's cable in again.
func (f *Fabric) Relink(ctx context.Context, host string) error {
	_, err := f.Do(ctx, "ReLink %q[1]", host)
	return err
}

// Command returns a program that sees the fabric from a host, by its name. It works in a folder of the fabric's own, so paths in args must be
// absolute.
func (f *Fabric) Command(ctx context.Context, host, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), f.Environment(host)...)
	return cmd
}

// Environment returns the environment variables, NAME=VALUE, that make a program see the fabric from a host. The program makes a folder sys-PID in
// its working directory.
func (f *Fabric) Environment(host string) []string {
	return []string{"LD_PRELOAD=" + f.preload, "SIM_HOST=" + host, "IBSIM_SOCKNAME=" + f.name}
}

// Dir returns the folder of the fabric's files, which Close removes.
func (f *Fabric) Dir() string { return f.dir }

// Close ends the fabric and removes its files. Its programs are to have ended.
func (f *Fabric) Close() error {
	if f.cmd != nil {
		_ = f.in.Close()
		_ = f.cmd.Process.Kill()
		<-f.ended
		for range f.prompts {
		}
	}
	return os.RemoveAll(f.dir)
}
