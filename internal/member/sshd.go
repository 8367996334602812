package member

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// probeFirst and probeLast are the pauses between attempts to reach sshd; they grow from one to the other.
	probeFirst = time.Millisecond
	probeLast  = 50 * time.Millisecond
	// probeDeadline is when a member that is still not reachable tells so; it goes on trying.
	probeDeadline = 15 * time.Second
	// restartFirst and restartLast are the pauses before sshd is started again; they grow when it ends at once.
	restartFirst = 10 * time.Millisecond
	restartLast  = 5 * time.Second
)

// superviseSSHD keeps sshd running until ctx ends, and tells whether it answers.
func (a *agent) superviseSSHD(ctx context.Context) {
	if err := os.MkdirAll(a.cfg.SSHDDirectory, 0o755); err != nil {
		a.log.Warn("sshd's directory can't be made", "error", err)
	}
	delay := restartFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := a.runSSHD(ctx)
		if ctx.Err() != nil {
			return
		}
		a.setProblem(err.Error())
		if time.Since(began) > restartLast {
			delay = restartFirst
		}
		pause(ctx, delay)
		delay = min(2*delay, restartLast)
	}
}

// runSSHD runs sshd until it ends, and tells why it ended.
func (a *agent) runSSHD(ctx context.Context) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = read.Close() }()
	pid, ended, err := a.children.start(a.cfg.SSHD[0], a.cfg.SSHD, &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		// Its own process group, so that signals to this agent's group don't reach it.
		Files: []uintptr{null.Fd(), write.Fd(), write.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	_ = write.Close()
	if err != nil {
		return fmt.Errorf("%s can't be started: %w", a.cfg.SSHD[0], err)
	}
	var said lastLine
	go said.copy(os.Stderr, read)
	probing, stopProbing := context.WithCancel(ctx)
	defer stopProbing()
	go a.probe(probing)
	select {
	case status := <-ended:
		return fmt.Errorf("sshd ended (%s): %s", describe(status), said.get())
	case <-ctx.Done():
		// Sessions go on until the member's first process ends, which follows at once.
		_ = syscall.Kill(pid, syscall.SIGTERM)
		return ctx.Err()
	}
}

// probe reports the member ready once sshd answers on its own address.
func (a *agent) probe(ctx context.Context) {
	deadline := time.Now().Add(probeDeadline)
	for delay := probeFirst; ctx.Err() == nil; delay = min(delay*3/2, probeLast) {
		err := a.readBanner(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			a.setReady()
			return
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			deadline = time.Time{}
			a.setProblem(fmt.Sprintf("sshd does not answer on the member's own address: %v", err))
		}
		pause(ctx, delay)
	}
}

// readBanner connects to sshd and reads the start of its identification (RFC 4253, section 4.2).
func (a *agent) readBanner(ctx context.Context) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", a.sshAddress())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	const want = "SSH-2.0-"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("%q answers, which is not sshd", got)
	}
	return nil
}

// lastLine passes output on and remembers its last line.
type lastLine struct{ line atomic.Pointer[string] }

func (l *lastLine) copy(to io.Writer, from io.Reader) {
	lines := bufio.NewReaderSize(from, 4096)
	for {
		piece, err := lines.ReadSlice('\n')
		if text := strings.TrimSpace(string(piece)); text != "" {
			l.line.Store(&text)
		}
		_, _ = to.Write(piece)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *lastLine) get() string {
	if line := l.line.Load(); line != nil {
		return *line
	}
	return "it said nothing"
}

// describe tells how a process ended.
func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal " + unix.SignalName(status.Signal())
	}
	return fmt.Sprintf("exit code %d", status.ExitStatus())
}

// raiseLoopback sets the loopback interface up when it is not (netdevice(7)).
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	if request.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
