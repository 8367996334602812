// Package pidfd holds processes by descriptors, which can't come to name another process when a PID is used again.
//
// It must never signal by PID. Start with Open, or with Kill.
package pidfd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Process is a handle on one process that can't be taken for another, even when its PID is used again (pidfd_open(2)).
type Process struct {
	pid  int
	file *os.File
}

// ErrNone means that the process has ended and was reaped.
var ErrNone = errors.New("no such process")

// Open opens a process. Whether it is the one meant must be checked after, when the PID can no longer change hands.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	// A non-blocking descriptor is waited for by the runtime's poller: a thousand waits cost no thread.
	return &Process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Close gives the handle back.
func (p *Process) Close() { _ = p.file.Close() }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(sig unix.Signal) error {
	err := p.control(func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait returns when the process has ended, or with the context's error.
func (p *Process) Wait(ctx context.Context) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool { return pollEvents(int(fd)) != 0 })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (p *Process) control(f func(fd int) error) error {
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// ReapTime bounds how long another parent is waited for to reap a process that has ended.
const ReapTime = 200 * time.Millisecond

// ExitCode reaps a process that has ended, if it is this agent's to reap, and returns its exit code (128 + N when signal N ended
// it), nil when the kernel can't tell.
//
// Members started by this agent are its children (PR_SET_CHILD_SUBREAPER). Those started by a former one have another parent; since
// Linux 6.15 a pidfd tells their exit status once that parent has reaped them.
func (p *Process) ExitCode() *int {
	if code, reaped := p.Reap(); reaped {
		return &code
	}
	info, err := p.exitInfo()
	if err != nil {
		return nil
	}
	if info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		if !p.awaitReaping() {
			return nil
		}
		if info, err = p.exitInfo(); err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
			return nil
		}
	}
	status := unix.WaitStatus(info.Exit_code)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return &code
}

// siginfo is the head of siginfo_t as waitid(2) fills it on 64-bit machines.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
}

// codeExited is CLD_EXITED: the status is an exit code; else it is the signal that ended the process.
const codeExited = 1

// Reap takes a child that has ended off the process table; false when it is no child of this process, or reaped already.
func (p *Process) Reap() (code int, reaped bool) {
	err := p.control(func(fd int) error {
		var raw unix.Siginfo
		if err := unix.Waitid(unix.P_PIDFD, fd, &raw, unix.WEXITED|unix.WNOHANG, nil); err != nil {
			return err
		}
		info := (*siginfo)(unsafe.Pointer(&raw))
		if info.pid == 0 {
			return unix.EAGAIN
		}
		code = int(info.status)
		if info.code != codeExited {
			code += 128
		}
		return nil
	})
	return code, err == nil
}

func (p *Process) exitInfo() (unix.PidfdInfo, error) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.control(func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
	return info, err
}

// awaitReaping waits a little for the pidfd to hang up, which it does when the process was reaped.
func (p *Process) awaitReaping() bool {
	conn, err := p.file.SyscallConn()
	if err != nil || p.file.SetReadDeadline(time.Now().Add(ReapTime)) != nil {
		return false
	}
	return conn.Read(func(fd uintptr) bool { return pollEvents(int(fd))&unix.POLLHUP != 0 }) == nil
}

// pollEvents returns what is ready on a pidfd now: POLLIN when the process has ended, POLLHUP when it was reaped.
func pollEvents(fd int) int16 {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		return 0
	}
	return fds[0].Revents
}

// Kill ends a process by force and waits until it is gone, if it is still the one meant once it was opened.
func Kill(ctx context.Context, pid int, meant func() bool) error {
	p, err := Open(pid)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !meant() {
		return nil
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}
