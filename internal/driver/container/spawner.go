package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// spawner runs the OCI runtime from a thread that lives in a mount namespace of its own. The host's mounts propagate in and
// none propagates out, so there it may do what the host must not see: take away a hybrid cgroup v2 tree, which crun refuses
// to run beside, and mount the staging file system. All of it vanishes with the process, whatever way that ends.
//
// Staging is a tmpfs that holds the members' root skeletons. They can't be in the state directory: a runtime enters the
// root as the member's mapped root, who may not search a state directory that only the host's root may.
type spawner struct {
	staging  string
	requests chan func()
	done     chan struct{}
	close    sync.Once
}

// stagingPlaces are directories that are empty on most machines; mounting on an empty one hides nothing.
var stagingPlaces = []string{"/mnt", "/media", "/srv", "/opt", "/boot/efi", "/sys/fs/fuse/connections", "/sys/kernel/debug"}

// newSpawner starts the thread. hybrid is the mount point to take away, or "".
func newSpawner(hybrid string) (*spawner, error) {
	staging, err := emptyPlace(stagingPlaces)
	if err != nil {
		return nil, err
	}
	s := &spawner{staging: staging, requests: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go s.run(hybrid, ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("making a mount namespace for the OCI runtime: %w", err)
	}
	return s, nil
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
	return "", fmt.Errorf("members' roots need an empty directory to be mounted on, and none of %s is one; make one: mkdir -p /media",
		strings.Join(places, ", "))
}

// run is the thread. It is never unlocked: when run returns, the thread ends and its namespace with it. It must not be the main
// thread, whose namespaces /proc/self shows and which outlives its goroutine.
func (s *spawner) run(hybrid string, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		started := make(chan error)
		go s.run(hybrid, started) // on another thread, since this one stays taken until it has started
		ready <- <-started
		return
	}
	err := s.enter(hybrid)
	ready <- err
	if err != nil {
		return
	}
	for {
		select {
		case f := <-s.requests:
			f()
		case <-s.done:
			return
		}
	}
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
	}
	if err := unix.Mount("tmpfs", s.staging, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=64m"); err != nil {
		return fmt.Errorf("mounting a tmpfs on %s: %w", s.staging, err)
	}
	return nil
}

// do runs f on the thread and returns what it returned.
func (s *spawner) do(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case s.requests <- func() { result <- f() }:
		return <-result
	case <-s.done:
		return errors.New("the container driver is closed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start starts a command in the namespace; the caller waits for it. The command dies with this thread, so a runtime that is
// at work when the agent is killed can't go on to make what the next agent has just cleaned.
func (s *spawner) start(ctx context.Context, cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &unix.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	return s.do(ctx, cmd.Start)
}

// stop ends the thread.
func (s *spawner) stop() { s.close.Do(func() { close(s.done) }) }

// stagingRoot is where a member's root skeleton is, in the namespace only.
func (s *spawner) stagingRoot(id string) string { return filepath.Join(s.staging, id) }
