package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/homeserver"
	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/patience"
)

// A member's home and its volumes are served to its guest by a process of its own (package homeserver), to which QEMU connects. It is found again by its file, as
// QEMU's is, outlives agents, and is started again when it ends before the machine does: the guest's kernel repeats what was not answered.

// fileServer has the process of the home's server.
const fileServer = "home.pid"

// homeKeeper keeps the server of one member's home running.
type homeKeeper struct {
	end   context.CancelFunc
	ended chan struct{}
}

// restartWait is between two starts of a server that ends at once.
const restartWait = time.Second

// keepHome has a member's home served from now on, until endHome or Close. It returns once it is.
func (d *Driver) keepHome(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	k, life, err := d.newKeeper(id)
	if k == nil {
		return err
	}
	pid, err := d.serveHome(ctx, m)
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.homes[id] == k {
			delete(d.homes, id)
		}
		close(k.ended)
		return fmt.Errorf("serving its home: %w", err)
	}
	go func() {
		defer close(k.ended)
		d.watchHome(life, m, pid)
	}()
	return nil
}

// findHome is keepHome for a member whose home is likely served. It waits for nothing: where its server has to be started anew, that is tried until it
// is, however long a directory of the member does not answer.
func (d *Driver) findHome(m driver.Member) error {
	id := m.Assignment.ID
	k, life, err := d.newKeeper(id)
	if k == nil {
		return err
	}
	pid, err := d.homePID(id)
	go func() {
		defer close(k.ended)
		d.watchHome(life, m, pid)
	}()
	return err
}

// replaceHome has a member's home served by another process, as m says. Nobody else begins to serve it meanwhile.
func (d *Driver) replaceHome(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	k := &homeKeeper{ended: make(chan struct{})}
	var life context.Context
	life, k.end = context.WithCancel(d.lifetime)
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		k.end()
		return errClosed
	}
	before := d.homes[id]
	d.homes[id] = k
	d.mu.Unlock()
	err := d.endServer(ctx, id, before)
	if errors.Is(err, errKept) { // it will never do anything again, and has let go of QEMU
		d.log.WarnContext(ctx, "the server of a member's home was killed, and the kernel keeps it until a directory of the member answers", "member", id)
		err = os.Remove(d.path(id, fileServer))
	}
	pid := 0
	if err == nil {
		pid, err = d.serveHome(ctx, m)
	}
	go func() { // which tries again where that failed: a guest without its files stands still
		defer close(k.ended)
		d.watchHome(life, m, pid)
	}()
	return err
}

// newKeeper notes that a member's home is served; nil where it is already.
func (d *Driver) newKeeper(id string) (*homeKeeper, context.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed
	}
	if d.homes[id] != nil {
		return nil, nil, nil
	}
	k := &homeKeeper{ended: make(chan struct{})}
	var life context.Context
	life, k.end = context.WithCancel(d.lifetime)
	d.homes[id] = k
	return k, life, nil
}

// watchHome starts a server again whenever it has ended.
func (d *Driver) watchHome(ctx context.Context, m driver.Member, pid int) {
	for ctx.Err() == nil {
		if pid != 0 && waitProcess(ctx, pid) != nil {
			return
		}
		if ctx.Err() != nil {
			return
		}
		var err error
		if pid, err = d.serveHome(ctx, m); err != nil {
			if ctx.Err() != nil {
				return
			}
			d.log.ErrorContext(ctx, "the home of a member is not served; trying again", "member", m.Assignment.ID, "error", err)
			pid = 0
			select {
			case <-time.After(restartWait):
			case <-ctx.Done():
			}
			continue
		}
		d.log.WarnContext(ctx, "the server of a member's home had ended and was started again", "member", m.Assignment.ID)
	}
}

// endHome ends the server of a member's home.
func (d *Driver) endHome(ctx context.Context, id string) error {
	d.mu.Lock()
	k := d.homes[id]
	delete(d.homes, id)
	d.mu.Unlock()
	return d.endServer(ctx, id, k)
}

// What a server of a home has for its end: first to let go of QEMU, and then, killed, in the kernel.
const (
	letGoWait = time.Second
	killWait  = 5 * time.Second
)

// errKept: a process was killed, and is in the kernel until a file system answers that it has written to.
var errKept = errors.New("it was killed, and waits for a directory of its member that does not answer; see whether the node that has it is up")

