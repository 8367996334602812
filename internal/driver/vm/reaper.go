package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// libvirtd leaves QEMU to whoever is the next subreaper above it (prctl(2), PR_SET_CHILD_SUBREAPER), and takes one that has ended for alive until it
// was waited for. So this process makes itself that, as the container driver does too, and waits for each at once.

// reapMachines waits for QEMUs that ended until ctx ends.
func reapMachines(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of machines: %w", err)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		defer signal.Stop(ended)
		for {
			reapEnded()
			select {
			case <-ended:
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// reapEnded waits for the children of this process that have ended and were QEMUs. All others have somebody else who waits for them.
func reapEnded() {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && endedMachine(text, os.Getpid()) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// endedMachine reports whether a line of /proc/PID/stat (proc(5)) is of a QEMU that has ended and is this parent's to wait for.
func endedMachine(stat []byte, parent int) bool {
	begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if begin < 0 || end < begin {
		return false
	}
	fields := bytes.Fields(stat[end+1:])
	return strings.HasPrefix(string(stat[begin+1:end]), commandName) && len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(parent)
}

// commandName begins the names of QEMU's processes. libvirtd may start those of other architectures, too, to ask them for their abilities.
const commandName = "qemu-system-"
