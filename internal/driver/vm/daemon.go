package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"
)

// daemon is the node's own libvirtd, in a mount namespace of its own in which its files are this node's. It ends with this process; the machines
// do not, and the next daemon finds them by what is in its run directory. The thread that made the namespace stays in it: it makes the views.
type daemon struct {
	dir   string
	rpc   *libvirt.Libvirt
	jobs  chan func()
	ended chan struct{}
	pid   int
	last  lastWords
	close sync.Once
	// silent: it did not answer in time.
	silent atomic.Bool
}

// Directories of libvirt, which are kept in the state directory: run has the sockets and what libvirt knows of running machines.
var kept = []struct{ name, at string }{
	{"run", "/run/libvirt"}, {"lib", "/var/lib/libvirt"}, {"cache", "/var/cache/libvirt"}, {"log", "/var/log/libvirt"},
}

// daemonPatience is for libvirtd to answer. It asks QEMU for its abilities first, which takes seconds when it has never done so.
const daemonPatience = 40 * time.Second

// daemonGrace is how long libvirtd may take to end.
const daemonGrace = 10 * time.Second

// starts is how often libvirtd is started: one that was killed a moment ago may still hold its lock.
const starts = 3

// startDaemon starts libvirtd on the files in dir and returns once it answers.
func startDaemon(ctx context.Context, dir string, kvm bool) (d *daemon, err error) {
	for range starts {
		if d, err = tryDaemon(ctx, dir, kvm); !errors.Is(err, errEnded) {
			break
		}
	}
	return d, err
}

// errEnded: libvirtd ended instead of answering.
var errEnded = errors.New("libvirtd ended")

func tryDaemon(ctx context.Context, dir string, kvm bool) (*daemon, error) {
	program, err := exec.LookPath("libvirtd")
	if err != nil {
		return nil, errNoLibvirt
	}
	trees := make([]int, len(kept))
	for i, k := range kept {
		path := filepath.Join(dir, k.name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, fmt.Errorf("libvirt's directories: %w", err)
		}
		if trees[i], err = unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return nil, fmt.Errorf("libvirt's directory %s: %w", path, err)
		}
		defer func() { _ = unix.Close(trees[i]) }()
	}
	d := &daemon{dir: dir, jobs: make(chan func()), ended: make(chan struct{})}
	reaping, reaped := context.WithCancel(context.Background())
	if err := reapMachines(reaping); err != nil {
		reaped()
		return nil, err
	}
	started := make(chan error, 1)
	go onOwnThread(func() {
		defer reaped()
		defer close(d.ended)
		cmd, err := d.begin(program, trees, kvm)
		started <- err
		if err != nil {
			return
		}
		d.work(cmd)
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting libvirtd: %w", err)
	}
	if err := d.connect(ctx); err != nil {
		d.stop()
		return nil, fmt.Errorf("connecting to libvirtd: %w; it said: %s", err, d.said())
	}
	return d, nil
}

// onOwnThread runs f on a thread that may change its namespaces, as it ends with f. It is never the main thread.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // locked, so the runtime ends the thread
	}
	defer runtime.UnlockOSThread()
	moved := make(chan struct{})
	go onOwnThread(func() {
		close(moved)
		f()
	})
	<-moved
}

// begin makes the namespace and starts libvirtd in it. The parent death signal follows this thread, which stays until libvirtd has ended.
func (d *daemon) begin(program string, trees []int, kvm bool) (*exec.Cmd, error) {
	if err := enter(trees, hostUUID(d.dir), kvm); err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run/home", "TMPDIR=/run/home", "LC_ALL=C"}
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &d.last, &d.last
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
	// Machines inherit no copy of what is read of libvirtd's words.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d.pid = cmd.Process.Pid
	return cmd, nil
}

