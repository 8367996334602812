package container_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// doomed is what an agent that will crash is told to do, by its environment.
type doomed struct {
	StateDir, Node, MemberBinary string
	Clean, Pause, Remount        bool
	Member                       driver.Member
}

const doomedVariable = "NEARMETAL_TEST_DOOMED"

// beDoomed is the agent that will crash: this test binary again. It returns only when no failpoint killed it.
func beDoomed(text string) error {
	var job doomed
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	d, err := container.New(container.Config{
		StateDir: job.StateDir, Node: job.Node, MemberBinary: job.MemberBinary, Attacher: &drivertest.Ports{},
		Environments: environment.Catalog{environment.NewLocal()},
	})
	if err != nil {
		return err
	}
	if job.Clean {
		return d.Clean(context.Background(), job.Member.Assignment.ID)
	}
	if job.Pause {
		return d.Pause(context.Background(), job.Member.Assignment.ID)
	}
	if job.Remount {
		return d.Remount(context.Background(), job.Member)
	}
	return d.Start(context.Background(), job.Member)
}

// TestAnAgentThatIsKilledAtAnyStepLeavesWhatTheNextOneCopesWith needs a build with -tags failpoints.
func TestAnAgentThatIsKilledAtAnyStepLeavesWhatTheNextOneCopesWith(t *testing.T) {
	cases := []struct {
		failpoint string
		clean     bool
		want      driver.State
	}{
		{"container.after-sandbox-group", false, driver.StatePrepared},
		{"container.after-sandbox", false, driver.StatePrepared},
		{"container.after-write", false, driver.StatePrepared},
		{"container.after-create", false, driver.StatePrepared},
		{"container.after-attach", false, driver.StatePrepared},
		{"container.after-start", false, driver.StatePrepared},
		{"container.after-running", false, driver.StateRunning},
		{"container.after-kill", true, driver.StateExited},
		{"container.after-remove-cgroups", true, driver.StateExited},
		{"container.after-detach", true, driver.StatePrepared},
		{"container.after-remove-dir", true, driver.StateAbsent},
		{"container.after-end-sandbox", true, driver.StateAbsent},
	}
	for _, c := range cases {
		for _, next := range []string{"start and clean", "clean"} {
			t.Run(c.failpoint+" then "+next, func(t *testing.T) {
				r := newRig(t, "crun")
				m := r.sharing(t, "one", idBase)
				if c.clean {
					if err := r.Driver.Start(t.Context(), m); err != nil {
						t.Fatal(err)
					}
				}
				crash(t, r, c.failpoint, doomed{
					StateDir: r.cfg.StateDir, Node: r.cfg.Node, MemberBinary: r.cfg.MemberBinary, Clean: c.clean, Member: m,
				})
				second := r.open(t)
				if got := stateBy(t, second, m.Assignment.ID); got != c.want {
					t.Errorf("after the crash the member is seen as %s, want %s", got, c.want)
				}
				if next == "start and clean" {
					if err := second.Start(t.Context(), m); err != nil {
						t.Fatal(err)
					}
					if got := stateBy(t, second, m.Assignment.ID); got != driver.StateRunning {
						t.Errorf("after the next agent's Start the member is seen as %s, want running", got)
					}
				}
				if err := second.Clean(t.Context(), m.Assignment.ID); err != nil {
					t.Fatal(err)
				}
				reapOrphans(t)
				if left := r.left(t); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			})
		}
	}
}

// crash runs an agent that is killed at the failpoint.
func crash(t *testing.T, r *rig, failpoint string, job doomed) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(r.cfg.MemberBinary)
	cmd.Env = append(os.Environ(), "NEARMETAL_FAILPOINT="+failpoint, fmt.Sprintf("%s=%s", doomedVariable, text))
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		needs.Missing(t, "this build has no failpoints (make unit builds them in, with -tags failpoints)")
	case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL:
		t.Fatalf("the agent was not killed at %s: %v: %s", failpoint, err, output)
	}
}

// reapOrphans takes the killed agent's members off the process table: this process inherits them, in life process 1 does.
func reapOrphans(t *testing.T) {
	t.Helper()
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) || pid == 0 {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func stateBy(t *testing.T, d driver.Driver, id string) driver.State {
	t.Helper()
	observations, err := d.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range observations {
		if o.ID == id {
			return o.State
		}
	}
	return driver.StateAbsent
}
