package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// insideVariable marks the process in the bench's own namespaces, and tells the peers' scripts that they need make none.
const insideVariable = "BYHAND_INSIDE"

// enter runs this program again in mount and network namespaces of its own, so that bridges, rules and mounts of all sides are
// away from the host's, and go with the namespaces.
func enter(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("measuring: %w", err)
	}
	return nil
}

// furnish makes the namespaces fit for all sides. An empty cgroup v2 beside v1 is hidden, since crun refuses to run beside it:
// the tmpfs in its place takes the directories crun makes there all the same. Podman's own traces go to tmpfs as well.
func furnish(ctx context.Context) error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making / a slave mount: %w", err)
	}
	const hybrid = "/sys/fs/cgroup/unified"
	if err := unix.Unmount(hybrid, unix.MNT_DETACH); err == nil {
		if err := unix.Mount("tmpfs", hybrid, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("hiding %s: %w", hybrid, err)
		}
	} else if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("hiding %s: %w", hybrid, err)
	}
	for _, dir := range []string{"/run/netns", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("a tmpfs on %s: %w", dir, err)
		}
	}
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("loopback: %w: %s", err, out)
	}
	return nil
}
