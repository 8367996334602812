// Package diskserver has the processes by which machines get block volumes: one that serves an image by NBD (package nbd) at a Unix socket, and two that carry
// connections to such a socket from another node.
//
// The processes outlive agents and are found by looking: each has a directory with its PID, and says in its arguments what it does. They are part of the
// member agent's program (Hold). Serve has one client at a time, the latest: what an earlier one has asked for is done, or refused, before the next gets
// an answer. So a machine that is lost writes nothing any more once its successor reads. Start with Serve.Ensure.
package diskserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// Name is argument 0 of the processes: the program that they are part of is started as one by that name.
const Name = "nearmetal-disk"

// The files of a process's directory.
const (
	socketFile = "disk.sock"
	pidFile    = "pid"
)

// Socket is where machines connect to the process of a directory, by NBD. Its owner is the first user of the cluster, as whom QEMU runs.
func Socket(dir string) string { return filepath.Join(dir, socketFile) }

// The modes are argument 2 of a process; argument 1 is its directory.
const (
	modeServe = "serve"
	modeReach = "reach"
	modeShare = "share"
)

// readOnly is what a process that serves is told of an image that is not to be written.
const readOnly = "read-only"

// Serve is a process that serves an image.
type Serve struct {
	// Program is the path of the member agent's program.
	Program string
	// Dir is the process's own directory, an absolute path, in which no name is a link.
	Dir string
	// Image is a file or a block device.
	Image    string
	ReadOnly bool
	// BytesPerSecond bounds what is read, and what is written; 0: no limit.
	BytesPerSecond int64
	UserIDs        api.IDRange
}

// Ensure starts the process, unless it is there.
func (s Serve) Ensure(ctx context.Context) error {
	flag := os.O_RDWR
	access := "writable"
	if s.ReadOnly {
		flag, access = os.O_RDONLY, readOnly
	}
	args := []string{modeServe, s.Image, access, strconv.FormatInt(s.BytesPerSecond, 10)}
	p := process{program: s.Program, dir: s.Dir, args: args, ids: s.UserIDs}
	return p.ensure(ctx, func() ([]*os.File, error) {
		listener, err := listenUnix(s.Dir, s.UserIDs.First)
		if err != nil {
			return nil, err
		}
		image, err := os.OpenFile(s.Image, flag, 0)
		return []*os.File{listener, image}, err
	})
}

// Reach is a process that connects a machine on this node to an image that another node serves.
type Reach struct {
	Program, Dir string
	UserIDs      api.IDRange
	// Space is a network namespace from which Server is reached, which is where the other node's Share listens. Disk is the name of the image there.
	Space  netns.Handle
	Server netip.AddrPort
	Disk   string
}

// Ensure starts the process, unless it is there.
func (r Reach) Ensure(ctx context.Context) error {
	p := process{program: r.Program, dir: r.Dir, args: []string{modeReach, r.Server.String(), r.Disk}, ids: r.UserIDs, space: &r.Space}
	return p.ensure(ctx, func() ([]*os.File, error) {
		listener, err := listenUnix(r.Dir, r.UserIDs.First)
		return []*os.File{listener}, err
	})
}

// Share is a process that connects other nodes to the sockets of images on this one.
type Share struct {
	Program, Dir string
	UserIDs      api.IDRange
	// Space is a network namespace in which it listens, at Listen. Only Clients are let in.
	Space   netns.Handle
	Listen  netip.AddrPort
	Clients []netip.Addr
	// Sockets are those of the images, by their names.
	Sockets map[string]string
}

// Ensure starts the process, unless it is there. A process with other clients or images has ended before.
func (s Share) Ensure(ctx context.Context) error {
	args := []string{modeShare, s.Listen.String()}
	for _, c := range s.Clients {
		args = append(args, c.String())
	}
	for name, socket := range s.Sockets {
		args = append(args, name+"="+socket)
	}
	slices.Sort(args[2:])
	p := process{program: s.Program, dir: s.Dir, args: args, ids: s.UserIDs, space: &s.Space}
	return p.ensure(ctx, func() (files []*os.File, err error) {
		err = s.Space.Do(func() error {
			listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(s.Listen))
			if err != nil {
				return err
			}
			file, err := listener.File()
			files = []*os.File{file}
			return errors.Join(err, listener.Close())
		})
		return files, err
	})
}

// Shared is what a Share that was found lets whom reach.
type Shared struct {
	Disks   []string
	Clients []netip.Addr
}

// FoundShare returns what the Share of a directory does; nothing where there is none.
func FoundShare(dir string) (s Shared, err error) {
	_, args, err := found(dir)
	if err != nil || len(args) < 2 || args[0] != modeShare {
		return s, err
	}
	for _, word := range args[2:] {
		if name, _, ok := strings.Cut(word, "="); ok {
			s.Disks = append(s.Disks, name)
		} else if client, err := netip.ParseAddr(word); err == nil {
			s.Clients = append(s.Clients, client)
		}
	}
	return s, nil
}

// Runs reports whether there is a process of a directory.
func Runs(dir string) (bool, error) {
	pid, _, err := found(dir)
	return pid != 0, err
}

