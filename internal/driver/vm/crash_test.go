package vm_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/machine/bootbin"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

// doomed is what an agent that will crash is told to do, by its environment.
type doomed struct {
	StateDir string
	Image    environment.Image
	Clean    bool
	Member   driver.Member
	// Do is another call: reboot, remount, resize, save, restore, snapshot, lay-down, send or receive. The last two have the socket of the other host at To.
	Do, From, To string
}

const doomedVariable = "NEARMETAL_TEST_DOOMED_VM"

// beDoomed is the agent that will crash: this test binary again. It returns only when no failpoint killed it.
func beDoomed(text string) error {
	var job doomed
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	d, err := vm.New(vm.Config{
		StateDir: job.StateDir, Node: "n1", Attacher: taps{&drivertest.Ports{}}, Images: images{job.Image}, Boot: bootbin.Binary, Program: self, HomeServer: memberbin.Binary, Accelerate: emulate,
	})
	if err != nil {
		return err
	}
	if job.Clean {
		return d.Clean(context.Background(), job.Member.Assignment.ID)
	}
	switch job.Do {
	case "reboot":
		return d.Reboot(context.Background(), job.Member, 0)
	case "remount":
		return d.Remount(context.Background(), job.Member)
	case "resize":
		return d.Resize(context.Background(), job.Member)
	case "save":
		return d.Save(context.Background(), job.Member.Assignment.ID)
	case "snapshot":
		return d.Snapshot(context.Background(), job.Member.Assignment.ID, job.From)
	case "lay-down":
		return d.LayDown(context.Background(), job.Member.Assignment.ID, job.From)
	case "restore":
		return d.Restore(context.Background(), job.Member, job.From)
	case "send", "receive":
		conn, err := net.Dial("unix", job.To)
		if err != nil {
			return err
		}
		if job.Do == "receive" {
			return d.Receive(context.Background(), job.Member, job.From, conn)
		}
		_, err = d.Send(context.Background(), job.Member.Assignment.ID, conn, driver.MoveLimits{})
		return err
	}
	return d.Start(context.Background(), job.Member)
}

