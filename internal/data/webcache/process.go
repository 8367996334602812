package webcache

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// Program is nginx.
const Program = "nginx"

// account is the user of the servers' processes, which nobody else has: Debian and systemd give nobody the numbers from 60706 to 61183 (systemd, UIDS-GIDS).
const account = 61_095

// ErrNotInstalled reports that this host has no nginx.
var ErrNotInstalled = errors.New("nginx is not installed here: apt install nginx-light")

// startTime bounds how long a server may take until it listens, and stopTime until it has ended after it was asked to.
const (
	startTime = 30 * time.Second
	stopTime  = 10 * time.Second
)

// Cache caches files of web servers. It ends with this process.
type Cache struct {
	cmd     *exec.Cmd
	base    string
	ended   chan struct{}
	reports *os.File
	mu      sync.Mutex
	count   Counters
}

// Start starts a cache in a network namespace, from which it reaches its sources, and returns when it listens. group is the group of its processes. What an
// earlier one has left in Base is there again.
func Start(ctx context.Context, space netns.Handle, group int, cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return nil, ErrNotInstalled
	}
	c := &Cache{base: cfg.Base, ended: make(chan struct{})}
	if err := c.prepare(group, cfg); err != nil {
		return nil, fmt.Errorf("preparing a cache: %w", err)
	}
	// The first process of a PID namespace takes its workers along, however it ends. setpriv asks for the signal after it has changed the user, which a change
	// would take back (prctl(2), PR_SET_PDEATHSIG).
	c.cmd = exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--", "sh", "-c",
		`mount --bind "$0" `+place+` && cd `+place+` && exec "$@"`, cfg.Base,
		"setpriv", "--reuid", strconv.Itoa(account), "--regid", strconv.Itoa(group), "--clear-groups", "--no-new-privs", "--pdeathsig", "KILL", "--",
		path, "-c", filepath.Join(place, fileConfig), "-e", filepath.Join(place, fileLog))
	c.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	go c.listen()
	if err := c.run(space); err != nil {
		return nil, errors.Join(err, c.reports.Close())
	}
	if err := c.awaitListening(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a cache: %w", err), c.Stop())
	}
	if cfg.Authorization != "" { // it has been read, and the credential is not to stay on the disk
		if err := os.Remove(filepath.Join(cfg.Base, fileConfig)); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// prepare makes the server's directory and what is in it.
func (c *Cache) prepare(group int, cfg Config) error {
	if err := os.MkdirAll(filepath.Join(c.base, dirStore), 0o700); err != nil {
		return err
	}
	for _, old := range []string{fileDoor, fileReports, fileLog} {
		if err := os.Remove(filepath.Join(c.base, old)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(c.base, fileConfig), []byte(cfg.text()), 0o600); err != nil {
		return err
	}
	var err error
	if c.reports, err = openReports(filepath.Join(c.base, fileReports)); err != nil {
		return err
	}
	for _, name := range []string{"", dirStore, fileConfig, fileReports} {
		if err := os.Lchown(filepath.Join(c.base, name), account, group); err != nil {
			return errors.Join(err, c.reports.Close())
		}
	}
	return nil
}

// openReports makes the pipe that the server writes its reports to, and opens it at both ends: so the server's own opening of it does not wait. A pipe loses
// none of them.
func openReports(path string) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
}

// byShortPath calls f with a short path of a directory.
func byShortPath(dir string, f func(string) error) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = opened.Close() }()
	return f(fmt.Sprintf("/proc/self/fd/%d", opened.Fd()))
}

// run starts the process. The kernel ends it with the thread that starts it (prctl(2), PR_SET_PDEATHSIG), so that thread waits for it and does nothing else.
func (c *Cache) run(space netns.Handle) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread stays in the namespace
		err := space.Enter()
		if err == nil {
			err = c.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = c.cmd.Wait()
			close(c.ended)
		}
	}()
	return <-started
}

// listen adds up what the cache reports until the pipe is closed.
func (c *Cache) listen() {
	lines := bufio.NewScanner(c.reports)
	for lines.Scan() {
		c.mu.Lock()
		c.count.add(lines.Text())
		c.mu.Unlock()
	}
}

func (c *Cache) awaitListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		conn, err := c.Dial(ctx)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-c.ended:
			said, _ := os.ReadFile(filepath.Join(c.base, fileLog))
			return fmt.Errorf("nginx has ended: %s", strings.TrimSpace(string(said)))
		case <-ctx.Done():
			return fmt.Errorf("nginx does not answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// awaitRefusal waits until nobody answers: nginx ends after the process that waits for it.
func (c *Cache) awaitRefusal() {
	again, late := time.NewTicker(5*time.Millisecond), time.After(stopTime)
	defer again.Stop()
	for {
		conn, err := c.Dial(context.Background()) // it must end, whatever its starter's context says
		if err != nil {
			return
		}
		_ = conn.Close()
		select {
		case <-again.C:
		case <-late:
			return
		}
	}
}

// Dial connects to the cache.
func (c *Cache) Dial(ctx context.Context) (net.Conn, error) {
	var conn net.Conn
	err := byShortPath(c.base, func(dir string) (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, fileDoor))
		return err
	})
	return conn, err
}

// Serve has the cache serve a connection until that ends, the cache does, or ctx does. It is closed then. The kernel moves the bytes (splice(2)).
func (c *Cache) Serve(ctx context.Context, inside *net.TCPConn) error {
	defer func() { _ = inside.Close() }()
	conn, err := c.Dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = inside.Close(), conn.Close() })
	defer stop()
	var back sync.WaitGroup
	back.Go(func() { carry(inside, conn) })
	carry(conn, inside)
	back.Wait()
	return nil
}

// carry copies until the source ends, and says so to the destination. What went wrong ends both.
func carry(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		_, _ = to.Close(), from.Close()
		return
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// Counters are those of blocks that were read until now.
func (c *Cache) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// PID is the number of the process that all others end with.
func (c *Cache) PID() int { return c.cmd.Process.Pid }

// Ended is closed when the process has ended, whoever ended it.
func (c *Cache) Ended() <-chan struct{} { return c.ended }

// Stop ends the cache, and returns when it has ended. What it has cached stays.
func (c *Cache) Stop() error {
	err := c.cmd.Process.Kill() // nginx writes each block beside its place, and renames it: nothing is lost
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-c.ended:
	case <-time.After(stopTime):
		err = errors.Join(err, errors.New("nginx does not end"))
	}
	c.awaitRefusal()
	if closed := c.reports.Close(); !errors.Is(closed, os.ErrClosed) { // as it is when it is ended twice
		err = errors.Join(err, closed)
	}
	return err
}