// work does jobs in the namespace until libvirtd has ended.
func (d *daemon) work(cmd *exec.Cmd) {
	waited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(waited)
	}()
	for {
		select {
		case job := <-d.jobs:
			job()
		case <-waited:
			return
		}
	}
}

// do does something on the thread in the namespace.
func (d *daemon) do(job func() error) error {
	result := make(chan error, 1)
	select {
	case d.jobs <- func() { result <- job() }:
		return <-result
	case <-d.ended:
		return errEnded
	}
}

// connect waits until libvirtd answers.
func (d *daemon) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonPatience)
	defer cancel()
	for {
		d.rpc = libvirt.NewWithDialer(socket(filepath.Join(d.dir, "run", "libvirt-sock")))
		err := d.rpc.ConnectToURI(libvirt.QEMUSystem)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-d.ended:
			return errEnded
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// answers reports whether libvirtd is there, by asking it.
func (d *daemon) answers(ctx context.Context) bool {
	return !d.silent.Load() && d.call(ctx, func(rpc *libvirt.Libvirt) error {
		_, err := rpc.ConnectGetLibVersion()
		return err
	}) == nil
}

// call asks libvirtd something, and gives up when ctx ends: a libvirtd that hangs must not hang the agent. It is started again then.
func (d *daemon) call(ctx context.Context, ask func(*libvirt.Libvirt) error) error {
	answered := make(chan error, 1)
	go func() { answered <- ask(d.rpc) }()
	select {
	case err := <-answered:
		return err
	case <-d.ended:
		return errEnded
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			d.silent.Store(true)
		}
		return fmt.Errorf("libvirtd has not answered: %w", ctx.Err())
	}
}

// domain does something with the machine of a member; its error is libvirt.IsNotFound's where there is none.
func (d *daemon) domain(ctx context.Context, id string, do func(*libvirt.Libvirt, libvirt.Domain) error) error {
	return d.call(ctx, func(rpc *libvirt.Libvirt) error {
		domain, err := rpc.DomainLookupByName(id)
		if err != nil {
			return err
		}
		return do(rpc, domain)
	})
}

// said is what libvirtd said last.
func (d *daemon) said() string { return d.last.String() }

// stop ends libvirtd and waits for that; machines go on.
func (d *daemon) stop() {
	d.close.Do(func() {
		if d.rpc != nil && d.rpc.IsConnected() {
			_ = d.rpc.Disconnect()
		}
		_ = unix.Kill(d.pid, unix.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(daemonGrace):
			_ = unix.Kill(d.pid, unix.SIGKILL)
			<-d.ended
		}
	})
}

// socket dials a Unix socket whose path may be longer than an address holds (107 bytes, unix(7)): through its open directory.
type socket string

// Dial implements go-libvirt's dialer.
func (s socket) Dial() (net.Conn, error) { return s.dial(context.Background()) }

func (s socket) dial(ctx context.Context) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(string(s)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(string(s))))
}

// hostUUID is the identity of the node towards other hosts of machines: libvirt refuses migration between hosts of one UUID.
func hostUUID(dir string) string {
	name, _ := os.Hostname()
	sum := sha256.Sum256([]byte(name + "\x00" + dir))
	var uuid [16]byte
	copy(uuid[:], sum[:])
	uuid[6], uuid[8] = uuid[6]&0x0f|0x80, uuid[8]&0x3f|0x80
	return uuidText(uuid)
}

// lastWords keeps the end of what is written to it.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

// mostWords bounds what is kept, mostSaid what of it is said.
const (
	mostWords = 4 << 10
	mostSaid  = 600
)

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	l.text = append([]byte(nil), l.text[max(0, len(l.text)-mostWords):]...)
	return len(p), nil
}

// String is on one line and fit for a terminal.
func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	words := strings.Fields(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(l.text), "?")))
	if len(words) == 0 {
		return "nothing"
	}
	line := strings.Join(words, " ")
	return strings.ToValidUTF8(line[max(0, len(line)-mostSaid):], "")
}