// TestAnAgentThatIsKilledAtAnyStepLeavesWhatTheNextOneCopesWith needs a build with -tags failpoints.
func TestAnAgentThatIsKilledAtAnyStepLeavesWhatTheNextOneCopesWith(t *testing.T) {
	images := needGuests(t)
	for _, c := range []struct {
		failpoint string
		clean     bool
		want      driver.State
		again     bool // started again before it is cleaned
	}{
		{"vm.after-write", false, driver.StatePrepared, false},
		{"vm.after-attach", false, driver.StatePrepared, true},
		{"vm.after-home", false, driver.StatePrepared, true},
		{"vm.after-create", false, driver.StatePrepared, true},
		{"vm.after-setup", false, driver.StatePrepared, false},
		{"vm.after-running", false, driver.StateRunning, true},
		{"vm.after-end", true, driver.StateExited, true},
		{"vm.after-detach", true, driver.StateExited, false},
	} {
		t.Run(c.failpoint, func(t *testing.T) {
			r := newRig(t, images)
			m := r.member(t)
			if c.clean {
				if err := r.Start(t.Context(), m); err != nil {
					t.Fatal(err)
				}
				// The machine of an agent that died belongs to process 1, which waits for it; here it is this process.
				pid, err := strconv.Atoi(pidOf(t, r, m.Assignment.ID))
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
			}
			if err := r.Driver.Close(); err != nil {
				t.Fatal(err)
			}
			crash(t, c.failpoint, doomed{StateDir: r.cfg.StateDir, Image: images.image, Clean: c.clean, Member: m})
			r.reopen(t)
			all, err := r.Observe(t.Context())
			if err != nil || len(all) != 1 || all[0].State != c.want {
				t.Errorf("after the crash: %+v, %v; want it %s", all, err, c.want)
			}
			if c.again {
				if err := r.Driver.Start(t.Context(), m); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Clean(t.Context(), m.Assignment.ID); err != nil {
				t.Fatal(err)
			}
			if left := r.left(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestAnAgentThatIsKilledAmidARebootIsFollowedByOneThatFinishesIt needs a build with -tags failpoints, too.
func TestAnAgentThatIsKilledAmidARebootIsFollowedByOneThatFinishesIt(t *testing.T) {
	images := needGuests(t)
	r := newRig(t, images)
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(pidOf(t, r, id)) // of the first boot; as above
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	m.Boot = "second"
	crash(t, "vm.after-shutdown", doomed{StateDir: r.cfg.StateDir, Image: images.image, Do: "reboot", Member: m})
	r.reopen(t)
	if got := observed(t, r, id); got != driver.StateExited {
		t.Errorf("after the crash it is %s, want %s", got, driver.StateExited)
	}
	if err := r.Reboot(t.Context(), m, 0); err != nil {
		t.Fatal(err)
	}
	all, err := r.Observe(t.Context())
	if err != nil || len(all) != 1 || all[0].State != driver.StateRunning || all[0].Member.Boot != m.Boot {
		t.Errorf("after the next agent's reboot: %+v, %v; want it running in boot %q", all, err, m.Boot)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestAnAgentThatIsKilledWhileAGuestOfAnotherSystemStartsLeavesNoDiskBehind needs a build with -tags failpoints, too.
func TestAnAgentThatIsKilledWhileAGuestOfAnotherSystemStartsLeavesNoDiskBehind(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Bare(t, debiantree.Ensure(t).Path("vmlinuz"))
	const size = 1 << 30
	for _, c := range []struct {
		failpoint string
		want      driver.State
	}{
		{"vm.after-write", driver.StatePrepared},
		{"vm.after-attach", driver.StatePrepared},
		{"vm.after-seed", driver.StatePrepared},
		{"vm.after-create", driver.StatePrepared},
		{"vm.after-foreign", driver.StateRunning},
	} {
		t.Run(c.failpoint, func(t *testing.T) {
			r := foreign(t, disk.Path, api.ForeignDisk{
				OS: api.SystemOther, Firmware: api.FirmwareBIOS, Size: api.Bytes(disk.Bytes), Probe: api.Probe{Console: foreignimage.BareText},
			})
			m := r.member(t)
			m.Assignment.DiskBytes = size
			if err := r.Driver.Close(); err != nil {
				t.Fatal(err)
			}
			crash(t, c.failpoint, doomed{StateDir: r.cfg.StateDir, Image: r.cfg.Images.(images).image, Member: m})
			r.reopen(t)
			if got := observed(t, r, m.Assignment.ID); got != c.want {
				t.Errorf("after the crash it is %s, want %s", got, c.want)
			}
			if err := r.Driver.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if err := r.AwaitReady(t.Context(), m.Assignment.ID); err != nil {
				t.Error(err)
			}
			if err := r.Clean(t.Context(), m.Assignment.ID); err != nil {
				t.Fatal(err)
			}
			if left := r.left(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestAnAgentThatIsKilledWhileAMemberLeavesKeepsItOnce needs a build with -tags failpoints, too.
func TestAnAgentThatIsKilledWhileAMemberLeavesKeepsItOnce(t *testing.T) {
	images := needGuests(t)
	for _, c := range []struct {
		failpoint, do string
		// want is what the member is after the crash, next what its successor is.
		want, next driver.State
		// then makes it run again, as which of the two.
		then func(r *rig, m, next driver.Member) (runs string, err error)
	}{
		{"vm.after-state", "save", driver.StatePaused, driver.StateAbsent, resumed},
		{"vm.after-saved", "save", driver.StateSaved, driver.StateAbsent, restored},
		{"vm.before-origin", "restore", driver.StateSaved, driver.StatePrepared, restored},
		{"vm.after-arrival", "restore", driver.StateExited, driver.StatePaused, restored},
		{"vm.after-leave", "send", driver.StatePaused, driver.StateAbsent, resumed},
		{"vm.after-handed", "send", driver.StateHandedOver, driver.StateAbsent, takenBack},
	} {
		t.Run(c.failpoint, func(t *testing.T) {
			r := newRig(t, images)
			m := r.member(t)
			id := m.Assignment.ID
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			next := r.successor(t, m)
			job := doomed{StateDir: r.cfg.StateDir, Image: images.image, Do: c.do, Member: m, From: id}
			received := make(chan error, 1)
			switch c.do {
			case "restore":
				job.Member = next
				if err := r.Save(t.Context(), id); err != nil {
					t.Fatal(err)
				}
			case "send":
				job.To = receiving(t, newRig(t, images), m, received)
			}
			adopt(t, r, id)
			if err := r.Driver.Close(); err != nil {
				t.Fatal(err)
			}
			crash(t, c.failpoint, job)
			r.reopen(t)
			if c.do == "send" {
				if err := <-received; err == nil {
					t.Error("the other host carries a member that it was not told to carry")
				}
			}
			if got := stateOf(t, r, id); got != c.want {
				t.Errorf("after the crash the member is %s, want %s", got, c.want)
			}
			if got := stateOf(t, r, next.Assignment.ID); got != c.next {
				t.Errorf("after the crash its successor is %s, want %s", got, c.next)
			}
			runs, err := c.then(r, m, next)
			if err != nil {
				t.Fatal(err)
			}
			if got := stateOf(t, r, runs); got != driver.StateRunning {
				t.Errorf("in the end it is %s", got)
			}
		})
	}
}

// TestAMemberStaysWhereItWasWhenTheAgentThatReceivesItIsKilled needs a build with -tags failpoints, too.
func TestAMemberStaysWhereItWasWhenTheAgentThatReceivesItIsKilled(t *testing.T) {
	images := needGuests(t)
	r, there := newRig(t, images), newRig(t, images)
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	next := there.successor(t, m)
	if err := there.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	sent := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			_, err = r.Driver.Send(t.Context(), id, conn, driver.MoveLimits{})
		}
		sent <- err
	}()
	crash(t, "vm.before-go", doomed{StateDir: there.cfg.StateDir, Image: images.image, Do: "receive", Member: next, From: id, To: listener.Addr().String()})
	if err := <-sent; err == nil || errors.Is(err, driver.ErrUndecided) {
		t.Errorf("Send: %v, want that it has failed for sure", err)
	}
	if got := stateOf(t, r, id); got != driver.StateRunning {
		t.Errorf("the member is %s where it was", got)
	}
	there.reopen(t)
	if got := stateOf(t, there, next.Assignment.ID); got != driver.StatePrepared {
		t.Errorf("its successor is %s, want nothing but debris", got)
	}
}

func resumed(r *rig, m, _ driver.Member) (string, error) {
	return m.Assignment.ID, r.Resume(r.t.Context(), m.Assignment.ID)
}

func takenBack(r *rig, m, _ driver.Member) (string, error) {
	return m.Assignment.ID, r.TakeBack(r.t.Context(), m.Assignment.ID)
}

func restored(r *rig, m, next driver.Member) (string, error) {
	err := r.Driver.Restore(r.t.Context(), next, m.Assignment.ID)
	if err == nil {
		err = r.Driver.Update(r.t.Context(), next)
	}
	return next.Assignment.ID, err
}

// adopt waits for a member's machine in place of an agent that was closed: those of one that died are process 1's, and here this process'.
func adopt(t *testing.T, r *rig, id string) {
	t.Helper()
	pid, err := strconv.Atoi(pidOf(t, r, id))
	if err != nil {
		t.Fatal(err)
	}
	if pid != 0 {
		go func() { _, _ = unix.Wait4(pid, nil, 0, nil) }()
	}
}

// receiving makes another host wait for a member at a socket, and tell what came of it.
func receiving(t *testing.T, there *rig, m driver.Member, received chan<- error) (path string) {
	t.Helper()
	next := there.successor(t, m)
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			if err = there.Driver.Receive(t.Context(), next, m.Assignment.ID, conn); err == nil {
				err = there.Driver.Update(t.Context(), next)
			}
		}
		received <- err
	}()
	return listener.Addr().String()
}

// stateOf is what is seen of a member.
func stateOf(t *testing.T, r *rig, id string) driver.State {
	t.Helper()
	all, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.ID == id {
			return o.State
		}
	}
	return driver.StateAbsent
}

// crash runs an agent that is killed at the failpoint.
func crash(t *testing.T, failpoint string, job doomed) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
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

// TestALibvirtdThatIsKilledTakesNoMachineWithIt: it is started again when it is needed, and finds them.
func TestALibvirtdThatIsKilledTakesNoMachineWithIt(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	before := pidOf(t, r, id)
	killLibvirtd(t)
	if after := pidOf(t, r, id); after != before {
		t.Errorf("after libvirtd was killed the machine is process %s, want %s", after, before)
	}
	if got := r.tell(t, id, order{Read: "/etc/hostname"}); got.Err != "" {
		t.Error(got.Err)
	}
	killLibvirtd(t)
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// killLibvirtd kills the libvirtd that is a child of this process, and waits until it is gone.
func killLibvirtd(t *testing.T) {
	t.Helper()
	for pid := range childrenNamed(t, "libvirtd") {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for childrenNamed(t, "libvirtd")[pid] {
			if t.Context().Err() != nil {
				t.Fatal("libvirtd does not end")
			}
		}
		return
	}
	t.Fatal("libvirtd does not run")
}