// endServer ends the server of a member's home, and what keeps it running; nil: nothing does. Where the kernel keeps the process, that is errKept: it
// does nothing more by itself, and has let go of QEMU before.
func (d *Driver) endServer(ctx context.Context, id string, k *homeKeeper) error {
	if k != nil {
		k.end()
		<-k.ended
	}
	pid, err := d.homePID(id)
	if err != nil || pid == 0 {
		return err
	}
	for _, end := range []struct {
		by   unix.Signal
		wait time.Duration
	}{{unix.SIGTERM, letGoWait}, {unix.SIGKILL, killWait}} {
		if err := unix.Kill(pid, end.by); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		waiting, stop := context.WithTimeout(ctx, end.wait)
		err = waitProcess(waiting, pid)
		stop()
		if err == nil {
			return nil
		}
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errKept
	}
	return fmt.Errorf("the server of its home does not end: %w", err)
}

// homePID is the process of the server of a member's home, 0 when there is none.
func (d *Driver) homePID(id string) (int, error) {
	pid, _, err := d.homeProcess(id)
	return pid, err
}

// homeProcess is the process of the server of a member's home with its arguments, 0 when there is none. The file says which it should be, and the
// process whether it is.
func (d *Driver) homeProcess(id string) (pid int, args []string, err error) {
	text, err := os.ReadFile(d.path(id, fileServer))
	if errors.Is(err, os.ErrNotExist) {
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
	args = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if err != nil || len(args) < 2 || args[0] != homeserver.Name || args[1] != uuidText(d.domainUUID(id)) {
		return 0, nil, nil //nolint:nilerr // the process has ended
	}
	return pid, args, nil
}

// exportsNow are what the server of a member's files exports.
func (d *Driver) exportsNow(id string) ([]string, error) {
	pid, args, err := d.homeProcess(id)
	if err != nil || pid == 0 {
		return nil, err
	}
	return homeserver.Exports(args), nil
}

// exportsOf are what a member is to be served, in the order in which it is opened.
func exportsOf(m driver.Member) []string {
	var all []string
	if m.HomeDir != "" {
		all = append(all, nfs.Home)
	}
	for _, v := range m.Mounts {
		all = append(all, v.Path)
	}
	if m.GPUServer != nil {
		all = append(all, frontEndsDir)
	}
	return all
}

// serveHome starts the server of a member's home unless there is one, and returns its process.
func (d *Driver) serveHome(ctx context.Context, m driver.Member) (int, error) {
	id := m.Assignment.ID
	if pid, err := d.homePID(id); err != nil || pid != 0 {
		return pid, err
	}
	socket, err := d.listenHome(m)
	if err != nil {
		return 0, err
	}
	defer func() { _ = socket.Close() }()
	all, closeTrees, err := d.openServed(ctx, m)
	if err != nil {
		return 0, err
	}
	defer closeTrees()
	program, err := d.homeProgram()
	if err != nil {
		return 0, err
	}
	defer func() { _ = program.Close() }()
	pid, orders, answers, err := d.startHome(m, program, socket, all)
	if err != nil {
		return 0, err
	}
	defer func() { _ = answers.Close() }()
	defer func() { _ = orders.Close() }() // without an order before, that ends it
	said := make([]byte, mostSaid)
	n, err := readUntil(ctx, answers, said)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // which it is anyway without an order, if it still hears
		return 0, fmt.Errorf("it did not become ready: %w", err)
	}
	if string(said[:n]) != homeserver.Ready {
		return 0, fmt.Errorf("it did not become ready: %s", strings.ToValidUTF8(string(said[:n]), "?"))
	}
	groups, err := d.groups()
	if err == nil {
		err = groups.Join(id, pid)
	}
	if err != nil {
		return 0, fmt.Errorf("limiting it as its machine is: %w", err)
	}
	at := d.path(id, fileServer)
	if err := errors.Join(os.WriteFile(at+".new", []byte(strconv.Itoa(pid)), 0o600), os.Rename(at+".new", at)); err != nil {
		return 0, err
	}
	failpoint.Hit("vm.after-home")
	_, err = orders.WriteString(homeserver.Go)
	return pid, err
}

