package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/pidfd"
	"github.com/nearmetal/nearmetal/internal/sandbox"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// Members that share memory are in three namespaces of their cluster on this node: of user IDs, of processes, and of System V IPC. A
// sandbox, which does nothing else, holds them. It is found by its control group, and ends with the last member.

// sandboxGroup is the name of a cluster's sandbox among the control groups of members. No member's ID begins like it: see validName.
func sandboxGroup(clusterUID string) string { return "." + clusterUID }

// sharedSpaces are the namespaces of a cluster's sandbox, open.
type sharedSpaces struct{ user, pid, ipc *os.File }

func (s *sharedSpaces) close() {
	if s == nil {
		return
	}
	for _, file := range []*os.File{s.user, s.pid, s.ipc} {
		if file != nil {
			_ = file.Close()
		}
	}
}

// path is how an OCI runtime, which is another process, finds an open namespace: by its number it can't be taken for another.
func (s *sharedSpaces) path(file *os.File) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
}

// sharing begins to make ready what a member shares; what it returns waits for that.
func (d *Driver) sharing(ctx context.Context, h *host, m driver.Member) func() (*sharedSpaces, error) {
	wait := sync.OnceValues(func() (*sharedSpaces, error) { return d.shareSpaces(ctx, h, m) })
	go func() { _, _ = wait() }()
	return wait
}

// shareSpaces opens the namespaces of a member's cluster, and makes them if it is the first one on this node; nil for a member that has its
// own. The member's directory must be there, which is what keeps its sandbox from being ended.
func (d *Driver) shareSpaces(ctx context.Context, h *host, m driver.Member) (*sharedSpaces, error) {
	if !m.Assignment.SharesMemory {
		return nil, nil
	}
	opening, opened := tracing.Stage(ctx, "sandbox")
	spaces, err := d.openSandbox(opening, h, m)
	opened(err)
	if err != nil {
		return nil, fmt.Errorf("the sandbox of its cluster: %w", err)
	}
	return spaces, nil
}

func (d *Driver) openSandbox(ctx context.Context, h *host, m driver.Member) (*sharedSpaces, error) {
	d.sandboxes.Lock()
	defer d.sandboxes.Unlock()
	group := sandboxGroup(m.Assignment.ClusterUID)
	pids, err := h.cgroups.Processes(group)
	if err != nil {
		return nil, err
	}
	if len(pids) == 1 && letGo(pids[0]) {
		if spaces, err := h.openSpaces(group, pids[0]); err == nil {
			return spaces, nil
		}
	}
	if err := d.endSandbox(ctx, h, group); err != nil { // the rest of one that has ended, or was being made when its agent died
		return nil, err
	}
	return d.makeSandbox(h, group, m)
}

// letGo tells whether a sandbox has got its order: then it has closed what it gets it by. One that never got it ends in a moment.
func letGo(pid int) bool {
	return !exists(fmt.Sprintf("/proc/%d/fd/%d", pid, sandbox.FileOrders))
}

// openSpaces opens the namespaces of a process, and then makes sure that it is the sandbox.
func (h *host) openSpaces(group string, pid int) (*sharedSpaces, error) {
	s := &sharedSpaces{}
	for name, file := range map[string]**os.File{"user": &s.user, "pid": &s.pid, "ipc": &s.ipc} {
		var err error
		if *file, err = os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name)); err != nil {
			s.close()
			return nil, err
		}
	}
	if !h.cgroups.Contains(group, pid) {
		s.close()
		return nil, errors.New("it has just ended")
	}
	return s, nil
}

// makeSandbox starts a sandbox, puts it into its control group, bounds its IPC, and lets it go. It ends by itself when the agent dies before.
func (d *Driver) makeSandbox(h *host, group string, m driver.Member) (*sharedSpaces, error) {
	pid, orders, answers, err := d.startSandbox(m)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Close() }()
	defer func() { _ = orders.Close() }() // without an order before, that ends it
	if err := d.adopt(h, group, pid, true); err != nil {
		return nil, err
	}
	if err := h.cgroups.Enter(group, pid); err != nil {
		return nil, err
	}
	failpoint.Hit("container.after-sandbox-group")
	spaces, err := h.openSpaces(group, pid)
	if err != nil {
		return nil, err
	}
	err = errors.Join(boundIPC(spaces.ipc, m.Assignment.UserIDs.First), awaitReady(answers))
	if err == nil {
		_, err = orders.WriteString(sandbox.Go)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, answers) // it closes its end once it is on its own
	}
	if err != nil {
		spaces.close()
		return nil, err
	}
	failpoint.Hit("container.after-sandbox")
	return spaces, nil
}

