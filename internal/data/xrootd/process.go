package xrootd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// Program is XRootD's server, and account the user that Debian's package makes for it: it refuses to run as root.
const (
	Program = "xrootd"
	account = "xrootd"
)

// ErrNotInstalled reports that this host has no XRootD.
var ErrNotInstalled = errors.New("XRootD is not installed here: apt install xrootd-server xrootd-server-plugins")

// startTime bounds how long a server may take until it listens, and stopTime until it has ended after it was asked to.
const (
	startTime = 30 * time.Second
	stopTime  = 10 * time.Second
)

// process is a running xrootd. It ends with this process.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	log   string
}

// Server serves files.
type Server struct{ process }

// StartServer starts a server in a network namespace, and returns when it listens.
func StartServer(ctx context.Context, space netns.Handle, cfg ServerConfig) (*Server, error) {
	p, err := start(ctx, space, cfg.Address, cfg.Work, cfg.text())
	if err != nil {
		return nil, fmt.Errorf("starting a server of files: %w", err)
	}
	return &Server{p}, nil
}

// start runs xrootd with a configuration, and returns when it listens.
func start(ctx context.Context, space netns.Handle, at netip.AddrPort, work, text string, owned ...string) (process, error) {
	path, err := exec.LookPath(Program)
	if err != nil {
		return process{}, ErrNotInstalled
	}
	if err := give(append(owned, work)); err != nil {
		return process{}, err
	}
	config := filepath.Join(work, "xrootd.cfg")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return process{}, err
	}
	p := process{cmd: exec.Command(path, "-R", account, "-c", config, "-l", filepath.Join(work, "log")), ended: make(chan struct{}), log: filepath.Join(work, "log")}
	p.cmd.Dir = work
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.run(space); err != nil {
		return process{}, err
	}
	if err := p.awaitListening(ctx, space, at); err != nil {
		return process{}, errors.Join(err, p.Stop())
	}
	return p, nil
}

// give makes directories that belong to the account.
func give(dirs []string) error {
	owner, err := user.Lookup(account)
	if err != nil {
		return fmt.Errorf("%w (%w)", ErrNotInstalled, err)
	}
	uid, uidErr := strconv.Atoi(owner.Uid)
	gid, gidErr := strconv.Atoi(owner.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := errors.Join(os.MkdirAll(dir, 0o750), os.Chown(dir, uid, gid)); err != nil {
			return err
		}
	}
	return nil
}

// run starts the process. The kernel ends it with the thread that starts it (prctl(2), PR_SET_PDEATHSIG), so that thread waits for it and does nothing else.
func (p *process) run(space netns.Handle) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread stays in the namespace
		err := space.Enter()
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	return <-started
}

// handshake is the first that a client says, and answerBytes how long the answer is (XRootD Protocol, version 5.2, "Initial Handshake").
var handshake = []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0x07, 0xdc}

const answerBytes = 16

// awaitListening returns when a client is answered: the process listens before it has read its configuration.
func (p *process) awaitListening(ctx context.Context, space netns.Handle, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := space.Do(func() error { return greet(ctx, at) })
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("xrootd has ended: %s", p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("xrootd does not answer at %v: %w", at, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func greet(ctx context.Context, at netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	if err == nil {
		_, err = conn.Write(handshake)
	}
	if err == nil {
		_, err = io.ReadFull(conn, make([]byte, answerBytes))
	}
	return err
}

// lastWords are what the log says of errors, or its end if it says nothing of them.
func (p *process) lastWords() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	said := slices.DeleteFunc(slices.Clone(all), func(line string) bool { return !strings.Contains(strings.ToLower(line), "error") })
	if len(said) == 0 {
		said = all[max(0, len(all)-4):]
	}
	return strings.Join(said[:min(4, len(said))], "; ") + " (" + p.log + ")"
}

// Ended is closed when the process has ended, whoever ended it.
func (p *process) Ended() <-chan struct{} { return p.ended }

// Stop ends the process, and returns when it has ended.
func (p *process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error says that it has ended
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTime):
	}
	err := p.cmd.Process.Kill()
	<-p.ended
	return err
}
