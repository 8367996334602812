package container_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWhatAKilledRuntimeLeftStoppedIsEnded has processes that look as crun leaves a container's first process under cgroup v1 when it is
// killed between having stopped it and having moved it: stopped, in none of the member's control groups.
func TestWhatAKilledRuntimeLeftStoppedIsEnded(t *testing.T) {
	r := newRig(t, "crun")
	d := r.open(t)
	id := r.member(t).Assignment.ID
	if err := os.MkdirAll(filepath.Join(r.cfg.StateDir, "members", id), 0o700); err != nil {
		t.Fatal(err)
	}
	stray, other := stoppedRuntime(t, id), stoppedRuntime(t, id+"0")
	if err := d.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(stray.Process.Pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Fatalf("the stray of %s is in state %q after cleaning, want it ended and off the process table", id, stateIn(t, stray.Process.Pid))
	}
	if state := stateIn(t, other.Process.Pid); state != "T" {
		t.Errorf("what another member's runtime left is in state %q, want it left alone, stopped", state)
	}
}

// stoppedRuntime is a stopped process with the command line of a runtime that makes a member.
func stoppedRuntime(t *testing.T, id string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "kill -STOP $$", "crun", "create", "--bundle", "/nowhere/members/"+id, "--pid-file", "pid", id)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for stateIn(t, cmd.Process.Pid) != "T" {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("process %d does not stop", cmd.Process.Pid)
		}
	}
	return cmd
}

// stateIn is the state letter of a process (proc_pid_stat(5)).
func stateIn(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
