package member

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/children"
)

const (
	// daemonSteady is after which time a daemon is taken for one that runs.
	daemonSteady = 3 * time.Second
	// daemonFirst and daemonLast are the pauses before a daemon that ended is started again; they grow from one to the other.
	daemonFirst = 100 * time.Millisecond
	daemonLast  = 5 * time.Second
	// daemonGrace is how long a daemon has between SIGTERM and SIGKILL.
	daemonGrace = 10 * time.Second
)

// rootEnv is the environment of what runs as the member's root.
var rootEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

// daemon is a program that stays in the foreground. It runs between start and stop, which are for one goroutine; when it ends before, it is
// started again. What it started lives on when it is stopped.
type daemon struct {
	args     []string
	children *children.Children
	log      *slog.Logger
	output   *os.File
	said     lastLine
	failure  atomic.Pointer[string]

	end   context.CancelFunc
	ended chan struct{}
}

func newDaemon(c *children.Children, log *slog.Logger, args ...string) (*daemon, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	d := &daemon{args: args, children: c, log: log, output: write}
	go d.said.copy(os.Stderr, read)
	return d, nil
}

func (d *daemon) name() string { return filepath.Base(d.args[0]) }

// start starts the daemon unless it runs. Its working directory is dir, which start closes in the end; nil is "/".
func (d *daemon) start(dir *os.File) {
	if d.end != nil {
		_ = dir.Close()
		return
	}
	ctx, end := context.WithCancel(context.Background())
	d.end, d.ended = end, make(chan struct{})
	d.failure.Store(nil)
	go func() {
		defer close(d.ended)
		defer func() { _ = dir.Close() }()
		d.loop(ctx, dir)
	}()
}

// stop returns when the daemon has ended.
func (d *daemon) stop() {
	if d.end == nil {
		return
	}
	d.end()
	<-d.ended
	d.end = nil
}

func (d *daemon) running() bool { return d.end != nil }

// problem says why the daemon does not stay, empty when it does.
func (d *daemon) problem() string {
	if failure := d.failure.Load(); failure != nil {
		return *failure
	}
	return ""
}

func (d *daemon) loop(ctx context.Context, dir *os.File) {
	for delay := daemonFirst; ctx.Err() == nil; delay = min(2*delay, daemonLast) {
		steady, err := d.once(ctx, workingDirectory(dir))
		if ctx.Err() != nil {
			return
		}
		if steady {
			delay = daemonFirst
		}
		failure := fmt.Sprintf("%s does not run: %v; its last output: %s", d.name(), err, d.said.get())
		d.failure.Store(&failure)
		d.log.Warn("a daemon ended; starting it again", "daemon", d.name(), "cause", err)
		pause(ctx, delay)
	}
}

// once runs the daemon until it ends or ctx does, and tells whether it ran for long.
func (d *daemon) once(ctx context.Context, dir string) (steady bool, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return false, err
	}
	defer func() { _ = null.Close() }()
	pid, ended, err := d.children.Start(d.args[0], d.args, &syscall.ProcAttr{
		Dir: dir, Env: rootEnv, Files: []uintptr{null.Fd(), d.output.Fd(), d.output.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return false, fmt.Errorf("%s: %w", d.args[0], err)
	}
	timer := time.NewTimer(daemonSteady)
	defer timer.Stop()
	for {
		select {
		case status := <-ended:
			return steady, fmt.Errorf("%s", howEnded(status))
		case <-timer.C:
			steady = true
			d.failure.Store(nil)
		case <-ctx.Done():
			_ = syscall.Kill(pid, syscall.SIGTERM)
			timer.Reset(daemonGrace)
			select {
			case <-ended:
			case <-timer.C:
				_ = syscall.Kill(pid, syscall.SIGKILL)
				<-ended
			}
			return steady, ctx.Err()
		}
	}
}

// workingDirectory is a path by which a child finds an open directory before it runs its program.
func workingDirectory(dir *os.File) string {
	if dir == nil {
		return "/"
	}
	return fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
}

// howEnded tells people how a process ended.
func howEnded(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "ended by signal " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}
