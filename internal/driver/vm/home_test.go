package vm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/homeserver"
)

// homePID is the server of a member's home.
func homePID(t *testing.T, r *rig, id string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(r.cfg.StateDir, "vms", id, "home.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestTheHomeOfAMachineIsThatOfTheClustersContainers has a machine and its host, in the place of a container, write to one home.
func TestTheHomeOfAMachineIsThatOfTheClustersContainers(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.tell(t, id, order{As: 1000, Shell: `set -e; cd /home/hpc; umask 027; echo one >file; ln file hard; ln -s file soft; mkdir -m 2750 dir; mkfifo -m 600 fifo
		mv hard dir/moved; echo two >>file; cat dir/moved | tr '\n' ' '; for i in $(seq 300); do : >dir/f$i; done; ls dir | wc -l; rm -r dir/f*`})
	home := filepath.Join(m.HomeDir, "hpc")
	for name, want := range map[string]struct {
		mode uint32
		uid  uint32
	}{
		".": {unix.S_IFDIR | 0o700, 1000}, "file": {unix.S_IFREG | 0o640, 1000}, "soft": {unix.S_IFLNK | 0o777, 1000}, "dir": {unix.S_IFDIR | 0o2750, 1000},
		"fifo": {unix.S_IFIFO | 0o600, 1000}, "../": {unix.S_IFDIR | 0o755, 0},
	} {
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(home, name), &stat); err != nil || stat.Mode != want.mode || stat.Uid != idBase+want.uid || stat.Gid != idBase+want.uid {
			t.Errorf("%s: mode %o, owner %d:%d, %v; want %o and %d of the cluster", name, stat.Mode, stat.Uid, stat.Gid, err, want.mode, want.uid)
		}
	}
	if text, err := os.ReadFile(filepath.Join(home, "dir/moved")); string(text) != "one\ntwo\n" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	// A file of a container's user 1001, which user 1000 of the machine must not read.
	if err := os.WriteFile(filepath.Join(m.HomeDir, "theirs"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(m.HomeDir, "theirs"), idBase+1001, idBase+1001); err != nil {
		t.Fatal(err)
	}
	got := r.tell(t, id, order{As: 1000, Shell: `stat -c '%u %g %a' /home/theirs; cat /home/theirs 2>&1 || true`}).Text
	if !strings.HasPrefix(got, "1001 1001 600\n") || strings.Contains(got, "secret") {
		t.Errorf("another's file: %q", got)
	}
}

// TestAMachineGoesOnWithItsFilesWhenTheirServerWasKilled, also while the agent is away, after it was
// frozen, and after it was saved with its memory and restored.
func TestAMachineGoesOnWithItsFilesWhenTheirServerWasKilled(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	// An open file whose name was changed, and a working directory, are known by their handles alone.
	r.tell(t, id, order{Shell: `mkdir -p /home/a/b && cd /home/a/b && (exec 3>>log; echo 0 >&3; mv log renamed; for i in 1 2 3 4 5 6; do until [ -e /home/go$i ]; do sleep 0.2; done; echo $i >&3; cp renamed out$i; : >/home/done$i; done) >/dev/null 2>&1 &`})
	step := 0
	next := func(what string) {
		t.Helper()
		step++
		if err := os.WriteFile(fmt.Sprintf("%s/go%d", m.HomeDir, step), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		done := fmt.Sprintf("%s/done%d", m.HomeDir, step)
		awaitFile(t, done)
		text, err := os.ReadFile(fmt.Sprintf("%s/a/b/out%d", m.HomeDir, step))
		if err != nil || !strings.HasSuffix(string(text), fmt.Sprintf("%d\n%d\n", step-1, step)) {
			t.Errorf("%s: the machine has written %q, %v", what, text, err)
		}
	}
	next("at first")
	first := homePID(t, r, id)
	kill(t, first)
	next("after its home's server was killed")
	if second := homePID(t, r, id); second == first {
		t.Errorf("the server is still process %d", first)
	}
	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m = r.successor(t, m)
	if err := r.Restore(t.Context(), m, id); err != nil {
		t.Fatal(err)
	}
	id = m.Assignment.ID
	next("after it was saved and restored")
	if err := r.Driver.Close(); err != nil {
		t.Fatal(err)
	}
	next("while the agent is away")
	kill(t, homePID(t, r, id))
	r.reopen(t)
	if _, err := r.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	next("after a server that ended while the agent was away")
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	kill(t, homePID(t, r, id))
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	next("after a server that was killed while the machine was frozen")
	last := homePID(t, r, id)
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", last)); err == nil && strings.HasPrefix(string(line), homeserver.Name) {
		t.Errorf("the server of the home is left: %q", line)
	}
}

// TestAHomeComesBackThatWasAwayWhenAFrozenMachineWentOn keeps QEMU off the new server until the guest has asked for something, which QEMU does not get over
// by itself.
func TestAHomeComesBackThatWasAwayWhenAFrozenMachineWentOn(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(r.cfg.StateDir, "vms", id, "link")
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for round := range frozenRounds(t) {
		if err := r.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(link, 0o700); err != nil {
			t.Fatal(err)
		}
		kill(t, homePID(t, r, id))
		if err := r.Resume(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		r.tell(t, id, order{Shell: fmt.Sprintf("(echo x >/home/written%d) >/dev/null 2>&1 &", round)})
		for counted := r.progress(t, id); r.progress(t, id) < counted+400; <-look.C { // two seconds of the guest's time: it has asked
		}
		if err := os.Chmod(link, 0o711); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		awaitFile(t, fmt.Sprintf("%s/written%d", m.HomeDir, round))
		t.Logf("round %d: the home is back after %v", round, time.Since(began).Round(time.Millisecond))
	}
}

// frozenRounds is how often it is tried: more often where NEARMETAL_TEST_ROUNDS says so.
func frozenRounds(t *testing.T) int {
	t.Helper()
	if text, ok := os.LookupEnv("NEARMETAL_TEST_ROUNDS"); ok {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 3
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// awaitFile waits until a file is there.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	inotify, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(inotify), "inotify")
	defer file.Close()
	if _, err := unix.InotifyAddWatch(inotify, filepath.Dir(path), unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if _, err := os.Lstat(path); err == nil {
			return
		}
		fds := []unix.PollFd{{Fd: int32(inotify), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); n == 0 || err != nil && err != unix.EINTR {
			t.Fatalf("%s does not appear: %v", path, err)
		}
		var buffer [4096]byte
		_, _ = file.Read(buffer[:])
	}
}
