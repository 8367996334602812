package diskspace

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// mount makes a file system of 640 MiB until the test ends.
func mount(t *testing.T, kind string) string {
	t.Helper()
	needs.Root(t, "mounts a small disk")
	dir := t.TempDir()
	if kind == "tmpfs" {
		if err := unix.Mount("small", dir, "tmpfs", 0, "mode=700,size=640m"); err != nil {
			t.Fatal(err)
		}
	} else {
		image := filepath.Join(t.TempDir(), "disk")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 640*mib)); err != nil {
			t.Fatal(err)
		}
		mkfs := needs.Program(t, "mkfs.ext4")
		for _, cmd := range [][]string{{mkfs, "-q", image}, {needs.Program(t, "mount"), "-o", "loop", image, dir}} {
			if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", cmd, err, out)
			}
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// filler takes room of a file system until this many bytes are free.
func filler(t *testing.T, dir string, leave int64) (remove func()) {
	t.Helper()
	path := filepath.Join(dir, "joblogs")
	d, err := statfs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := allocate(path, 0, d.free-leave); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARealDiskIsKeptFromFillingUp(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) {
			dir := mount(t, kind)
			var log bytes.Buffer
			s, err := Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			clock := time.Now()
			look := func() {
				t.Helper()
				clock = clock.Add(time.Second)
				if err := s.look(t.Context(), clock); err != nil {
					t.Fatal(err)
				}
			}
			free := func() int64 {
				t.Helper()
				d, err := statfs(dir)
				if err != nil {
					t.Fatal(err)
				}
				return d.free
			}
			before := free()
			look()
			if took := before - free(); took < s.held || s.held < 70*mib {
				t.Fatalf("the reserve is said to hold %d MiB and takes %d MiB", s.held>>20, took>>20)
			}
			whole := s.held
			if s.Check(Output) != nil || s.Check(Requests) != nil {
				t.Fatalf("an empty disk: %v, %v", s.Check(Output), s.Check(Requests))
			}

			remove := filler(t, dir, 60*mib)
			if s.Check(Output) == nil || s.Check(Requests) != nil {
				t.Errorf("60 MiB free: output %v, requests %v; want output to wait alone", s.Check(Output), s.Check(Requests))
			}
			remove()
			remove = filler(t, dir, 1*mib)
			look()
			var full *FullError
			if err := s.Check(Requests); !errors.As(err, &full) {
				t.Fatalf("a full disk: %v, want a FullError", err)
			}
			for _, says := range []string{dir, filepath.Join(dir, "joblogs") + " take", "remove files of jobs that have ended"} {
				if !strings.Contains(full.Error(), says) || !strings.Contains(log.String(), says) {
					t.Errorf("neither error nor log may leave out %q:\n%v\n%s", says, full, &log)
				}
			}
			if got := free(); got < levelsOf(640*mib).low || s.held >= whole {
				t.Errorf("%d MiB are free, the reserve holds %d of %d MiB; want it to have given some", got>>20, s.held>>20, whole>>20)
			}

			// Another start, with the disk still full.
			if s, err = Open(dir, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
				t.Fatal(err)
			}
			if got := free(); s.held != 0 || got < whole {
				t.Errorf("at a start %d MiB are free and %d MiB are held; want all of the %d MiB for the store", got>>20, s.held>>20, whole>>20)
			}
			look()
			if s.Check(Requests) == nil || s.Check(Output) == nil {
				t.Error("the room that the reserve gave back for the store is taken by requests or output")
			}
			remove()
			look()
			if s.Check(Requests) != nil || s.Check(Output) != nil || s.held != whole || !strings.Contains(log.String(), "has room again") {
				t.Errorf("with room again: %v, %v, %d of %d MiB held\n%s", s.Check(Requests), s.Check(Output), s.held>>20, whole>>20, &log)
			}
		})
	}
}

func TestADiskWithoutInodesIsFull(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "mode=700,size=640m,nr_inodes=100"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 90 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Check(Requests); err == nil || !strings.Contains(err.Error(), "no inodes left") {
		t.Errorf("got %v, want it to say that inodes are missing", err)
	}
}

func TestWhatTakesTheMostRoomIsNamedWithWhatRemovesIt(t *testing.T) {
	got := advice("/s", []entry{{"etcd", 900 * mib}, {"joblogs", 100 * mib}, {"images", 3 << 30}, {"home", 2000}})
	want := "there /s/images take 3.0 GiB (delete built environments with 'nearmetal env delete'), " +
		"/s/joblogs take 100 MiB (remove files of jobs that have ended); or make room on that file system elsewhere"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := advice("/s", []entry{{"etcd", 900 * mib}}); !strings.Contains(got, "other files on that file system") {
		t.Errorf("with nothing of ours: %s", got)
	}
}
