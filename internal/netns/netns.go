// Package netns does things inside network namespaces.
//
// A namespace belongs to a thread, and Go moves goroutines between threads at will, so everything that happens inside
// one goes through Handle.Do. It must never make anything persistent: a namespace made here lasts as long as its handle,
// a process or a bind mount holds it. Start reading at Do.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// threadFile opens the network namespace of the thread that opens it.
const threadFile = "/proc/thread-self/ns/net"

// Handle is an open network namespace.
type Handle struct {
	file *os.File
}

// Open opens the network namespace at a path such as /proc/PID/ns/net.
func Open(path string) (Handle, error) {
	file, err := os.Open(path)
	if err != nil {
		return Handle{}, fmt.Errorf("opening a network namespace: %w", err)
	}
	return Handle{file: file}, nil
}

// Current opens the network namespace of the calling thread.
func Current() (Handle, error) { return Open(threadFile) }

// New makes a network namespace. Only its loopback link is in it, down.
func New() (Handle, error) {
	var made Handle
	err := OnThrowawayThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("making a network namespace: %w", err)
		}
		made, err = Current()
		return err
	})
	return made, err
}

// OnThrowawayThread calls f on a thread that ends with it, whatever f did to its namespaces, and waits for it.
func OnThrowawayThread(f func() error) error {
	return onOwnThread(func() error {
		defer runtime.LockOSThread() // against the unlocking to come: the runtime ends a locked thread with its goroutine
		return f()
	})
}

// Do calls f on a thread inside the namespace and waits for it. A thread that can't come back is not used again.
func (h Handle) Do(f func() error) error {
	return onOwnThread(func() error {
		home, err := os.Open(threadFile)
		if err != nil {
			return fmt.Errorf("opening this thread's network namespace: %w", err)
		}
		defer home.Close()
		if err := h.Enter(); err != nil {
			return err
		}
		defer func() {
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) != nil {
				runtime.LockOSThread()
			}
		}()
		return f()
	})
}

// onOwnThread calls f on a thread that nothing else runs on meanwhile, and waits for it. It is never the first thread of the
// process: that one can't be ended, and stands for the whole process in /proc/PID/ns and /proc/self.
func onOwnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		defer close(result) // also when f ends its goroutine, as a failing test does
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() {
			result <- onOwnThread(f) // on another one, as this one is taken
			return
		}
		result <- f()
	}()
	return <-result
}

// Path opens the namespace again as long as the handle is open, in this process and its children.
func (h Handle) Path() string {
	return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(h.FD())
}

// FD is the descriptor, for messages to the kernel that name a namespace by one.
func (h Handle) FD() int { return int(h.file.Fd()) }

// Enter moves the calling thread into the namespace for good; it belongs on a throwaway thread.
func (h Handle) Enter() error {
	if err := unix.Setns(h.FD(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", h.file.Name(), err)
	}
	return nil
}

// Inode tells namespaces apart.
func (h Handle) Inode() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(h.FD(), &stat); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}

// Close lets go of the namespace; closing twice is no error.
func (h Handle) Close() error {
	if err := h.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
