package container_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// sharing makes a member that shares memory with the others of its cluster.
func (r *rig) sharing(t testing.TB, cluster string, firstID uint32) driver.Member {
	t.Helper()
	m := r.member(t)
	a := &m.Assignment
	socket := r.sockets[a.ID]
	a.SharesMemory, a.ClusterUID, a.Cluster, a.ID = true, cluster, cluster, strings.Replace(a.ID, "testcluster", cluster, 1)
	a.UserIDs.First = firstID
	r.sockets[a.ID] = socket
	if err := os.Chown(filepath.Join(m.ControlDir, "agent.sock"), int(firstID), int(firstID)); err != nil {
		t.Fatal(err)
	}
	m.HomeDir = filepath.Join(r.dir, "home-"+cluster)
	if err := os.MkdirAll(m.HomeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

func (r *rig) startAll(t *testing.T, members ...driver.Member) {
	t.Helper()
	for _, m := range members {
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMembersOfOneClusterShareMemoryAndOthersDoNot(t *testing.T) {
	r := newRig(t, "crun")
	first, second := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	alone := r.sharing(t, "one", idBase)
	alone.Assignment.SharesMemory = false
	stranger := r.sharing(t, "two", idBase+65536)
	r.startAll(t, first, second, alone, stranger)
	const text = "hello from the first"
	if a := r.tell(t, first.Assignment.ID, order{Probe: "make segment", Argument: text}); a.Err != "" {
		t.Fatal(a.Err)
	}
	where := r.tell(t, first.Assignment.ID, order{Probe: "publish", Argument: "what the first rank sends"}).Output
	for _, tt := range []struct {
		name    string
		member  driver.Member
		segment string // what it reads there, or a regular expression on the error; memory it may read at the same place is its own
		memory  string
		shares  bool
	}{
		{"a member of the same cluster", second, text, "what the first rank sends", true},
		{"one that shares nothing", alone, "no such file", "", false},
		{"a member of another cluster", stranger, "no such file", "", false},
	} {
		for probe, want := range map[string]string{"read segment": tt.segment, "peek": tt.memory} {
			a := r.tell(t, tt.member.Assignment.ID, order{Probe: probe, Argument: where})
			switch {
			case tt.shares && (a.Output != want || a.Err != ""):
				t.Errorf("%s, %s: got %q (%s), want %q", tt.name, probe, a.Output, a.Err, want)
			case !tt.shares && (!regexp.MustCompile(want).MatchString(a.Err) || strings.Contains(a.Output, "rank") || strings.Contains(a.Output, "hello")):
				t.Errorf("%s, %s: got %q (%s), want an error that matches %q", tt.name, probe, a.Output, a.Err, want)
			}
		}
	}
}

func TestAMemberThatJoinsAfterARestartOfTheAgentSharesMemoryToo(t *testing.T) {
	r := newRig(t, "crun")
	first, second := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	r.startAll(t, first)
	if a := r.tell(t, first.Assignment.ID, order{Probe: "make segment", Argument: "still here"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	if err := r.startBy(t.Context(), r.open(t), second); err != nil {
		t.Fatal(err)
	}
	if a := r.tell(t, second.Assignment.ID, order{Probe: "read segment"}); a.Output != "still here" {
		t.Errorf("got %q (%s)", a.Output, a.Err)
	}
}

func TestAHostileRootInAMemberGetsNothingOutOfItsSandbox(t *testing.T) {
	r := newRig(t, "crun")
	m, stranger := r.sharing(t, "one", idBase), r.sharing(t, "two", idBase+65536)
	r.startAll(t, m, stranger)
	id := m.Assignment.ID
	for _, c := range []struct{ probe, argument, want string }{
		{"list", "/proc/1/root", "permission denied"},
		{"list", "/proc/1/cwd", "permission denied"},
		{"read", "/proc/1/fd/4", "permission denied|no such file"},
		{"read", "/proc/1/environ", "permission denied"},
		{"read", "/proc/1/mem", "permission denied"},
		{"read", "/proc/1/maps", "permission denied"},
		{"list", "/proc/1/ns", ""},
		{"peek", "1 4096 1", "not permitted|permission denied"},
		{"write", "/proc/sys/kernel/shmmni", "read-only|permission denied"},
		{"write", "/proc/sys/kernel/msgmni", "read-only|permission denied"},
	} {
		a := r.tell(t, id, order{Probe: c.probe, Argument: c.argument})
		if !regexp.MustCompile(c.want).MatchString(strings.ToLower(a.Err)) {
			t.Errorf("%s %s: error %q, want one that matches %q (output %q)", c.probe, c.argument, a.Err, c.want, a.Output)
		}
	}
	mounts := r.tell(t, id, order{Probe: "read", Argument: "/proc/1/mountinfo"}).Output
	if strings.Count(mounts, "\n") != 1 || !strings.Contains(mounts, " / / ro") {
		t.Errorf("the sandbox's mounts, as a member sees them: %q, want one empty root that can't be written", mounts)
	}
	for path, max := range map[string]int{"/proc/1/net/tcp": 1, "/proc/1/net/unix": 1, "/proc/1/net/dev": 3} { // heads alone, and lo
		if text := r.tell(t, id, order{Probe: "read", Argument: path}).Output; strings.Count(text, "\n") > max {
			t.Errorf("%s, as a member sees it: %q", path, text)
		}
	}
	if text := r.tell(t, id, order{Probe: "read", Argument: "/proc/1/cgroup"}).Output; strings.Contains(text, "nearmetal/") {
		t.Errorf("the sandbox's control groups, as a member sees them: %q", text)
	}
	// No signal from within ends it: every one of them is tried by the member's root, and then by its shell.
	for n := 1; n <= 64; n++ {
		r.tell(t, id, order{Run: []string{"/bin/sh", "-c", fmt.Sprintf("kill -%d 1", n)}})
	}
	if got := r.run(t, id, "cat", "/proc/1/cmdline"); !strings.HasPrefix(got, "nearmetal-sandbox") {
		t.Errorf("after 64 signals process 1 is %q", got)
	}
}

// sandboxes lists the sandboxes of a rig's clusters: group and PID.
func (r *rig) sandboxPIDs(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/nearmetal", "/sys/fs/cgroup/*/nearmetal"} {
		found, err := filepath.Glob(filepath.Join(pattern, r.cfg.Group(), ".*", "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.Fields(string(text))...)
		}
	}
	return all
}

func TestASandboxLastsAsLongAsItsClusterHasMembers(t *testing.T) {
	r := newRig(t, "crun")
	first, second := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	r.startAll(t, first, second)
	before := r.sandboxPIDs(t)
	if len(before) != 1 {
		t.Fatalf("two members of one cluster have sandboxes %v, want one", before)
	}
	if err := r.Clean(t.Context(), first.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.sandboxPIDs(t); len(got) != 1 || got[0] != before[0] {
		t.Errorf("with one member left the sandbox is %v, want %v", got, before)
	}
	if got := strings.TrimSpace(r.run(t, second.Assignment.ID, "echo", "alive")); got != "alive" {
		t.Errorf("the member that is left answers %q", got)
	}
	if err := r.Clean(t.Context(), second.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(before[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the sandbox is there after its last member was cleaned (%v)", err)
	}
}

func TestASandboxEndsWithTheAgentThatWasMakingIt(t *testing.T) {
	r := newRig(t, "crun")
	m := r.sharing(t, "one", idBase)
	crash(t, r, "container.after-sandbox-group", doomed{
		StateDir: r.cfg.StateDir, Node: r.cfg.Node, MemberBinary: r.cfg.MemberBinary, Member: m,
	})
	for _, text := range r.sandboxPIDs(t) {
		pid, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		process, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended already
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 10_000); n != 1 {
			t.Errorf("it is still there 10 s after the agent was killed (%v)", err)
		}
		_ = unix.Close(process)
	}
	reapOrphans(t)
}

func TestASandboxThatWasNotLetGoIsEndedAndNotUsed(t *testing.T) {
	r := newRig(t, "crun")
	first, m := r.sharing(t, "two", idBase+65536), r.sharing(t, "one", idBase)
	r.startAll(t, first) // with it come the node's control groups
	half := exec.Command("sleep", "1000")
	orders, err := half.StdinPipe() // which a sandbox has closed that was let go
	if err != nil {
		t.Fatal(err)
	}
	defer orders.Close()
	if err := half.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- half.Wait() }()
	groups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup/*/nearmetal", r.cfg.Group()))
	if v2 := filepath.Join("/sys/fs/cgroup/nearmetal", r.cfg.Group()); err == nil && len(groups) == 0 {
		groups = []string{v2}
	}
	if err != nil || len(groups) == 0 {
		t.Fatalf("the node has control groups %v (%v)", groups, err)
	}
	for _, group := range groups {
		if strings.Contains(group, "/cpuset/") {
			continue // which would have to be given CPUs first
		}
		dir := filepath.Join(group, ".one")
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(half.Process.Pid)), 0)); err != nil {
			t.Fatal(err)
		}
	}
	// Without the rig, which would observe first: that alone ends a sandbox without members.
	if err := errors.Join(r.Driver.Start(t.Context(), m), r.accept(t.Context(), r.Driver, m.Assignment.ID)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v, want it killed", err)
	}
	if got := r.run(t, m.Assignment.ID, "cat", "/proc/1/cmdline"); !strings.HasPrefix(got, "nearmetal-sandbox") {
		t.Errorf("process 1 of the member's namespace is %q", got)
	}
}

func TestTheEndOfAFirstProcessEndsTheWholeMemberAndNoOther(t *testing.T) {
	r := newRig(t, "crun")
	m, other := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	r.startAll(t, m, other)
	id := m.Assignment.ID
	// It is awaited: a process between fork and exec has no command line, or another one.
	const background = `setsid sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/cmdline; do :; done; echo $!`
	pid, err := strconv.Atoi(strings.TrimSpace(r.run(t, id, "/bin/sh", "-c", background)))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.run(t, other.Assignment.ID, "cat", fmt.Sprintf("/proc/%d/cmdline", pid)); !strings.Contains(got, "sleep") {
		t.Fatalf("process %d is %q", pid, got)
	}
	code := 3
	r.tell(t, id, order{Exit: &code})
	if o, err := r.Wait(t.Context(), id); err != nil || o.ExitCode == nil || *o.ExitCode != code {
		t.Errorf("the member ended as %+v (%v), want exit code %d", o, err, code)
	}
	if a := r.tell(t, other.Assignment.ID, order{Probe: "read", Argument: fmt.Sprintf("/proc/%d/cmdline", pid)}); a.Output != "" {
		t.Errorf("a process of the ended member runs on: %q", a.Output)
	}
	if got := strings.TrimSpace(r.run(t, other.Assignment.ID, "echo", "alive")); got != "alive" {
		t.Errorf("the other member answers %q", got)
	}
}

func TestAMemberIsNotCleanWhileOthersHoldWhatItShared(t *testing.T) {
	r := newRig(t, "crun")
	m, other := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	r.startAll(t, m, other)
	if a := r.tell(t, m.Assignment.ID, order{Probe: "make segment", Argument: "x"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	if a := r.tell(t, other.Assignment.ID, order{Probe: "hold segment"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	err := r.Clean(t.Context(), m.Assignment.ID)
	if err == nil || !strings.Contains(err.Error(), "32MiB of memory that it shared is still in use by other members") {
		t.Errorf("cleaning a member whose memory another holds: %v", err)
	}
	if err := r.Clean(t.Context(), other.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), m.Assignment.ID); err != nil {
		t.Errorf("after the other has ended: %v", err)
	}
}

func TestWhatMembersShareOfIPCIsBounded(t *testing.T) {
	r := newRig(t, "crun")
	m := r.sharing(t, "one", idBase)
	r.startAll(t, m)
	for path, want := range map[string]string{
		"/proc/sys/kernel/msgmni": "64", "/proc/sys/kernel/msgmnb": "65536", "/proc/sys/kernel/sem": "250 32000 100 128",
		"/proc/sys/kernel/shm_rmid_forced": "1", "/proc/sys/fs/mqueue/queues_max": "16",
	} {
		got := strings.Join(strings.Fields(r.tell(t, m.Assignment.ID, order{Probe: "read", Argument: path}).Output), " ")
		if got != want {
			t.Errorf("a member reads %s as %q, want %q", path, got, want)
		}
		if a := r.tell(t, m.Assignment.ID, order{Probe: "write", Argument: path}); a.Err == "" {
			t.Errorf("a member's root has written %s", path)
		}
	}
}

func TestSystemVMemoryIsChargedToTheMemberAndLeavesNothing(t *testing.T) {
	r := newRig(t, "crun")
	m, other := r.sharing(t, "one", idBase), r.sharing(t, "one", idBase)
	r.startAll(t, m, other)
	if a := r.tell(t, m.Assignment.ID, order{Probe: "make segment", Argument: "x"}); a.Err != "" {
		t.Fatal(a.Err)
	}
	list := func() int { // the first line is the head
		return strings.Count(r.run(t, other.Assignment.ID, "cat", "/proc/sysvipc/shm"), "\n") - 1
	}
	if got := list(); got != 1 {
		t.Errorf("there are %d segments, want 1", got)
	}
	if err := r.Clean(t.Context(), m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != 0 {
		t.Errorf("%d segments outlive the member that made them", got)
	}
}