// End ends the process of a directory, and removes that. Repeating it is harmless.
func End(ctx context.Context, dir string) error {
	if err := end(ctx, dir); err != nil {
		return fmt.Errorf("ending what serves %s: %w", dir, err)
	}
	for _, name := range []string{socketFile, pidFile, pidFile + ".new", ""} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// end ends the process, and returns when the kernel has closed its files.
func end(ctx context.Context, dir string) error {
	pid, _, err := found(dir)
	if err != nil || pid == 0 {
		return err
	}
	p, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if again, _, err := found(dir); err != nil || again != pid {
		return err // the PID is another's by now
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return p.Wait(ctx)
}

// found returns the process of a directory, 0 where there is none, and its arguments after the directory. The file says which it should be, the
// process whether it is.
func found(dir string) (pid int, args []string, err error) {
	text, err := os.ReadFile(filepath.Join(dir, pidFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, nil, nil //nolint:nilerr // what is no number is no process
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if err != nil || len(words) < 3 || words[0] != Name || words[1] != dir {
		return 0, nil, nil //nolint:nilerr // it has ended, which leaves no arguments
	}
	return pid, words[2:], nil
}

// process is one that is wanted.
type process struct {
	program, dir string
	args         []string
	ids          api.IDRange
	// space is the network namespace of a process that connects to other nodes; nil: it has none.
	space *netns.Handle
}

// ensure starts the process with the files that open returns, unless one with the same arguments is there. One with others is ended before.
func (p process) ensure(ctx context.Context, open func() ([]*os.File, error)) error {
	pid, args, err := found(p.dir)
	if err == nil && pid != 0 && slices.Equal(args, p.args) {
		return nil
	}
	if err == nil {
		err = end(ctx, p.dir)
	}
	if err == nil {
		err = os.MkdirAll(p.dir, 0o711)
	}
	if err != nil {
		return fmt.Errorf("serving %s: %w", p.dir, err)
	}
	files, err := open()
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err == nil {
		err = p.start(files)
	}
	if err != nil {
		return fmt.Errorf("serving %s: %w", p.dir, err)
	}
	failpoint.Hit("diskserver.after-start")
	return nil
}

// mostSaid bounds what a process says of itself, in bytes.
const mostSaid = 4096

// start starts the process. It goes on once its directory names it, and ends if its maker ends before.
func (p process) start(files []*os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	hears, orders, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = orders.Close() }()
	answers, says, err := os.Pipe()
	if err != nil {
		return errors.Join(err, hears.Close())
	}
	defer func() { _ = answers.Close() }()
	program, err := os.Open(p.program) // the process is another user, who need not find it
	if err != nil {
		return errors.Join(err, hears.Close(), says.Close())
	}
	defer func() { _ = program.Close() }()
	attr := &os.ProcAttr{Dir: "/", Env: []string{}, Files: append([]*os.File{hears, says, null, program}, files...), Sys: p.namespaces()}
	var started *os.Process
	start := func() (err error) {
		started, err = os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", fileProgram), append([]string{Name, p.dir}, p.args...), attr)
		return err
	}
	if p.space != nil {
		err = p.space.Do(start)
	} else {
		err = start()
	}
	_ = errors.Join(hears.Close(), says.Close())
	if err != nil {
		return fmt.Errorf("starting it: %w", err)
	}
	go func() { _, _ = started.Wait() }()
	said := make([]byte, mostSaid)
	if n, _ := answers.Read(said); string(said[:n]) != ready {
		return fmt.Errorf("it did not become ready: %s", strings.ToValidUTF8(string(said[:n]), "?"))
	}
	at := filepath.Join(p.dir, pidFile)
	if err := errors.Join(os.WriteFile(at+".new", []byte(strconv.Itoa(started.Pid)), 0o600), os.Rename(at+".new", at)); err != nil {
		return err
	}
	failpoint.Hit("diskserver.after-pid")
	_, err = orders.WriteString(goOn)
	return err
}

// namespaces are what the process has of its own: user IDs, in which it is root over nothing, and all but the network of one that connects to others.
// It is another user on the host than the cluster's QEMU, but for one that connects to the socket of that user.
func (p process) namespaces() *syscall.SysProcAttr {
	host := int(p.ids.First + p.ids.Count - 1)
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP)
	if p.space == nil {
		flags |= unix.CLONE_NEWNET
	} else {
		host = int(p.ids.First)
	}
	mapping := []syscall.SysProcIDMap{{HostID: host, Size: 1}}
	return &syscall.SysProcAttr{
		Cloneflags: flags, UidMappings: mapping, GidMappings: mapping, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{}, Setsid: true,
	}
}

// listenUnix makes the socket that machines connect to, as a user.
func listenUnix(dir string, user uint32) (*os.File, error) {
	// The path through the open directory is short enough for an address.
	at, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }()
	if err := os.Remove(Socket(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", at.Fd(), socketFile), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	defer func() { _ = listener.Close() }()
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(Socket(dir), 0o600), os.Lchown(Socket(dir), int(user), int(user))); err != nil {
		return nil, err
	}
	return listener.File()
}
