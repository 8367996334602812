package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// endStrays ends what a runtime that was killed at work left beside a member's control groups. Under cgroup v1, crun stops the
// container's first process until it has moved it there (SIGSTOP, seen with crun 1.8.1); killed in between, it leaves it stopped among
// the host's own processes, for ever. Its command line, which is still the runtime's, is all that tells whose it is. Only a member
// that was never let go can have one.
func (d *Driver) endStrays(ctx context.Context, id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !makes(pid, id) {
			continue
		}
		stray, err := pidfd.Open(pid)
		if err != nil {
			continue // it has ended
		}
		err = pidfd.Kill(ctx, pid, func() bool { return makes(pid, id) })
		orphans{stray}.reap()
		if err != nil {
			return fmt.Errorf("ending process %d, left behind by a killed runtime: %w", pid, err)
		}
	}
	return nil
}

// makes tells whether a process is a runtime that makes a member's container, or what it forked for that.
func makes(pid int, id string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false // it has ended
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimRight(text, "\x00"), []byte{0}) {
		args = append(args, string(arg))
	}
	i := slices.Index(args, "--bundle")
	return slices.Contains(args, "create") && i >= 0 && i+1 < len(args) && strings.HasSuffix(args[i+1], "/members/"+id) && args[len(args)-1] == id
}
