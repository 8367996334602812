package filetree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// deepen makes directories in each other below dir, with a file and a link in the last one.
func deepen(t *testing.T, dir string, levels int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range levels {
		if err == nil {
			err = unix.Mkdirat(at, "a", 0o700)
		}
		if err != nil {
			break
		}
		var next int
		next, err = unix.Openat(at, "a", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		at = next
	}
	if err == nil {
		err = errors.Join(unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0), unix.Symlinkat("/", at, "link"), unix.Close(at))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// limitOpenFiles lets this process open few files more than it has open, until the test ends.
func limitOpenFiles(t *testing.T, more uint64) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	var was unix.Rlimit
	if err := errors.Join(err, unix.Getrlimit(unix.RLIMIT_NOFILE, &was)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(entries)) + more, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
}

func makeTree(t *testing.T) (parent, top string) {
	t.Helper()
	parent = t.TempDir()
	top = filepath.Join(parent, "top")
	if err := os.Mkdir(top, 0o700); err != nil {
		t.Fatal(err)
	}
	return parent, top
}

// mustBeEmpty tells whether nothing else is in the directory that a tree was in.
func mustBeEmpty(t *testing.T, parent string) {
	t.Helper()
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v (%v), want nothing", entries, err)
	}
}

func TestATreeOfAnyDepthIsRemovedWithFewOpenFiles(t *testing.T) {
	parent, top := makeTree(t)
	deepen(t, top, 2_200) // longer than a path may be, too
	limitOpenFiles(t, mostHeld+10)
	if err := Remove(t.Context(), top); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, parent)
}

func TestADirectoryOfMoreEntriesThanAreReadAtOnceIsRemoved(t *testing.T) {
	parent, top := makeTree(t)
	for n := range 600 {
		path := filepath.Join(top, fmt.Sprint(n))
		err := unix.Mkdir(path, 0o700)
		if n%2 == 0 {
			err = errors.Join(err, unix.Mkdir(filepath.Join(path, "below"), 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(t.Context(), top); err != nil {
		t.Fatal(err)
	}
	mustBeEmpty(t, parent)
}

// patience is a context that ends after a number of looks at it.
type patience struct {
	context.Context
	looks int
}

func (p *patience) Err() error {
	if p.looks--; p.looks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

func TestARemovalThatIsOutOfTimeGoesOnWhereItStopped(t *testing.T) {
	parent, top := makeTree(t)
	deepen(t, top, 500)
	attempts := 1
	for ; attempts < 100; attempts++ {
		err := Remove(&patience{t.Context(), 100}, top)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "the next attempt continues from there") {
			t.Fatal(err)
		}
	}
	if attempts < 3 || attempts > 30 {
		t.Errorf("it took %d attempts", attempts)
	}
	mustBeEmpty(t, parent)
}

func TestWhatLinksAndMountsLeadToStays(t *testing.T) {
	needs.Root(t, "mounts file systems")
	parent, top := makeTree(t)
	victim := t.TempDir()
	kept := filepath.Join(victim, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deepen(t, top, 40)
	inner := filepath.Join(top, strings.Repeat("a/", 30))
	mountPoint := filepath.Join(inner, "mounted")
	err := errors.Join(os.Symlink(victim, filepath.Join(inner, "link")), os.Mkdir(mountPoint, 0o700), unix.Mount(victim, mountPoint, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(mountPoint, 0); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	if err := Remove(t.Context(), top); err == nil || !strings.Contains(err.Error(), `"mounted"`) {
		t.Errorf("with a mount in the tree: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	mountPoint = theMount(t, parent)
	unmount()
	if err := Remove(t.Context(), top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	mustBeEmpty(t, parent)
}

// theMount finds where a mount below a directory is by now.
func theMount(t *testing.T, below string) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], below) {
			return fields[4]
		}
	}
	t.Fatal("nothing is mounted there any more")
	return ""
}

func TestATenantWhoExchangesDirectoriesMeanwhileLosesNobodyElsesFiles(t *testing.T) {
	parent, top := makeTree(t)
	victim := t.TempDir()
	kept := filepath.Join(victim, "a")
	if err := errors.Join(os.Mkdir(kept, 0o700), os.WriteFile(filepath.Join(kept, "kept"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		dir := filepath.Join(top, fmt.Sprint(n))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(victim, dir+".link")); err != nil {
			t.Fatal(err)
		}
		deepen(t, dir, 40)
	}
	done := make(chan struct{})
	var tenant sync.WaitGroup
	tenant.Go(func() {
		for n := 0; ; n = (n + 1) % 20 {
			select {
			case <-done:
				return
			default:
			}
			dir := filepath.Join(top, fmt.Sprint(n))
			_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+".link", unix.RENAME_EXCHANGE)
			_ = os.Rename(filepath.Join(dir, "a", "a"), filepath.Join(top, fmt.Sprint((n+1)%20), "moved"))
		}
	})
	err := Remove(t.Context(), top)
	close(done)
	tenant.Wait()
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(kept, "kept")); err != nil {
		t.Error(err)
	}
	mustBeEmpty(t, parent)
}

func TestAFileALinkAndNothingAreRemovedToo(t *testing.T) {
	parent, top := makeTree(t)
	file, link := filepath.Join(parent, "file"), filepath.Join(parent, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(parent, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, top + "/", filepath.Join(parent, "nothing"), filepath.Join(parent, "no", "thing")} {
		if err := Remove(t.Context(), path); err != nil {
			t.Error(err)
		}
	}
	mustBeEmpty(t, parent)
	for _, path := range []string{"/", ".", "..", ""} {
		if err := Remove(t.Context(), path); err == nil {
			t.Errorf("%q was removed", path)
		}
	}
}

// As if it had become one after it was found to be a directory.
func TestNoLinkAndNoMountIsEntered(t *testing.T) {
	needs.Root(t, "mounts file systems")
	_, top := makeTree(t)
	victim := t.TempDir()
	kept, mounted := filepath.Join(victim, "kept"), filepath.Join(top, "mounted")
	err := errors.Join(os.WriteFile(kept, nil, 0o600), os.Symlink(victim, filepath.Join(top, "link")), os.Mkdir(mounted, 0o700),
		unix.Mount(victim, mounted, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, name := range []string{"link", "mounted"} {
		r := remover{ctx: t.Context()}
		_ = r.enter(dir, name)
		if _, err := os.Stat(kept); err != nil {
			t.Fatalf("%s was entered: %v", name, err)
		}
	}
}
