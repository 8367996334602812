package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatAServerSaysOfItselfIsReadWithCare(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", "calls 10\nwaits 4\nbusy_ns 2000000000\nwait_ns 25000\nlater 7\n")
	got, err := readCounts(good)
	if want := (api.GPUService{Calls: 10, Waits: 4, BusySeconds: 2, WaitSeconds: 25e-6}); err != nil || got != want {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"no file": filepath.Join(dir, "none"), "a link to a file of the host": link, "a pipe, which nobody writes to": pipe, "a directory": dir,
		"a negative number": write("negative", "calls -1\n"), "no number": write("words", "calls many\n"), "more waits than calls": write("more", "calls 1\nwaits 2\n"),
		"one long line": write("long", strings.Repeat("x", 1<<20)),
	} {
		if got, err := readCounts(path); err == nil || got != (api.GPUService{}) {
			t.Errorf("%s: %+v, want an error", name, got)
		}
	}
}
