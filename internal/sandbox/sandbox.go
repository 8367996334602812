// Package sandbox is the process that holds the namespaces which the members of one cluster on one node share, so that their ranks
// exchange messages through memory: user IDs, processes and System V IPC. It is the first process of the PID namespace; Kubernetes calls
// the like of it a pause container.
//
// It must never do anything for the members: whatever it did, a tenant could try to misuse. It has no files, no network, no signal
// handlers and no environment, and it reaps orphans by ignoring their ends. Start with Hold; package driver/container starts it.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Name is argument 0 of a sandbox: the program it is part of is started as one by that name.
const Name = "nearmetal-sandbox"

// The descriptors that a sandbox is started with.
const (
	// FileOrders is read from: Go once its maker has put it where it belongs. Its end instead means that its maker has died.
	FileOrders = 0
	// FileAnswers is written to: Ready, or what went wrong. Both are closed once the order was obeyed.
	FileAnswers = 1
	// FileProgram is the program itself, by which it was started without its path being reachable.
	FileProgram = 3
)

// What is said over the descriptors.
const (
	Ready = "ready"
	Go    = "go"
)

// Namespaces are those that a sandbox is made with. Members share the first three; the others are its own, so that nothing of the host is
// seen by way of its entry in members' /proc: mounts, sockets, control groups.
const (
	Shared     = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWIPC
	Namespaces = Shared | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
)

// Hold is the life of a sandbox. It returns only when it can't become one.
func Hold() error {
	debug.SetGCPercent(-1) // it never allocates again
	if err := prepare(); err != nil {
		_, _ = unix.Write(FileAnswers, []byte(err.Error()))
		return err
	}
	if _, err := unix.Write(FileAnswers, []byte(Ready)); err != nil {
		return fmt.Errorf("telling that it is ready: %w", err)
	}
	order := make([]byte, len(Go))
	if n, err := unix.Read(FileOrders, order); err != nil || string(order[:n]) != Go {
		return errors.New("its maker has died")
	}
	if err := deaf(); err != nil {
		return err
	}
	for fd := range FileProgram { // by which its maker sees that it is on its own
		_ = unix.Close(fd)
	}
	for {
		_ = unix.Pause()
	}
}

// comm is what top and ps show of it: 15 bytes at most, prctl(2).
var comm = []byte("nm-sandbox\x00")

// prepare gives up all that the process was born with, but for its capabilities in its user namespace: nobody in the members has all of them, so
// that nobody there reads its memory or follows its links in /proc (ptrace(2), "Ptrace access mode checking").
func prepare() error {
	os.Clearenv()
	if err := unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&comm[0])), 0, 0, 0); err != nil {
		return fmt.Errorf("naming itself: %w", err)
	}
	if err := closeInherited(); err != nil {
		return fmt.Errorf("closing the files that it inherited: %w", err)
	}
	if err := emptyRoot(); err != nil {
		return fmt.Errorf("entering an empty root: %w", err)
	}
	return nil
}

// closeInherited closes all but what its maker and it say to each other, and the Go runtime's own files, which lead nowhere.
func closeInherited() error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		target, _ := os.Readlink(dir + "/" + e.Name()) // that of the directory's own descriptor is gone
		if err == nil && fd >= FileProgram && target != "" && !strings.HasPrefix(target, "anon_inode:[event") {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// emptyRoot makes an empty file system that can't be written to the root, and lets go of all others.
func emptyRoot() error {
	const place = "/proc" // there on every host, and of no more use here
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=0555,size=4k,nr_inodes=2"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	if err := unix.Chdir(place); err != nil {
		return err
	}
	// pivot_root(".", ".") stacks the old root on the new one, where it is unmounted: pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the old root: %w", err)
	}
	return unix.Chdir("/")
}

// signals is the number of signals, signal(7).
const signals = 64

// deaf takes back the Go runtime's signal handlers. The kernel then drops every signal that comes from within the namespace, since the
// first process there must not be ended by it (pid_namespaces(7)); with handlers, a SIGTERM or SIGSEGV from a member's root would end it.
// SIGCHLD is ignored, which has the kernel reap the orphans that it inherits: waitpid(2), NOTES.
func deaf() error {
	for n := unix.Signal(1); n <= signals; n++ {
		if n == unix.SIGKILL || n == unix.SIGSTOP || n == 32 || n == 33 { // of the C library's threads; Go leaves them alone
			continue
		}
		var action [4]uintptr // struct sigaction of the kernel: the handler comes first, and 0 is SIG_DFL
		if n == unix.SIGCHLD {
			action[0] = 1 // SIG_IGN
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
			return fmt.Errorf("taking back the handler of signal %d: %w", n, errno)
		}
	}
	return nil
}
