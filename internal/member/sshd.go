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

// The member agent listens for SSH itself and starts an sshd for every connection (sshd -i, sshd(8)). There is no daemon to
// start before the member is ready, and none to be supervised; a daemon executes itself anew for every connection anyway.
//
// It makes logins quick, too. Neither ssh nor sshd turns Nagle's algorithm (RFC 896) off before a session is set up, so three
// times in a login one waits for the other's delayed acknowledgement, 40 ms each. Sockets that Go accepts have it off, and
// hasten sends the acknowledgements that the client waits for.

const (
	// probeFirst and probeLast are the pauses between attempts to reach sshd; they grow from one to the other.
	probeFirst = time.Millisecond
	probeLast  = 50 * time.Millisecond
	// probeSlow is the pause once the member has reported that it is not ready.
	probeSlow = time.Second
	// probeLongest bounds one attempt.
	probeLongest = time.Minute
	// hastenEvery and hastenFor are how often and how long a new connection's acknowledgements are hastened.
	hastenEvery = 2 * time.Millisecond
	hastenFor   = 100 * time.Millisecond
)

// serveSSH answers SSH connections until ctx ends, and tells when the first was answered.
func (a *agent) serveSSH(ctx context.Context) {
	if err := os.MkdirAll(a.cfg.SSHDDirectory, 0o755); err != nil {
		a.log.Warn("sshd's directory can't be made", "error", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		a.setProblem(err.Error())
		return
	}
	var said lastLine
	go said.copy(os.Stderr, read)
	listener, err := a.listenSSH(ctx)
	if err != nil {
		return // ctx ended
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go a.probe(ctx, &said)
	for ctx.Err() == nil {
		conn, err := listener.Accept()
		if err == nil {
			err = a.startSSHD(ctx, conn.(*net.TCPConn), write)
		}
		if err != nil && ctx.Err() == nil {
			a.log.Warn("an SSH connection can't be served", "error", err)
			pause(ctx, probeLast)
		}
	}
}

// listenSSH listens; as long as that can't be done it says so and tries again.
func (a *agent) listenSSH(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{KeepAlive: -1} // sshd's business
	for {
		listener, err := config.Listen(ctx, "tcp", fmt.Sprintf(":%d", a.cfg.SSHPort))
		if err == nil || ctx.Err() != nil {
			return listener, err
		}
		a.setProblem(err.Error())
		pause(ctx, probeSlow)
	}
}

// startSSHD starts an sshd on the connection.
func (a *agent) startSSHD(ctx context.Context, conn *net.TCPConn, log *os.File) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	var ended <-chan syscall.WaitStatus
	var startErr error
	err = raw.Control(func(fd uintptr) {
		if startErr = syscall.SetNonblock(int(fd), false); startErr != nil {
			return
		}
		_, ended, startErr = a.children.Start(a.cfg.SSHD[0], a.cfg.SSHD, &syscall.ProcAttr{
			Dir: "/", Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Files: []uintptr{fd, fd, log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	})
	if err = errors.Join(err, startErr); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", a.cfg.SSHD[0], err), conn.Close())
	}
	go func() {
		hasten(ctx, raw, ended)
		_ = conn.Close() // sshd has it alone then
	}()
	return nil
}

// hasten has what came over the connection acknowledged at once for the time a login takes. The kernel goes back to delaying
// after each answer (TCP_QUICKACK, tcp(7)), hence again and again.
func hasten(ctx context.Context, raw syscall.RawConn, ended <-chan syscall.WaitStatus) {
	ticker := time.NewTicker(hastenEvery)
	defer ticker.Stop()
	for range hastenFor / hastenEvery {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case <-ticker.C:
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
		}
	}
}

// probe reports the member ready once sshd answers on its own address, and looks again from time to time from then on. An attempt without an answer
// is followed by one with twice its time: each attempt starts an sshd, and on a busy host a new one would answer later than the one before.
func (a *agent) probe(ctx context.Context, said *lastLine) {
	patience := a.cfg.ReadyPatience
	deadline := time.Now().Add(patience)
	for delay := probeFirst; ctx.Err() == nil; delay = min(delay*3/2, probeLast) {
		attempt, end := context.WithTimeout(ctx, patience)
		err := a.readBanner(attempt)
		if attempt.Err() != nil {
			patience = min(2*patience, probeLongest)
		}
		end()
		if err == nil {
			a.awaitSlurm(ctx)
			a.setReady()
			a.watch(ctx, said)
			return
		}
		if time.Now().After(deadline) && ctx.Err() == nil {
			a.setProblem(fmt.Sprintf("sshd does not answer on the member's own address: %v; sshd's last output: %s", err, said.get()))
			delay = probeSlow
		}
		pause(ctx, delay)
	}
}

// awaitSlurm returns once jobs of Slurm can run in the member, at once where there is no Slurm, or when ctx ends.
func (a *agent) awaitSlurm(ctx context.Context) {
	deadline, delay := time.Now().Add(a.cfg.ReadyPatience), probeLast
	for ctx.Err() == nil {
		err := a.slurm.usable(ctx)
		if err == nil {
			return
		}
		if time.Now().After(deadline) && ctx.Err() == nil {
			a.setProblem(err.Error())
			delay = probeSlow
		}
		pause(ctx, delay)
	}
}

// readBanner connects to sshd and reads its identification (RFC 4253, section 4.2), until ctx ends.
func (a *agent) readBanner(ctx context.Context) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", a.sshAddress())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	line, err := bufio.NewReaderSize(conn, 256).ReadSlice('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(line), "SSH-2.0-") {
		return fmt.Errorf("the answer %q is not sshd's", line)
	}
	// Without an identification in return, sshd complains in its log.
	_, err = io.WriteString(conn, "SSH-2.0-nearmetal\r\n")
	return err
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
	return "none"
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
