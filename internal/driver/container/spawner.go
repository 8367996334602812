package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner runs the OCI runtime from threads that live in a mount namespace of their own. The host's mounts propagate in and
// none propagates out, so there it may do what the host must not see: take away a hybrid cgroup v2 tree, which crun refuses
// to run beside, and mount the staging file system. All of it vanishes with the process, whatever way that ends.
//
// Staging is a tmpfs. It holds, for each member, the root and the OCI bundle, and the runtime's own records. The root can't be
// in the state directory, because a runtime enters it as the member's mapped root, who may not search a directory that is the
// host root's alone. And memory is where it belongs: keys never reach a disk, nothing of it is left after a crash, and making
// some sixty files for each member costs next to nothing. A running member's root lives on in its own mount namespace.
type spawner struct {
	staging string // path in the namespace
	dir     *os.File
	jobs    chan func()
	done    chan struct{}
	close   sync.Once
}

// stagingPlaces are directories that are empty on most machines; mounting on an empty one hides nothing.
var stagingPlaces = []string{"/mnt", "/media", "/srv", "/opt", "/boot/efi", "/sys/fs/fuse/connections", "/sys/kernel/debug"}

// newSpawner starts the threads, as many as there can be at work at once. hybrid is the mount point to take away, or "".
func newSpawner(hybrid string) (*spawner, error) {
	staging, err := emptyPlace(stagingPlaces)
	if err != nil {
		return nil, err
	}
	s := &spawner{staging: staging, jobs: make(chan func()), done: make(chan struct{})}
	var namespace *os.File
	err = s.addThread(func() (err error) {
		if err := s.enter(hybrid); err != nil {
			return err
		}
		if namespace, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return err
		}
		s.dir, err = os.Open(staging)
		return err
	})
	for i := 1; err == nil && i < runtime.GOMAXPROCS(0); i++ {
		err = s.addThread(func() error { return join(namespace) })
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("making a mount namespace for the OCI runtime: %w", err)
	}
	return s, namespace.Close()
}

// emptyPlace returns the first empty directory that everyone may search.
func emptyPlace(places []string) (string, error) {
	for _, place := range places {
		entries, err := os.ReadDir(place)
		info, statErr := os.Stat(place)
		if err == nil && len(entries) == 0 && statErr == nil && info.Mode()&0o001 != 0 {
			return place, nil
		}
	}
	return "", fmt.Errorf("members' roots need an empty directory as a mount point, but none of %s is empty; make one: mkdir -p /media",
		strings.Join(places, ", "))
}

// addThread starts a thread that does jobs once begin has succeeded on it.
func (s *spawner) addThread(begin func() error) error {
	ready := make(chan error)
	go onOwnThread(func() {
		err := begin()
		ready <- err
		if err != nil {
			return
		}
		for {
			select {
			case job := <-s.jobs:
				job()
			case <-s.done:
				return
			}
		}
	})
	return <-ready
}

// onOwnThread runs f on a thread that may change its namespaces, as it ends with f. It is never the main thread, whose namespaces
// /proc/self shows and which does not end with its goroutine.
func onOwnThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return // locked, so the runtime ends the thread
	}
	defer runtime.UnlockOSThread()
	moved := make(chan struct{})
	go onOwnThread(func() {
		close(moved)
		f()
	})
	<-moved // on another thread, since this one was taken until now
}

func (s *spawner) enter(hybrid string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making / a slave mount: %w", err)
	}
	if hybrid != "" {
		if err := unix.Unmount(hybrid, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmounting %s: %w", hybrid, err)
		}
		// The runtime makes directories where the tree was. Without this they would be real ones of the host, hidden below its mount.
		if err := unix.Mount("tmpfs", hybrid, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=1m"); err != nil {
			return fmt.Errorf("mounting a tmpfs on %s: %w", hybrid, err)
		}
	}
	if err := unix.Mount("tmpfs", s.staging, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711"); err != nil {
		return fmt.Errorf("mounting a tmpfs on %s: %w", s.staging, err)
	}
	return nil
}

// join moves the calling thread, which must be one of its own, into a mount namespace.
func join(namespace *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("joining %s: %w", namespace.Name(), err)
	}
	return nil
}

// do does something in the namespace, on one of its threads.
func (s *spawner) do(ctx context.Context, job func() error) error {
	result := make(chan error, 1)
	select {
	case s.jobs <- func() { result <- job() }:
		return <-result
	case <-s.done:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errClosed: the driver was closed meanwhile.
var errClosed = errors.New("the container driver is closed")

// start starts a command in the namespace; the caller waits for it. The command dies with the threads, so a runtime that is at
// work when the agent is killed can't go on to make what the next agent has just cleaned.
func (s *spawner) start(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return s.do(ctx, cmd.Start)
}

// stop ends the threads. The directory is left to the garbage collector: paths through its descriptor may be in use.
func (s *spawner) stop() { s.close.Do(func() { close(s.done) }) }

// In the namespace, a member's staged files are below memberDir and the runtime's records below runtimeDir; outside of it,
// through the open directory, below the paths that outside returns.
func (s *spawner) memberDir(id string) string  { return filepath.Join(s.staging, "members", id) }
func (s *spawner) imagesDir() string           { return filepath.Join(s.staging, "images") }
func (s *spawner) volumesDir(id string) string { return filepath.Join(s.staging, "volumes", id) }
func (s *spawner) runtimeDir() string          { return filepath.Join(s.staging, "runtime") }

// outside translates a path in the namespace to one that any thread of this process can use.
func (s *spawner) outside(path string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(s.dir.Fd())) + strings.TrimPrefix(path, s.staging)
}
