package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Program is XRootD's own client.
const Program = "xrdcp"

// ErrNotInstalled reports that this host has no client of XRootD.
var ErrNotInstalled = errors.New("XRootD's client is not installed on the node: apt install xrootd-client")

// nobody is the user that the client runs as: what comes from a source is parsed by a large program.
const nobody = 65534

// fillXRootD fetches what follows the part's prefix. xrdcp gets the file as a descriptor, and goes on where that ends (--continue).
func (t *transfer) fillXRootD(ctx context.Context, u *url.URL) error {
	program, err := exec.LookPath(Program)
	if err != nil {
		return ErrNotInstalled
	}
	if _, err := t.allowed(ctx, u.Hostname()); err != nil {
		return err
	}
	defer t.timeTrip(ctx, u)()
	failures, streams := 0, min(t.cfg.Streams, 15)
	for {
		before := t.part.prefix()
		if before > 0 {
			streams = 1 // with more, xrdcp 5.5.3 takes wrong bytes, or reports corrupted ones, in a third of the copies that go on
		}
		err := t.copyXRootD(ctx, program, u, streams)
		if err == nil || ctx.Err() != nil || isLocal(err) || errors.Is(err, errOther) {
			return err
		}
		if failures++; t.part.prefix() > before {
			failures = 1
		}
		if failures >= mostFailures {
			return err
		}
		streams = 1 // some servers stall with more
		pause(ctx, time.Duration(failures)*100*time.Millisecond)
	}
}

// timeTrip times a connection to a server beside a copy, since xrdcp tells nothing of its own. The function that it returns waits for that.
func (t *transfer) timeTrip(ctx context.Context, u *url.URL) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if took, err := t.RoundTrip(ctx, u.String()); err == nil {
			t.trips.note(took)
		}
	}()
	return func() {
		cancel() // a copy that is over waits for nothing
		<-done
	}
}

// copyXRootD runs xrdcp once, and notes what came of it.
func (t *transfer) copyXRootD(ctx context.Context, program string, u *url.URL, streams int) error {
	begin := t.part.prefix()
	if err := t.part.onlyPrefix(begin); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, program, t.arguments(u, streams)...)
	cmd.Env = t.environment()
	cmd.ExtraFiles = []*os.File{t.part.file} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := t.part.file.Chown(nobody, nobody); err != nil {
			return &localError{err}
		}
	}
	var said bytes.Buffer
	cmd.Stderr = &limited{to: &said, left: 4 << 10}
	cmd.WaitDelay = time.Second
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		t.watchXRootD(ctx, cancel)
	}()
	err := cmd.Run()
	cause := context.Cause(ctx)
	cancel(nil)
	<-watching
	if noted := t.part.noteSize(err == nil); noted != nil {
		return noted
	}
	switch {
	case err == nil:
		return nil
	case cause != nil:
		return cause
	default:
		return fmt.Errorf("xrdcp: %s", lastLine(said.String(), err))
	}
}

func (t *transfer) arguments(u *url.URL, streams int) []string {
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "1094")
	}
	args := []string{"--nopbar", "--silent", "--retry", "0"}
	if t.cfg.BytesPerSecond > 0 {
		args = append(args, "--xrate", strconv.FormatInt(t.cfg.BytesPerSecond, 10))
	}
	if t.part.prefix() > 0 {
		args = append(args, "--continue")
	} else {
		args = append(args, "--force")
	}
	if streams > 1 {
		args = append(args, "--streams", strconv.Itoa(streams))
	}
	return append(args, "root://"+host+"//"+strings.TrimLeft(u.Path, "/"), "/proc/self/fd/3")
}

// environment bounds the client's own patience, which is half an hour by default, and gives it the token (WLCG Bearer Token Discovery).
func (t *transfer) environment() []string {
	seconds := strconv.Itoa(max(1, int(t.cfg.Patience.Seconds())))
	env := []string{
		"PATH=/usr/bin:/bin", "HOME=/nonexistent", "XRD_CONNECTIONWINDOW=5", "XRD_CONNECTIONRETRY=1", "XRD_REQUESTTIMEOUT=" + seconds, "XRD_STREAMTIMEOUT=" + seconds,
		"XRD_CPCHUNKSIZE=" + strconv.Itoa(blockBytes), "XRD_STREAMERRORWINDOW=" + seconds,
	}
	if c := t.file.Credential; c != nil && c.Token != "" {
		env = append(env, "BEARER_TOKEN="+c.Token)
	}
	return env
}

// watchXRootD ends a copy whose file does not grow.
func (t *transfer) watchXRootD(ctx context.Context, cancel context.CancelCauseFunc) {
	ticks := time.NewTicker(min(200*time.Millisecond, t.cfg.Patience/4))
	defer ticks.Stop()
	size, since := int64(-1), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		info, err := t.part.file.Stat()
		switch {
		case err != nil:
			return
		case info.Size() != size:
			t.part.grew(info.Size())
			size, since = info.Size(), time.Now()
			if err := t.file.most(size); err != nil {
				cancel(err)
				return
			}
		case time.Since(since) > t.cfg.Patience:
			cancel(fmt.Errorf("it sent nothing for %s", t.cfg.Patience))
			return
		}
	}
}

// limited keeps the first bytes of what is written.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(data []byte) (int, error) {
	n := min(len(data), l.left)
	l.left -= n
	_, err := l.to.Write(data[:n])
	return len(data), err
}

// lastLine is what a program said last, or how it ended.
func lastLine(text string, err error) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := strings.TrimSpace(lines[len(lines)-1]); last != "" {
		return last
	}
	return err.Error()
}
