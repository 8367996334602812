package bootagent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAVolumeIsFoundWhereverRootHasIt(t *testing.T) {
	table := `24 1 0:22 / / rw - overlay overlay rw
31 24 0:40 / /home rw,nosuid - nfs 127.0.0.1:/ rw,vers=3
32 24 0:41 / /volumes/data rw,nosuid - nfs 127.0.0.1:/volumes/data rw,vers=3
33 24 0:42 / /volumes/data2 rw shared:1 - nfs 127.0.0.1:/volumes/data2 rw
34 24 0:41 / /mnt/b\040c\134d rw shared:2 master:1 - nfs 127.0.0.1:/volumes/data rw
35 24 0:43 / /fake rw - tmpfs 127.0.0.1:/volumes/data rw
36 24
`
	for source, want := range map[string][]string{
		"127.0.0.1:/volumes/data": {`/mnt/b c\d`, "/volumes/data"}, "127.0.0.1:/": {"/home"}, "127.0.0.1:/volumes": nil,
	} {
		if got := placesOf(table, source); !slices.Equal(got, want) {
			t.Errorf("%s is at %q, want %q", source, got, want)
		}
	}
}

func TestProcessesThatHaveFilesOfAVolumeOpenAreNamed(t *testing.T) {
	proc := t.TempDir()
	process := func(pid, name, link, to, maps string) {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "fd"), 0o755), os.WriteFile(filepath.Join(dir, "comm"), []byte(name+"\n"), 0o644),
			os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o644), os.Symlink(to, filepath.Join(dir, link))); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := usersText(proc, "/volumes/data"), "files of /volumes/data are still open"; got != want {
		t.Errorf("nobody: got %q, want %q", got, want)
	}
	process("7", "sh", "cwd", "/volumes/data", "")
	process("8", "vi", "fd/3", "/volumes/data/file", "")
	process("9", "python3", "fd/1", "/dev/null", "7f00-7f01 r-xp 0 0:41 5  /volumes/data/lib.so\n")
	process("10", "other", "exe", "/volumes/data2/program", "7f00-7f01 r-xp 0 0:41 5  /volumes/data2/lib.so\n")
	process("self", "self", "cwd", "/volumes/data", "")
	want := `files of /volumes/data are still open by "sh" (PID 7), "vi" (PID 8), "python3" (PID 9); end these processes, or have them close the files`
	if got := usersText(proc, "/volumes/data"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	process("6", "first", "root", "/volumes/data/root", "")
	if got := usersText(proc, "/volumes/data"); !strings.Contains(got, " and 1 more; end") {
		t.Errorf("four processes: %q", got)
	}
}

func TestOnlyTheKernelSpeaksToTheHome(t *testing.T) {
	for port, want := range map[int]bool{1: true, 665: true, 1023: true, 1024: false, 40000: false} {
		if got := ofKernel(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}); got != want {
			t.Errorf("a connection from port %d: %t, want %t", port, got, want)
		}
	}
	if ofKernel(&net.UnixAddr{}) {
		t.Error("a connection without a port was taken for the kernel's")
	}
}