// startSandbox starts a sandbox, and returns the files by which it takes its order and answers.
func (d *Driver) startSandbox(m driver.Member) (pid int, orders, answers *os.File, err error) {
	program, err := os.Open(d.cfg.MemberBinary)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = program.Close() }()
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
	ids := m.Assignment.UserIDs
	mapping := []syscall.SysProcIDMap{{HostID: int(ids.First), Size: int(ids.Count)}}
	process, err := os.StartProcess(fmt.Sprintf("/proc/self/fd/%d", sandbox.FileProgram), []string{sandbox.Name}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{sandbox.FileOrders: hears, sandbox.FileAnswers: says, 2: null, sandbox.FileProgram: program},
		Sys: &syscall.SysProcAttr{
			Cloneflags: sandbox.Namespaces, UidMappings: mapping, GidMappings: mapping, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{},
		},
	})
	_ = says.Close()
	if err != nil {
		return 0, nil, nil, errors.Join(fmt.Errorf("starting it: %w", err), orders.Close(), answers.Close())
	}
	pid = process.Pid
	return pid, orders, answers, process.Release() // adopt waits for it, as for any first process
}

// awaitReady waits until a sandbox is ready. One that can't be says why, and ends.
func awaitReady(answers io.Reader) error {
	said, err := io.ReadAll(io.LimitReader(answers, int64(len(sandbox.Ready))))
	if err == nil && string(said) == sandbox.Ready {
		return nil
	}
	more, _ := io.ReadAll(io.LimitReader(answers, 1000))
	return errors.Join(fmt.Errorf("it did not become ready: %s", readable(append(said, more...))), err)
}

// endSandboxes ends the sandboxes of clusters of which no member has a directory on this node any more.
func (d *Driver) endSandboxes(ctx context.Context, h *host) error {
	d.sandboxes.Lock()
	defer d.sandboxes.Unlock()
	groups, err := h.cgroups.Sandboxes()
	if err != nil || len(groups) == 0 {
		return err
	}
	entries, err := os.ReadDir(d.members)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("listing members: %w", err)
	}
	for _, group := range groups {
		inUse := slices.ContainsFunc(entries, func(e os.DirEntry) bool { return sandboxOf(e.Name()) == group })
		if inUse {
			continue
		}
		if err := d.endSandbox(ctx, h, group); err != nil {
			return err
		}
	}
	return nil
}

// sandboxOf is the sandbox that a member has if it shares memory: an assignment's ID begins with its cluster's UID (api.Assignment).
func sandboxOf(id string) string {
	uid, _, _ := strings.Cut(id, ".")
	return sandboxGroup(uid)
}

// endSandbox ends a sandbox. It is gone when it has left its control group: the kernel keeps the first process of a PID namespace for as long as any
// other is on the process table, and those of an agent that was killed are for somebody else to take off.
func (d *Driver) endSandbox(ctx context.Context, h *host, group string) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := h.cgroups.Processes(group)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			if err := h.signalSandbox(group, pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of sandbox %s did not end: %w", len(pids), group, ctx.Err())
		case <-time.After(wait):
		}
	}
	reaping, done := context.WithTimeout(ctx, pidfd.ReapTime)
	defer done()
	_ = d.awaitReaped(reaping, group) // as a rule it is, and then nothing at all is left
	d.disown(group)
	return h.cgroups.Remove(ctx, group)
}

func (h *host) signalSandbox(group string, pid int) error {
	p, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !h.cgroups.Contains(group, pid) {
		return nil
	}
	return p.Signal(unix.SIGKILL)
}

// ipcBounds are what the namespace of System V IPC and POSIX message queues is held to, sysctl by sysctl (proc_sys_kernel(5),
// mq_overview(7)). Shared memory is charged to the member that first touches it, so that its own limit bounds it; a segment that nobody
// has attached is removed, so that none outlives its processes. Messages and semaphores outlive them, and are held to a few MiB.
var ipcBounds = []struct{ name, value string }{
	{"kernel/shm_rmid_forced", "1"},
	{"kernel/msgmni", "64"},
	{"kernel/msgmnb", "65536"},
	{"kernel/sem", "250 32000 100 128"},
	{"fs/mqueue/queues_max", "16"},
}

// boundIPC bounds an IPC namespace. The files show the namespace of the thread that opens them. Newer kernels (seen with 6.18) give them to
// the root of the user namespace that owns it and to nobody else, so the host's root becomes that one for as long.
func boundIPC(space *os.File, root uint32) error {
	result := make(chan error, 1)
	go onOwnThread(func() {
		result <- func() error {
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWIPC); err != nil {
				return fmt.Errorf("entering its IPC namespace: %w", err)
			}
			for _, bound := range ipcBounds {
				if err := writeIPC(filepath.Join("/proc/sys", bound.name), bound.value, root); err != nil {
					return fmt.Errorf("setting %s in its IPC namespace: %w", strings.ReplaceAll(bound.name, "/", "."), err)
				}
			}
			return nil
		}()
	})
	return <-result
}

// writeIPC writes as the host's root, or else as the namespace's. The system call changes this thread alone; package unix would change all.
func writeIPC(path, value string, root uint32) error {
	err := os.WriteFile(path, []byte(value), 0)
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return err
	}
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(root), keep); errno != 0 {
		return errno
	}
	err = os.WriteFile(path, []byte(value), 0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno != 0 {
		return errors.Join(err, errno)
	}
	return err
}
