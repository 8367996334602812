package nodespace

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// Start starts cmd inside the space, in a session of its own: it lives on when the caller is killed, and has the PID
// cmd.Process.Pid on the host. cmd.Path must be absolute; an empty cmd.Dir means the caller's working directory.
func Start(space Space, cmd *exec.Cmd) error {
	if cmd.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("finding the working directory: %w", err)
		}
		cmd.Dir = dir
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	// A new process is in the namespaces of the thread that starts it, which are not those of the other threads.
	err := netns.OnThrowawayThread(func() error {
		if err := enter(space); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		return fmt.Errorf("starting %s on node %s: %w", cmd.Path, space.Name, err)
	}
	return nil
}

// enter moves the calling thread, which is not used again, into the space. The mount namespace comes last: the paths of
// the pins lead nowhere inside.
func enter(space Space) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for _, path := range []string{space.NetNS, space.UTSNS, space.MountNS} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening %s: %w", path, err)
		}
		fds = append(fds, fd)
	}
	// Threads share root and working directory unless told otherwise, and those who share can't change mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("separating the thread from the others: %w", err)
	}
	for i, kind := range []int{unix.CLONE_NEWNET, unix.CLONE_NEWUTS, unix.CLONE_NEWNS} {
		if err := unix.Setns(fds[i], kind); err != nil {
			return fmt.Errorf("entering namespace %d of 3: %w", i+1, err)
		}
	}
	return nil
}
