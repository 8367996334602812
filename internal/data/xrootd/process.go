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

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/handover"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Program is XRootD's server, and account the user that Debian's package makes for it: it refuses to run as root.
const (
	Program = "xrootd"
	account = "xrootd"
)

// Group is the group of the servers' processes, so that rules of the kernel can name these and no others. No account has it: Debian and systemd give nobody
// the numbers from 60706 to 61183 (systemd, UIDS-GIDS).
const Group = 61_094

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
	gate  *handover.Gate // nil: it has none
}

// Server serves files.
type Server struct{ process }

// StartServer starts a server in a network namespace, and returns when it listens.
func StartServer(ctx context.Context, space netns.Handle, cfg ServerConfig) (*Server, error) {
	p, err := start(ctx, space, launch{at: cfg.Address, work: cfg.Work, text: cfg.text()})
	if err != nil {
		return nil, fmt.Errorf("starting a server of files: %w", err)
	}
	return &Server{p}, nil
}

// launch is a server to be started.
type launch struct {
	at netip.AddrPort
	// work is its own directory, and base one that it sees at another place (CacheConfig.Base).
	work, base string
	text       string
	// files are further ones in work, and owned further directories that belong to the account.
	files map[string]string
	owned []string
	env   []string
	// gate: it can be handed connections.
	gate bool
}

// start runs xrootd with a configuration, and returns when it listens.
func start(ctx context.Context, space netns.Handle, l launch) (process, error) {
	path, err := exec.LookPath(Program)
	if err != nil {
		return process{}, ErrNotInstalled
	}
	owned := append(l.owned, l.work)
	if l.base != "" {
		owned = append([]string{l.base}, owned...)
	}
	uid, err := give(owned)
	if err != nil {
		return process{}, err
	}
	for name, text := range l.files {
		if err := os.WriteFile(filepath.Join(l.work, name), []byte(text), 0o644); err != nil {
			return process{}, err
		}
	}
	const config, log = "xrootd.cfg", "log"
	if err := os.WriteFile(filepath.Join(l.work, config), []byte(l.text), 0o644); err != nil {
		return process{}, err
	}
	work := seen(l.base, l.work)
	// setpriv changes to the account before it asks for the signal, which a change of the user would take back (prctl(2), PR_SET_PDEATHSIG).
	args := []string{
		"setpriv", "--reuid", strconv.Itoa(uid), "--regid", strconv.Itoa(Group), "--clear-groups", "--no-new-privs", "--pdeathsig", "KILL", "--",
		path, "-c", filepath.Join(work, config), "-l", filepath.Join(work, log),
	}
	if l.base != "" { // xrootd ends where its host's name has no address: it gets one that has
		args = append([]string{
			"unshare", "--mount", "--propagation", "private", "--uts", "--", "sh", "-c",
			`echo localhost >/proc/sys/kernel/hostname && mount --bind "$0" ` + place + ` && cd "$1" && shift && exec "$@"`, l.base, work,
		}, args...)
	}
	p := process{cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{}), log: filepath.Join(l.work, log)}
	if err := os.Remove(p.log); err != nil && !errors.Is(err, os.ErrNotExist) { // it would be appended to, and what an earlier one said is no longer so
		return process{}, err
	}
	p.cmd.Dir, p.cmd.Env = l.work, l.env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.run(space, l.gate); err != nil {
		return process{}, err
	}
	if err := p.awaitListening(ctx, space, l.at); err != nil {
		return process{}, errors.Join(err, p.Stop())
	}
	return p, nil
}

// give makes directories that belong to the account, whose number it returns.
func give(dirs []string) (uid int, err error) {
	owner, err := user.Lookup(account)
	if err != nil {
		return 0, fmt.Errorf("%w (%w)", ErrNotInstalled, err)
	}
	if uid, err = strconv.Atoi(owner.Uid); err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		if err := errors.Join(os.MkdirAll(dir, 0o750), os.Chown(dir, uid, Group)); err != nil {
			return 0, err
		}
	}
	return uid, nil
}

// run starts the process. The kernel ends it with the thread that starts it (prctl(2), PR_SET_PDEATHSIG), so that thread waits for it and does nothing else.
func (p *process) run(space netns.Handle, gate bool) error {
	started := make(chan error, 1)
	go p.runHere(space, gate, started)
	return <-started
}

// runHere runs the process on the thread that it is called on, which is not used again: it stays in the namespace, and ends with its goroutine.
func (p *process) runHere(space netns.Handle, gate bool, started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // the first thread of this program can't end, and would stay in the namespace for good
		defer runtime.UnlockOSThread()
		elsewhere := make(chan error, 1)
		go p.runHere(space, gate, elsewhere) // not on this thread, which is taken until then
		started <- <-elsewhere
		return
	}
	err := space.Enter()
	if err == nil && gate {
		p.gate, err = handover.Install()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if p.gate != nil && err == nil {
		p.gate.Started(p.cmd.Process.Pid)
	}
	ended, made := p.ended, p.gate // p may be copied once it has started
	started <- err
	if err == nil {
		_ = p.cmd.Wait()
		close(ended)
	}
	if made != nil {
		_ = made.Close()
	}
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

// PID is the number of the process.
func (p *process) PID() int { return p.cmd.Process.Pid }

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
	return p.kill()
}

// kill ends the process at once, and returns when it has ended.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.ended
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
