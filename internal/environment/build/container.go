package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// userBase is the host's user ID of the container's root, and userCount how many IDs there are: more than any system user has.
const (
	userBase  = 2_000_000_000
	userCount = 65536
	// maxProcesses is more than compiling on any node takes, and less than a fork bomb.
	maxProcesses = 8192
)

// container runs commands in the tree that is being made.
type container struct {
	// root is the tree as the container sees it.
	root string
	// user: it has a user namespace of its own, its root is nobody on the node.
	user bool
	// network: it shares the node's network, to reach mirrors. Else it has none.
	network bool
	// binds are files of the node that it sees, read-only, by their path inside.
	binds map[string]string
}

// capabilities are what installing software needs: to own, change and run as anybody inside. None reaches devices, mounts or the kernel.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// enter prepares a container on w.tree. With user namespaces and idmapped mounts (Linux 5.12) the tree keeps its owners on disk while the
// container's root is an unprivileged user of the node; on file systems that can't (an overlay), dropped capabilities must do.
func (w *worker) enter(network bool) (container, error) {
	c := container{root: w.tree, network: network, binds: map[string]string{}}
	mapped := filepath.Join(w.open, "root")
	if err := os.MkdirAll(mapped, 0o755); err != nil {
		return c, err
	}
	if err := mountMapped(w.tree, mapped); err != nil {
		fmt.Fprintln(w.log, "I: commands in the root run without a user namespace:", err)
	} else {
		c.root, c.user = mapped, true
	}
	return c, nil
}

// leave undoes enter.
func (w *worker) leave(c container) error {
	if !c.user {
		return nil
	}
	return unix.Unmount(c.root, unix.MNT_DETACH)
}

// mountMapped shows a directory at target with user 0 as userBase, and so on (mount_setattr(2)).
func mountMapped(dir, target string) (err error) {
	holder := exec.Command("/bin/cat") // it reads a pipe until that is closed
	pipe, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	ids := []syscall.SysProcIDMap{{HostID: userBase, Size: userCount}}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	if err := holder.Start(); err != nil {
		return fmt.Errorf("make a user namespace: %w", err)
	}
	defer func() { err = errors.Join(err, pipe.Close(), holder.Wait()) }()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.Process.Pid))
	if err != nil {
		return err
	}
	defer namespace.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone the mount of the root: %w", err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("show the root with other owners: %w", err)
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// run runs a program in the container to its end.
func (w *worker) run(ctx context.Context, c container, output io.Writer, args ...string) error {
	spec, err := c.spec(args)
	if err != nil {
		return err
	}
	bundle, err := os.MkdirTemp(w.tmp, "bundle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bundle)
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600); err != nil {
		return err
	}
	// No cgroup of its own: it is in the build's.
	cmd := exec.CommandContext(ctx, "crun", "--root", filepath.Join(w.tmp, "crun"), "--cgroup-manager=disabled", "run", "--bundle", bundle, filepath.Base(bundle))
	cmd.Stdout, cmd.Stderr = output, output
	return cmd.Run()
}

// spec is the container's configuration (OCI runtime specification 1.0.2).
func (c container) spec(args []string) (*specs.Spec, error) {
	hidden := []string{"nosuid", "noexec", "nodev"}
	spec := &specs.Spec{
		Version: "1.0.2", Hostname: "build",
		Root: &specs.Root{Path: c.root},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: containerEnvironment(c.network),
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_CORE"},
				// It counts all of one user (getrlimit(2)); the root of a user namespace is one that has nothing else.
				{Type: "RLIMIT_NPROC", Soft: maxProcesses, Hard: maxProcesses},
			},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: hidden},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: append(hidden, "mode=1777", "size=65536k")},
			{Destination: "/run", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=755", "size=65536k"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			},
			MaskedPaths:   []string{"/proc/bootconfig", "/proc/cmdline", "/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/proc/scsi", "/proc/acpi", "/proc/asound"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	for target, source := range c.binds {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	if !c.network {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	if c.user {
		ids := []specs.LinuxIDMapping{{HostID: userBase, Size: userCount}}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = ids, ids
	}
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("render the system call filter: %w", err)
	}
	spec.Linux.Seccomp = profile
	return spec, nil
}

// containerEnvironment is the worker's; how to reach mirrors only where they can be reached.
func containerEnvironment(network bool) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "TMPDIR" && (network || !strings.HasSuffix(name, "_proxy")) {
			env = append(env, v)
		}
	}
	return env
}

// commands runs the recipe's commands, one after the other.
func (w *worker) commands(ctx context.Context) (err error) {
	c, err := w.enter(false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.leave(c)) }()
	for i, text := range w.Recipe.Commands {
		first, _, more := strings.Cut(strings.TrimSpace(text), "\n")
		if more {
			first += " ..."
		}
		fmt.Fprintf(w.log, "I: command %d of %d: %s\n", i+1, len(w.Recipe.Commands), first)
		last := &lastLines{log: w.log}
		err := w.run(ctx, c, last, "/bin/sh", "-e", "-c", text)
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && last.full():
			return last.explain(err)
		case errors.As(err, &exit):
			return failf("%s", strings.TrimSpace(fmt.Sprintf("%s ended with exit code %d: %s\n%s", w.command(i), exit.ExitCode(), first, last.text())))
		case err != nil:
			return fmt.Errorf("run %s: %w", w.command(i), err)
		}
	}
	return nil
}

// command names a command by its place in the recipe.
func (w *worker) command(i int) string {
	if i < len(w.Lines) && w.Lines[i] > 0 {
		return fmt.Sprintf("line %d of the recipe: commands[%d]", w.Lines[i], i)
	}
	return fmt.Sprintf("commands[%d]", i)
}

// lastLines passes on what is written and keeps the end of it.
type lastLines struct {
	log  io.Writer
	tail []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.tail = append(l.tail, p...)
	l.tail = l.tail[max(0, len(l.tail)-1000):]
	return l.log.Write(p)
}

// full tells whether a program said that its disk is.
func (l *lastLines) full() bool {
	return strings.Contains(string(l.tail), unix.ENOSPC.Error()) || strings.Contains(string(l.tail), "No space left on device")
}

// explain makes an error of what a program said last.
func (l *lastLines) explain(err error) error {
	if l.full() {
		return unix.ENOSPC
	}
	return fmt.Errorf("%w: %s", err, l.text())
}

func (l *lastLines) text() string {
	lines := strings.Split(strings.TrimSpace(string(l.tail)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}
