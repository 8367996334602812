package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pid is the process of a member's QEMU, 0 when there is none. libvirt's file tells which it should be; the process itself tells whether it is.
func (d *Driver) pid(id string) (int, error) {
	text, err := os.ReadFile(filepath.Join(d.cfg.StateDir, "libvirt", "run", "qemu", id+".pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !d.isMachine(pid, id) {
		return 0, nil //nolint:nilerr // what is no number is no process
	}
	return pid, nil
}

// isMachine reports whether a process is a member's QEMU: its command line has the member's UUID. One that has ended and was not waited for has none.
func (d *Driver) isMachine(pid int, id string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte("\x00-uuid\x00"+uuidText(d.domainUUID(id))+"\x00"))
}

// processes finds all processes that are a member's QEMU, also those that libvirt lost.
func (d *Driver) processes(id string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*")
	var found []int
	for _, file := range files {
		if pid, err := strconv.Atoi(filepath.Base(file)); err == nil && d.isMachine(pid, id) {
			found = append(found, pid)
		}
	}
	return found
}

// waitProcess returns when a process has ended, or with ctx's error.
func waitProcess(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening process %d: %w", pid, err)
	}
	file := os.NewFile(uintptr(fd), "pidfd")
	defer func() { _ = file.Close() }()
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
