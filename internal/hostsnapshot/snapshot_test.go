package hostsnapshot

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

const inside = "HOSTSNAPSHOT_TEST_INSIDE"

// isolated runs the calling test again as a child in mount, network and IPC namespaces of its own, so that it may make links,
// rules and mounts without touching the host. The child has the given group. It returns true in the child.
func isolated(t *testing.T, group uint32) bool {
	t.Helper()
	needs.Root(t, "makes namespaces and reads every process")
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Credential: &syscall.Credential{Gid: group, NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	t.Logf("in namespaces of its own:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

func run(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

func take(t *testing.T, opts Options) Snapshot {
	t.Helper()
	s, err := Take(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// find returns the difference of a kind whose key or detail holds the text.
func find(differences []Difference, kind Kind, text string) (Difference, bool) {
	for _, d := range differences {
		if d.Kind == kind && (strings.Contains(d.Key, text) || strings.Contains(d.Detail, text)) {
			return d, true
		}
	}
	return Difference{}, false
}

// thing is one kind of debris: how it comes, how it goes, and what the difference says of it.
type thing struct {
	kind Kind
	text string
	make func(t *testing.T)
	undo func(t *testing.T)
}

func TestEveryKindOfDebrisIsFoundAndItsRemovalIsSeen(t *testing.T) {
	if isolated(t, 0) {
		findEach(t)
	}
}

func TestEveryKindOfDebrisIsFoundByItsGroupAmongThatOfOthers(t *testing.T) {
	if isolated(t, ownGroup(t)) {
		findEach(t)
	}
}

func ownGroup(t *testing.T) uint32 {
	t.Helper()
	needs.Root(t, "gives a process a group")
	group := OwnGroup()
	if group == 0 {
		needs.Missing(t, "this user namespace maps no group that nothing else has")
	}
	return group
}

// furnish makes mount points and links that what follows needs, and returns a directory that has no group of its own.
func furnish(t *testing.T) string {
	t.Helper()
	if err := AdoptOrphans(); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "--make-rprivate", "/")
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "sysctl", "-q", "net.ipv4.ip_forward=0") // a new namespace takes over what the host has
	if err := os.MkdirAll("/dev/mqueue", 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "mount", "-t", "mqueue", "none", "/dev/mqueue")
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chown(d, -1, 0); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// findEach makes each kind of debris with this process's group, and removes it.
func findEach(t *testing.T) {
	dir := furnish(t)
	opts := Options{FileRoots: []string{dir}, Group: uint32(os.Getegid())}
	for _, x := range allThings(t, dir) {
		t.Run(string(x.kind)+" "+x.text, func(t *testing.T) {
			before := take(t, opts)
			x.make(t)
			d, found := find(before.Diff(take(t, opts)), x.kind, x.text)
			if !found || d.Verdict != Left || d.Change == Vanished {
				t.Errorf("made %s %q: got %v, want a difference that counts", x.kind, x.text, d)
			}
			with := take(t, opts)
			x.undo(t)
			_, differences, err := before.Settle(t.Context(), opts, 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			if d, found := find(Counting(differences), x.kind, x.text); found {
				t.Errorf("removed, and yet: %v", d)
			}
			if _, found := find(with.Diff(take(t, opts)), x.kind, x.text); !found {
				t.Errorf("%s %q vanished and the difference does not say so", x.kind, x.text)
			}
		})
	}
}

// TestWhatHasNoGroupAndNoHolderIsReportedApart makes things as any other program does, in places that all programs share.
func TestWhatHasNoGroupAndNoHolderIsReportedApart(t *testing.T) {
	if !isolated(t, ownGroup(t)) {
		return
	}
	dir := furnish(t)
	opts := Options{FileRoots: []string{dir}, Group: uint32(os.Getegid())}
	cgroup := firstCgroup(t) + fmt.Sprintf("/hostsnapshot-others-%d", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	for _, x := range []struct {
		kind          Kind
		text, command string
	}{
		{File, "a-file", "touch a-file"},
		{File, "a-folder", "mkdir a-folder"},
		{File, "a-pipe", "mkfifo a-pipe"},
		{Mount, "a-mount", "mkdir a-mount && mount -t tmpfs none a-mount"},
		{Namespace, "a-netns", "touch a-netns && unshare --net=$PWD/a-netns true"},
		{Cgroup, cgroup, "mkdir " + cgroup},
		{IPC, "System V shm", "ipcmk -M 4096"},
		{IPC, "System V sem", "ipcmk -S 1"},
		{IPC, "System V msg", "ipcmk -Q"},
		{IPC, "/others", "touch /dev/mqueue/others"},
		{Loop, "a-disk", "truncate -s 1M a-disk && losetup --find a-disk"},
	} {
		t.Run(string(x.kind)+" "+x.text, func(t *testing.T) {
			before := take(t, opts)
			run(t, "setpriv", "--regid=0", "--keep-groups", "sh", "-c", "cd "+dir+" && "+x.command)
			differences := before.Diff(take(t, opts))
			if d, found := find(differences, x.kind, x.text); !found || d.Verdict != Unknown {
				t.Errorf("another program made %s %q: got %v, want a difference of unknown origin", x.kind, x.text, d)
			}
			// Other programs of this host may make things, too. That it is nothing of ours is what counts.
			if left := Counting(differences); len(left) > 0 {
				t.Errorf("counted as left: %v", left)
			}
		})
	}
	run(t, "sh", "-c", "cd "+dir+" && umount a-mount a-netns && "+detach+"a-disk)")
}

// detach frees the loop device of a file, whose name and a parenthesis follow.
const detach = "losetup --detach $(losetup --noheadings --output NAME --associated "

func allThings(t *testing.T, dir string) []thing {
	cgroup := firstCgroup(t) + fmt.Sprintf("/hostsnapshot-test-%d", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(cgroup) })
	var orphan string
	var listener net.Listener
	var unixListener net.Listener
	file := filepath.Join(dir, "debris")
	do := func(command ...string) func(*testing.T) { return func(t *testing.T) { run(t, command...) } }
	sh := func(command string) func(*testing.T) { return do("sh", "-c", "cd "+dir+" && "+command) }
	var shm uintptr
	return []thing{
		{Link, "nmtest0", do("ip", "link", "add", "nmtest0", "type", "bridge"), do("ip", "link", "del", "nmtest0")},
		{Address, "192.0.2.7/32", do("ip", "addr", "add", "192.0.2.7/32", "dev", "lo"), do("ip", "addr", "del", "192.0.2.7/32", "dev", "lo")},
		{Route, "198.51.100.0/24", do("ip", "route", "add", "blackhole", "198.51.100.0/24"), do("ip", "route", "del", "blackhole", "198.51.100.0/24")},
		{Rule, "4242", do("ip", "rule", "add", "pref", "4242", "table", "77"), do("ip", "rule", "del", "pref", "4242")},
		{NFTables, "nmtest", do("nft", "add", "table", "inet", "nmtest"), do("nft", "delete", "table", "inet", "nmtest")},
		{Sysctl, "net.ipv4.ip_forward", do("sysctl", "-q", "net.ipv4.ip_forward=1"), do("sysctl", "-q", "net.ipv4.ip_forward=0")},
		{Mount, dir + "/mnt", func(t *testing.T) {
			run(t, "mkdir", dir+"/mnt")
			run(t, "mount", "-t", "tmpfs", "none", dir+"/mnt")
		}, func(t *testing.T) {
			run(t, "umount", dir+"/mnt")
			run(t, "rmdir", dir+"/mnt")
		}},
		{Namespace, dir + "/netns", func(t *testing.T) {
			run(t, "touch", dir+"/netns")
			run(t, "unshare", "--net="+dir+"/netns", "true")
		}, func(t *testing.T) {
			run(t, "umount", dir+"/netns")
			run(t, "rm", dir+"/netns")
		}},
		{Sysctl, "net.ipv4.conf.lo.forwarding", do("sysctl", "-q", "net.ipv4.conf.lo.forwarding=1"), do("sysctl", "-q", "net.ipv4.conf.lo.forwarding=0")},
		{Mount, dir + "/theirs", sh("mkdir theirs && chgrp 0 theirs && mount -t tmpfs none theirs"), sh("umount theirs && rmdir theirs")},
		{Mount, dir + "/bound", sh("mkdir bound && mount --bind /etc bound"), sh("umount bound && rmdir bound")},
		{Cgroup, cgroup, do("mkdir", cgroup), do("rmdir", cgroup)},
		{File, dir + "/folder", sh("mkdir folder"), sh("rmdir folder")},
		{File, dir + "/given/file", sh("mkdir given && touch given/file && chgrp 0 given/file"), sh("rm -r given")},
		{File, dir + "/link", sh("ln -s nowhere link"), sh("rm link")},
		{File, dir + "/pipe", sh("mkfifo pipe"), sh("rm pipe")},
		{Loop, dir + "/disk", sh("truncate -s 1M disk && losetup --find disk"), sh(detach + "disk) && rm disk")},
		{IPC, "System V sem", sh("ipcmk -S 1"), sh("ipcrm --all=sem")},
		{IPC, "System V msg", sh("ipcmk -Q"), sh("ipcrm --all=msg")},
		{IPC, "message queue /ours", do("touch", "/dev/mqueue/ours"), do("rm", "/dev/mqueue/ours")},
		{
			File, file, func(t *testing.T) { write(t, file, "x") },
			func(t *testing.T) { run(t, "rm", file) },
		},
		{Socket, "tcp 127.0.0.1:", func(t *testing.T) { listener = listen(t, "tcp", "127.0.0.1:0") }, func(*testing.T) { _ = listener.Close() }},
		{Socket, "unix @hostsnapshot", func(t *testing.T) { unixListener = listen(t, "unix", "@hostsnapshot") }, func(*testing.T) { _ = unixListener.Close() }},
		{IPC, "System V shm", func(t *testing.T) {
			id, _, errno := unix.Syscall(unix.SYS_SHMGET, unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
			if errno != 0 {
				t.Fatal(errno)
			}
			shm = id
		}, func(t *testing.T) {
			if _, _, errno := unix.Syscall(unix.SYS_SHMCTL, shm, unix.IPC_RMID, 0); errno != 0 {
				t.Fatal(errno)
			}
		}},
		{Process, "sleep 86399", func(t *testing.T) {
			// The shell ends at once, so that the sleeper is an orphan, in a session of its own.
			out, err := exec.Command("sh", "-c", "setsid sleep 86399 >/dev/null 2>&1 & echo $!").Output()
			if err != nil {
				t.Fatal(err)
			}
			orphan = strings.TrimSpace(string(out))
			awaitCommand(t, orphan, "sleep\x0086399\x00")
		}, func(t *testing.T) { endOrphan(t, orphan) }},
	}
}

// awaitCommand waits until a process runs a command: it is a copy of its parent first, and has no command for a moment while it becomes the program.
func awaitCommand(t *testing.T, pid, want string) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		if got, err := os.ReadFile("/proc/" + pid + "/cmdline"); err != nil || string(got) == want {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		select {
		case <-look.C:
		case <-t.Context().Done():
			t.Fatalf("process %s does not become %q", pid, want)
		}
	}
}

func endOrphan(t *testing.T, pid string) {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(n, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(n, nil, 0, nil); err != nil {
		t.Errorf("the orphan was not adopted: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// firstCgroup returns where some cgroup hierarchy is mounted.
func firstCgroup(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if m, ok := parseMount(line); ok && strings.HasPrefix(m.fsType, "cgroup") {
			return m.target
		}
	}
	needs.Missing(t, "no cgroup hierarchy is mounted")
	return ""
}

func TestAChangedFileIsADifferenceAndItsTimeIsNot(t *testing.T) {
	needs.Root(t, "reads every process")
	dir := t.TempDir()
	file, opts := filepath.Join(dir, "f"), Options{FileRoots: []string{dir}}
	write(t, file, "12345")
	before := take(t, opts)
	if err := os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if d, found := find(before.Diff(take(t, opts)), File, file); found {
		t.Errorf("only the time changed, and yet: %v", d)
	}
	write(t, file, "123456")
	if d, found := find(before.Diff(take(t, opts)), File, file); !found || d.Change != Changed || d.Verdict != Left {
		t.Errorf("the size changed: got %v, want a change that counts", d)
	}
}

func TestWhatTheCallerIgnoresIsInNeitherSnapshot(t *testing.T) {
	needs.Root(t, "reads every process")
	dir := t.TempDir()
	opts := Options{FileRoots: []string{dir}, Ignore: func(kind Kind, key string) bool { return kind == File && strings.HasSuffix(key, "/report.html") }}
	before := take(t, opts)
	write(t, filepath.Join(dir, "report.html"), "<html>")
	write(t, filepath.Join(dir, "debris"), "x")
	differences := before.Diff(take(t, opts))
	if d, found := find(differences, File, "report.html"); found {
		t.Errorf("ignored, and yet: %v", d)
	}
	if _, found := find(differences, File, "debris"); !found {
		t.Error("ignoring one file hid another")
	}
}

func TestADefaultSnapshotOfThisHostIsQuickAndComplete(t *testing.T) {
	needs.Root(t, "reads every process")
	s := take(t, Options{})
	t.Logf("%s in %v; notes: %q", s.Counts(), s.Took.Round(time.Millisecond), s.Notes)
	for _, kind := range []Kind{Process, Namespace, Mount, Link, Sysctl, File} {
		if s.Count(kind) == 0 {
			t.Errorf("the snapshot holds no %s", kind)
		}
	}
	if s.Took > time.Minute {
		t.Errorf("it took %v", s.Took)
	}
}
