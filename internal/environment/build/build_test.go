package build_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const tiny = `
name: tiny
description: a shell
base: {directory: tiny}
files:
  - {path: /etc/motd, content: "welcome\n"}
  - {path: /usr/local/bin/tool, source: tool, mode: "4755"}
commands:
  - echo $((6*7)) > /etc/answer
  - |
    mkdir -p /var/cache/apt /etc/ssh /var/log/x
    echo secret > /etc/ssh/ssh_host_rsa_key
    echo now > /var/log/x/y
    echo id > /etc/machine-id
    echo t > /tmp/t
`

func TestTheSameRecipeMakesTheSameImage(t *testing.T) {
	for _, root := range []string{"", "root: {format: erofs, compression: lz4}\n", "root: {format: squashfs}\n"} {
		t.Run(root, func(t *testing.T) {
			s := newSite(t)
			s.tinyRoot("tiny", "mkdir")
			s.write("tool", "#!/bin/sh\n", 0o644)
			first := s.mustBuild(tiny + root)
			again := s.mustBuild(tiny + root)
			if first.Digest != again.Digest {
				t.Errorf("the same recipe made %s and %s", first.Digest, again.Digest)
			}
			if want := []string{"base", "files", "commands", "clean", "pack", "digest", "manifest"}; !slices.Equal(first.steps, want) {
				t.Errorf("steps %v, want %v", first.steps, want)
			}
			m := first.Manifest
			if m.Environment != "tiny" || m.Metal != nil || !slices.Equal(m.Stacks, []api.Stack{api.StackContainer}) || len(first.Blobs) != 3 {
				t.Errorf("manifest %+v, blobs %v", m, first.Blobs)
			}
			for _, b := range first.Blobs {
				if data := read(t, filepath.Join(s.output, b.Digest.Hex())); image.DigestOf([]byte(data)) != b.Digest || int64(len(data)) != b.SizeBytes {
					t.Errorf("blob %v is something else", b)
				}
			}
			checkTiny(t, s.mount(m))
			chunks, err := image.ParseChunks([]byte(read(t, filepath.Join(s.output, m.Root.Chunks.Digest.Hex()))), m.Root)
			if err != nil {
				t.Fatal(err)
			}
			data := []byte(read(t, filepath.Join(s.output, m.Root.Digest.Hex())))
			for i := range chunks.Len() {
				offset, length := chunks.Span(i)
				if err := chunks.Verify(i, data[offset:offset+int64(length)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// checkTiny looks at the mounted image of tiny.
func checkTiny(t *testing.T, root string) {
	t.Helper()
	for name, want := range map[string]string{"etc/motd": "welcome\n", "etc/answer": "42\n", "usr/local/bin/tool": "#!/bin/sh\n", "etc/machine-id": ""} {
		if got := read(t, filepath.Join(root, name)); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"etc/ssh/ssh_host_rsa_key", "var/log/x/y", "tmp/t", "dev/null", "etc/resolv.conf"} {
		if _, err := os.Lstat(filepath.Join(root, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is in the image: %v", name, err)
		}
	}
	host, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if read(t, filepath.Join(root, "bin/sh")) != read(t, host) {
		t.Error("/bin/sh is another than in the base")
	}
	var st syscall.Stat_t
	for name, mode := range map[string]uint32{"usr/local/bin/tool": 0o104755, "etc/answer": 0o100644, "tmp": 0o41777, "root": 0o40700} {
		if err := syscall.Stat(filepath.Join(root, name), &st); err != nil || st.Mode != mode || st.Uid != 0 || st.Gid != 0 {
			t.Errorf("%s: mode %o of %d:%d, %v; want %o of root", name, st.Mode, st.Uid, st.Gid, err, mode)
		}
	}
}

// TestACommandSeesNothingOfTheNode tells all that a hostile command found to be possible.
func TestACommandSeesNothingOfTheNode(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "ls", "cat", "mknod", "mount", "mkdir", "kill", "dd", "id", "date", "hostname")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	victim := exec.Command("sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	o := s.mustBuild(fmt.Sprintf(`
name: hostile
base: {directory: tiny}
commands:
  - |
    found() { echo "FOUND $*"; }
    [ -z "$(ls -A /root)" ] || found "the host's /root: $(ls -A /root)"
    cat %[1]s && found a file of the host
    cat /proc/1/root%[1]s && found a file of the host by /proc
    kill -9 %[2]d && found a process of the host
    kill -9 -1 || true
    set -- /proc/[0-9]*; [ $# -lt 5 ] || found "processes: $*"
    mknod /disk b 254 0 && found that devices can be made
    ls /dev/vda && found a disk
    mkdir /m && mount -t tmpfs none /m && found that mounts can be made
    mount -t proc none /m && found that proc can be mounted
    dd if=/dev/zero of=/proc/sys/kernel/core_pattern count=1 && found that the kernel can be set up
    dd if=/dev/zero of=/proc/sysrq-trigger count=1 && found sysrq
    date -s 2001-01-01 && found that the clock can be set
    hostname evil && found that the host name can be set
    while read line; do case "$line" in *lo:*|*Receive*|*bytes*) ;; *) found "a network: $line" ;; esac; done < /proc/net/dev
    ls /proc/1/cwd/ > /dev/null
    while read a b c d; do case "$a $b $c" in "Max processes "*) [ $c -le 8192 ] || found "no limit of processes: $c"; esac; done < /proc/self/limits
    while read inside outside count; do [ $outside != 0 ] || found root of the host; done < /proc/self/uid_map
    [ -z "$http_proxy$SUDO_USER$NEARMETAL_TEST_SECRET" ] || found the environment of the agent
    true
`, secret, victim.Process.Pid))
	for line := range strings.Lines(o.log) {
		if strings.HasPrefix(line, "FOUND") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the host's process is gone: %v", err)
	}
}

func TestLinksLeadNowhereOutOfTheRoot(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "ln", "rm", "mkdir")
	outside := t.TempDir()
	o := s.build(t.Context(), "name: links\nbase: {directory: links}\n", nil)
	if o.err == nil || !strings.Contains(o.err.Error(), `"links" is not in the source directory`) {
		t.Errorf("a base that is not there: %v", o.err)
	}
	if err := os.Symlink(outside, filepath.Join(s.sources, "tiny/out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(s.sources, "escape")); err != nil {
		t.Fatal(err)
	}
	var failure *build.Failure
	for _, text := range []string{
		"name: links\nbase: {directory: tiny}\nfiles: [{path: /out/file, content: x}]\n",
		"name: links\nbase: {directory: tiny}\nfiles: [{path: /etc/x, source: escape/passwd}]\n",
		"name: links\nbase: {directory: escape}\n",
		"name: links\nbase: {oci: escape/passwd}\n",
	} {
		if o := s.build(t.Context(), text, nil); !errors.As(o.err, &failure) {
			t.Errorf("%s: %v, want a failure", text, o.err)
		}
	}
	// What cleans up, after the commands, follows no links either.
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.mustBuild(fmt.Sprintf("name: links\nbase: {directory: tiny}\ncommands: ['rm -rf /var/log /tmp; ln -s %[1]s /var/log; ln -s %[1]s /tmp; mkdir -p /var/lib; ln -s %[1]s /var/lib/urandom']\n", outside))
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside of the root there is %v, %v", entries, err)
	}
	// Nor does what makes the initrd.
	s.write("tiny/boot/vmlinuz-1.0", "kernel", 0o644)
	o = s.build(t.Context(), fmt.Sprintf("name: links\nbase: {directory: tiny}\nkernel: {package: installed}\ncommands: ['mkdir -p /lib/modules/1.0; ln -s %s /lib/modules/1.0/modules.dep']\n", keep), nil)
	if !errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), "modules.dep is not a regular file") {
		t.Errorf("modules that are a link: %v", o.err)
	}
}

func TestACancelledBuildLeavesNothing(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "sleep")
	mark := strconv.Itoa(100000 + os.Getpid())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log := &signalWriter{text: "it has begun", came: make(chan struct{})}
	done := make(chan outcome, 1)
	go func() {
		done <- s.build(ctx, fmt.Sprintf("name: slow\nbase: {directory: tiny}\ncommands: ['sleep %[1]s & sleep %[1]s & echo it has be\"\"gun; sleep %[1]s']\n", mark), log)
	}()
	select {
	case <-log.came:
	case o := <-done:
		t.Fatalf("the build ended by itself: %v", o.err)
	}
	if n := processesWith(t, mark); n < 2 {
		t.Fatalf("only %d processes of the build are there", n)
	}
	cancel()
	if o := <-done; !errors.Is(o.err, context.Canceled) {
		t.Errorf("the build ended with %v", o.err)
	}
	if n := processesWith(t, mark); n > 0 {
		t.Errorf("%d processes of the build are left", n)
	}
	for _, file := range []string{"/proc/self/mountinfo", "/proc/1/mountinfo"} {
		if strings.Contains(read(t, file), s.scratch) {
			t.Errorf("%s has a mount of the build", file)
		}
	}
	if left, _ := os.ReadDir(s.output); len(left) > 0 {
		t.Errorf("output: %v", left)
	}
}

// processesWith counts the processes of the machine whose command line holds a text.
func processesWith(t *testing.T, text string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), text) && !strings.Contains(string(line), "-test.") {
			n++
		}
	}
	return n
}

func TestAFullDiskIsSaidPlainly(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "dd")
	if err := unix.Mount("scratch", s.scratch, "tmpfs", 0, "size=32m"); err != nil {
		needs.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	s.unmount(s.scratch)
	o := s.build(t.Context(), "name: big\nbase: {directory: tiny}\ncommands: [dd if=/dev/zero of=/big bs=1M count=100]\n", nil)
	var failure *build.Failure
	if o.err == nil || errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), "the scratch directory of this node is full") {
		t.Errorf("error %v", o.err)
	}
	o = s.build(t.Context(), "name: big\nbase: {directory: tiny}\ncommands: [dd if=/dev/urandom of=/big bs=1M count=20]\nroot: {compression: none}\n", nil)
	if o.err == nil || !strings.Contains(o.err.Error(), "full") {
		t.Errorf("a disk full while packing: %v", o.err)
	}
	if left, _ := os.ReadDir(s.output); len(left) > 0 {
		t.Errorf("output: %v", left)
	}
}

func TestWhatIsWrongIsSaidInTheRecipesWords(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny")
	s.write("noroot/x", "x", 0o644)
	s.write("text", "no archive", 0o644)
	for text, want := range map[string]string{
		"commands: ['true', 'echo what now; exit 3']": "line 3 of the recipe: commands[1] ended with exit code 3: echo what now; exit 3\nwhat now",
		"commands:\n  - 'true'\n  - 'false'":          "line 5 of the recipe: commands[1] ended with exit code 1: false",
		"files: [{path: /a, source: missing}]":        `"missing" is not in the source directory of this builder node`,
		"files: [{path: /bin/sh/x, content: x}]":      "files[0]: the directory of /bin/sh/x can't be made",
		"packages: [gcc]":                             "it has no apt-get",
		"kernel: {package: installed}":                "no kernel for metal: the root has no modules",
		"requirements: {architecture: aarch64}":       "needs aarch64, but this builder node is x86_64",
		"name: a\nbase: {directory: noroot}":          `"noroot" is not the root of a system`,
		"name: a\nbase: {directory: text}":            `"text" is not a directory`,
		"name: a\nbase: {oci: text}":                  `"text" is not a tar archive`,
		"name: a\nbase: {environment: nothing}":       `base environment "nothing" is not built`,
	} {
		if !strings.Contains(text, "base:") {
			text = "name: a\nbase: {directory: tiny}\n" + text
		}
		o := s.build(t.Context(), text, nil)
		var failure *build.Failure
		if !errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), want) || strings.TrimSpace(o.err.Error()) != o.err.Error() {
			t.Errorf("%s:\n%v\nwant a failure: %s", text, o.err, want)
		}
	}
}

func TestABuildHasNoMoreMemoryThanItsLimit(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "dd")
	const group = "build-test"
	s.Builder = build.New(build.Config{Worker: worker(t), MinFreeBytes: 1 << 20, MemoryBytes: 96 << 20, Group: group})
	// What goes on after a part of it was ended is no whole image either.
	for _, rest := range []string{"", " || true"} {
		o := s.build(t.Context(), "name: big\nbase: {directory: tiny}\ncommands: ['dd if=/dev/zero of=/dev/null bs=200M count=1"+rest+"']\n", nil)
		if strings.Contains(o.log, "memory is not limited") {
			needs.Missing(t, "no control group bounds the memory of a build: %s", o.log)
		}
		var failure *build.Failure
		if !errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), "needed more than the 96 MiB of memory") {
			t.Errorf("with %q: %v", rest, o.err)
		}
	}
	s.mustBuild("name: small\nbase: {directory: tiny}\ncommands: ['dd if=/dev/zero of=/dev/null bs=20M count=1']\n")
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/nearmetal/" + group); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestABuildThatLeavesTooLittleRoomIsEnded(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "dd", "sleep")
	if err := unix.Mount("scratch", s.scratch, "tmpfs", 0, "size=256m"); err != nil {
		needs.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	s.unmount(s.scratch)
	s.Builder = build.New(build.Config{Worker: worker(t), MinFreeBytes: 180 << 20})
	o := s.build(t.Context(), "name: big\nbase: {directory: tiny}\ncommands: ['dd if=/dev/zero of=/big bs=1M count=200; sleep 20']\n", nil)
	var failure *build.Failure
	if o.err == nil || errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), "90 MiB are kept for the node") {
		t.Errorf("error %v", o.err)
	}
}

// TestABuildEndsWithWhoStartedIt kills the process that runs a build, as a crash of the node agent would.
func TestABuildEndsWithWhoStartedIt(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "sleep")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	mark := strconv.Itoa(200000 + os.Getpid())
	agent := exec.Command(self, "run-build", s.scratch, s.output, s.sources,
		fmt.Sprintf("name: slow\nbase: {directory: tiny}\ncommands: ['sleep %[1]s & echo it has be\"\"gun; sleep %[1]s']\n", mark))
	output, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(output); lines.Scan() && lines.Text() != "it has begun"; {
	}
	if n := processesWith(t, mark); n < 2 {
		t.Fatalf("only %d processes of the build are there", n)
	}
	var tree []int
	for _, f := range must(filepath.Glob("/proc/[0-9]*/cmdline"))(t) {
		if line, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(line), "sleep\x00"+mark) {
			pid, err := strconv.Atoi(strings.Split(f, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				t.Fatal(err)
			}
			tree = append(tree, fd)
		}
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait()
	for _, fd := range tree { // readable once the process has ended (pidfd_open(2))
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000); n != 1 {
			t.Errorf("a process of the build lives on: %v", err)
		}
		_ = unix.Close(fd)
	}
	if left, _ := os.ReadDir(s.scratch); len(left) != 1 {
		t.Errorf("scratch: %v", left)
	}
	if err := build.Clean(t.Context(), s.scratch); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(s.scratch); len(left) > 0 {
		t.Errorf("Clean left %v", left)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