// readUntil reads what a server says, for as long as it may take to be ready. Its end is no error.
func readUntil(ctx context.Context, from *os.File, said []byte) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.Limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := from.Read(said)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// listenHome makes the socket that QEMU connects to, as the cluster's user.
func (d *Driver) listenHome(m driver.Member) (*os.File, error) {
	id, user := m.Assignment.ID, int(m.Assignment.UserIDs.First)
	dir, err := os.OpenRoot(d.path(id, dirLink))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Remove(fileHome); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	// The path through the open directory is short enough for an address.
	open, err := os.Open(d.path(id, dirLink))
	if err != nil {
		return nil, err
	}
	defer func() { _ = open.Close() }()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", open.Fd(), fileHome), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	defer func() { _ = listener.Close() }()
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(dir.Chmod(fileHome, 0o600), dir.Lchown(fileHome, user, user)); err != nil {
		return nil, err
	}
	return listener.File()
}

// servedTree is a directory that a member's guest is served.
type servedTree struct {
	export string
	file   *os.File
}

// openServed opens what a member's guest is served: its home, its volumes, whose exports are their paths in the guest, and the front ends of its remote GPUs.
func (d *Driver) openServed(ctx context.Context, m driver.Member) (all []servedTree, closeAll func(), err error) {
	closeAll = func() {
		for _, t := range all {
			_ = t.file.Close()
		}
	}
	open := func(what, export, source string, readOnly bool) {
		if errors.Is(err, patience.ErrSilent) {
			return // no more time is spent
		}
		file, openErr := patience.Ask(ctx, &d.questions, source, func() (*os.File, error) { return openTree(source, readOnly) }, func(f *os.File) { _ = f.Close() })
		if openErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", what, openErr))
			return
		}
		all = append(all, servedTree{export, file})
	}
	if m.HomeDir != "" {
		open("its home", nfs.Home, m.HomeDir, false)
	}
	for _, v := range m.Mounts {
		open("the volume at "+v.Path, v.Path, v.Source, v.ReadOnly)
	}
	folder, _, has, frontErr := d.frontEndsOf(m)
	if err = errors.Join(err, frontErr); has {
		open("the programs of remote GPUs", frontEndsDir, folder, true)
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return all, closeAll, nil
}

// openTree opens a directory as a tree of its own, from which nothing above it is reached. The kernel refuses changes by way of a read-only one.
func openTree(path string, readOnly bool) (*os.File, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	// Not noexec: whoever asks whether a file may be executed would hear that it may not.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, errors.Join(fmt.Errorf("set attributes of %s: %w", path, err), unix.Close(tree))
	}
	return os.NewFile(uintptr(tree), path), nil
}

// homeProgram is the program that serves homes, as a file: all servers share its pages.
func (d *Driver) homeProgram() (*os.File, error) {
	d.boots.Lock()
	defer d.boots.Unlock()
	at := filepath.Join(d.cfg.StateDir, "libvirt", "home-program")
	if d.program {
		if file, err := os.Open(at); err == nil {
			return file, nil
		}
	}
	program, err := d.cfg.HomeServer()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return nil, err
	}
	// Renamed: one that runs is not written to.
	if err := errors.Join(os.WriteFile(at+".new", program, 0o755), os.Rename(at+".new", at)); err != nil {
		return nil, err
	}
	d.program = true
	return os.Open(at)
}

// startHome starts a server, and returns the files by which it takes its order and answers.
func (d *Driver) startHome(m driver.Member, program, socket *os.File, all []servedTree) (pid int, orders, answers *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = null.Close() }()
	hears, orders, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = hears.Close() }()
	answers, says, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, errors.Join(err, orders.Close())
	}
	a := &m.Assignment
	mapping := []syscall.SysProcIDMap{{HostID: int(a.UserIDs.First), Size: int(a.UserIDs.Count)}}
	args := []string{homeserver.Name, uuidText(d.domainUUID(a.ID)), cpuset(a.CPUs)}
	files := []*os.File{
		homeserver.FileOrders: hears, homeserver.FileAnswers: says, 2: null, homeserver.FileProgram: program, homeserver.FileSocket: socket,
	}
	for _, t := range all {
		args, files = append(args, t.export), append(files, t.file)
	}
	process, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", homeserver.FileProgram), args, &os.ProcAttr{
		Dir: "/", Env: []string{},
		Files: files,
		Sys: &syscall.SysProcAttr{
			Cloneflags: homeserver.Namespaces, UidMappings: mapping, GidMappings: mapping, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{}, Setsid: true,
		},
	})
	_ = says.Close()
	if err != nil {
		return 0, nil, nil, errors.Join(fmt.Errorf("starting it: %w", err), orders.Close(), answers.Close())
	}
	go func() { _, _ = process.Wait() }()
	return process.Pid, orders, answers, nil
}
