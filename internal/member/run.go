package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/children"
)

// run is a running job or check: a session, whose leader is the command.
type run struct {
	pid    int
	ended  <-chan syscall.WaitStatus
	output *os.File
	copied chan struct{}
}

// startRun starts the command and copies what it prints, standard output and error together, to out.
func startRun(c *children.Children, path string, args []string, attr *syscall.ProcAttr, out io.Writer) (*run, *launchError) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, &launchError{err.Error(), 0}
	}
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, &launchError{err.Error(), 0}
	}
	attr.Files = []uintptr{null.Fd(), write.Fd(), write.Fd()}
	pid, ended, err := c.Start(path, args, attr)
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return nil, &launchError{fmt.Sprintf("command %q can't be executed: %v", path, err), exitNotExecutable}
	}
	r := &run{pid: pid, ended: ended, output: read, copied: make(chan struct{})}
	go func() {
		defer close(r.copied)
		buffer := make([]byte, 64<<10)
		for {
			n, err := read.Read(buffer)
			_, _ = out.Write(buffer[:n])
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					r.drain(buffer, out)
				}
				return
			}
		}
	}()
	return r, nil
}

// drain copies what the pipe holds and does not wait for more: processes that left the session may still hold its other end, and go on
// writing.
func (r *run) drain(buffer []byte, out io.Writer) {
	raw, err := r.output.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		held, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0)
		if err != nil {
			return
		}
		for held > 0 {
			n, err := syscall.Read(int(fd), buffer)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			_, _ = out.Write(buffer[:n])
			held -= n
		}
	})
}

// wait returns when the command has ended and what it left in its session was killed. Once cancel is closed it ends the command by end, and
// reports so. Then collect has to be called.
func (r *run) wait(cancel <-chan struct{}, end func() syscall.WaitStatus) (status syscall.WaitStatus, cancelled bool) {
	select {
	case status = <-r.ended:
	case <-cancel:
		status, cancelled = end(), true
	}
	r.killSession(syscall.SIGKILL)
	r.awaitSession()
	return status, cancelled
}

// collect returns when what the command printed is copied.
func (r *run) collect() {
	_ = r.output.SetReadDeadline(time.Unix(1, 0))
	<-r.copied
	_ = r.output.Close()
}

// interrupt ends the command, more firmly each time.
func (r *run) interrupt(cfg Config) syscall.WaitStatus {
	_ = syscall.Kill(-r.pid, syscall.SIGINT)
	for _, step := range []struct {
		grace time.Duration
		then  syscall.Signal
	}{{cfg.InterruptGrace, syscall.SIGTERM}, {cfg.TerminateGrace, syscall.SIGKILL}} {
		timer := time.NewTimer(step.grace)
		select {
		case status := <-r.ended:
			timer.Stop()
			return status
		case <-timer.C:
			r.killSession(step.then)
		}
	}
	return <-r.ended
}

// terminate ends the command as a batch system does whose time limit has passed: SIGTERM, all of the grace, SIGKILL.
func (r *run) terminate(grace time.Duration) syscall.WaitStatus {
	r.killSession(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case status := <-r.ended:
		return status
	case <-timer.C:
		return r.kill()
	}
}

// kill ends the command at once.
func (r *run) kill() syscall.WaitStatus {
	r.killSession(syscall.SIGKILL)
	return <-r.ended
}

// killSession signals every process of the command's session, mpirun's local ranks among them: those have process groups of
// their own. It looks again until it finds none that it has not signalled.
func (r *run) killSession(signal syscall.Signal) {
	signalled := map[int]bool{}
	for again := true; again; {
		again = false
		for _, pid := range processes() {
			if session, _ := sessionOf(pid); !signalled[pid] && session == r.pid {
				signalled[pid], again = true, true
				_ = syscall.Kill(pid, signal)
			}
		}
	}
}

// sessionPatience bounds how long killed processes are waited for; one that the kernel can't end by then runs no more of its program.
const sessionPatience = 2 * time.Second

// awaitSession returns when no process of the session, all of which were killed, runs any more.
func (r *run) awaitSession() {
	deadline := time.Now().Add(sessionPatience)
	for delay := time.Millisecond; r.hasProcesses() && time.Now().Before(deadline); delay = min(2*delay, 50*time.Millisecond) {
		pause(context.Background(), delay)
	}
}

func (r *run) hasProcesses() bool {
	for _, pid := range processes() {
		if session, state := sessionOf(pid); session == r.pid && state != "Z" {
			return true
		}
	}
	return false
}

// processes lists the PIDs there are.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sessionOf returns the session of a process, -1 when it is gone, and its state (proc(5), /proc/PID/stat: the fourth and the first
// field after the name, which is in parentheses and may hold any character).
func sessionOf(pid int) (session int, state string) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return -1, ""
	}
	text := string(data)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 4 {
		return -1, ""
	}
	session, err = strconv.Atoi(fields[3])
	if err != nil {
		return -1, ""
	}
	return session, fields[0]
}
