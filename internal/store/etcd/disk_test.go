package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
)

// A test that needs other processes runs itself again in them. rerunEnv tells such a process which part it plays.
const rerunEnv = "NEARMETAL_TEST_PART"

// rerun runs this test again in a process that plays a part, and returns its output.
func rerun(t *testing.T, part string, attr *syscall.SysProcAttr) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), rerunEnv+"="+part)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", part, err, out)
	}
	return string(out)
}

// smallDisk mounts a disk of some MiB and returns its directory and a function that resizes it.
func smallDisk(t *testing.T, mib int) (string, func(mib int)) {
	t.Helper()
	dir := t.TempDir()
	mount := func(flags uintptr, mib int) {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("size=%dm", mib)); err != nil {
			t.Fatal(err)
		}
	}
	mount(0, mib)
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir, func(mib int) { mount(syscall.MS_REMOUNT, mib) }
}

func TestAFullDiskIsAClearErrorAndLosesNothing(t *testing.T) {
	part, dir, _ := strings.Cut(os.Getenv(rerunEnv), " ")
	count := filepath.Join(filepath.Dir(filepath.Dir(dir)), "confirmed") // not on the full disk
	switch part {
	case "":
		needs.Root(t, "mounts a small disk")
		t.Parallel()
		// In a mount namespace of its own, so that the disk is gone with it.
		t.Log(rerun(t, "disk", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))
	case "disk":
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		disk, resize := smallDisk(t, 220)
		dir := filepath.Join(disk, "etcd")
		t.Log(rerun(t, "fill "+dir, nil))
		t.Log(rerun(t, "still full "+dir, nil))
		resize(600)
		t.Log(rerun(t, "restart "+dir, nil))
	case "fill":
		confirmed := fillDisk(t, dir)
		if err := os.WriteFile(count, fmt.Append(nil, confirmed), 0o600); err != nil {
			t.Fatal(err)
		}
	case "still":
		dir := strings.TrimPrefix(dir, "full ")
		s, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
		if err == nil {
			// It found room to start; then the writes must say it.
			value := []byte(strings.Repeat("x", 900<<10))
			for i := 0; err == nil && i < 1000; i++ {
				_, err = s.Commit(t.Context(), nil, []store.Op{{Key: "more", Value: value}})
			}
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("a start on the full disk: %v, want why it fails", err)
		}
		t.Log(err)
	case "restart":
		data, err := os.ReadFile(count)
		if err != nil {
			t.Fatal(err)
		}
		var confirmed int
		if _, err := fmt.Sscan(string(data), &confirmed); err != nil {
			t.Fatal(err)
		}
		snap, err := open(t, dir).List(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Entries) < confirmed {
			t.Errorf("%d of %d confirmed writes are there after a restart with more space", len(snap.Entries), confirmed)
		}
		t.Logf("%d confirmed, %d found", confirmed, len(snap.Entries))
	}
}

func TestADiskTooSmallToStartIsAClearErrorUntilThereIsSpace(t *testing.T) {
	switch part, dir, _ := strings.Cut(os.Getenv(rerunEnv), " "); part {
	case "":
		needs.Root(t, "mounts a small disk")
		t.Log(rerun(t, "disk", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))
	case "disk":
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
		disk, resize := smallDisk(t, 20)
		dir := filepath.Join(disk, "etcd")
		t.Log(rerun(t, "small "+dir, nil))
		resize(220)
		t.Log(rerun(t, "large "+dir, nil))
	case "small":
		_, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
		if err == nil || !strings.Contains(err.Error(), "no space left on device") {
			t.Errorf("Open: %v, want why it fails", err)
		}
		t.Log(err)
	case "large":
		open(t, dir)
	}
}

// fillDisk writes until the disk is full, checks how the store fails, and returns how many writes were confirmed.
func fillDisk(t *testing.T, dir string) int {
	s, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	value := []byte(strings.Repeat("x", 500<<10))
	confirmed := 0
	var failure error
	for failure == nil && confirmed < 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, failure = s.Commit(ctx, nil, []store.Op{{Key: fmt.Sprintf("k%05d", confirmed), Value: value}})
		cancel()
		if failure == nil {
			confirmed++
		}
	}
	t.Logf("after %d commits: %v", confirmed, failure)
	for _, want := range []string{dir, "no space left on device", "free space"} {
		if failure == nil || !strings.Contains(failure.Error(), want) {
			t.Errorf("the error %v doesn't say %q", failure, want)
		}
	}
	<-s.Failed()
	if _, _, err := s.Get(t.Context(), "k00000"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a read after the failure: %v, want why it failed", err)
	}
	start := time.Now()
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("close took %s", took)
	}
	return confirmed
}

// TestADiskThatFillsUpUnderTheStoreStopsNoDelete takes the room of the disk at once, as one job can, but for a little, as the server's reserve
// gives it back. The database needs none of it.
func TestADiskThatFillsUpUnderTheStoreStopsNoDelete(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	disk, _ := smallDisk(t, 300)
	s := open(t, filepath.Join(disk, "etcd"))
	value := []byte(strings.Repeat("x", 2000))
	for i := range 100 {
		if _, err := s.Commit(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("k%05d", i), Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	awaitRoom(t, filepath.Join(disk, "etcd", "member", "snap", "db"))
	if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, 300<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	free, err := os.Stat(filepath.Join(disk, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(disk, "filler"), free.Size()-1<<20); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		for i := range 100 {
			if _, err := s.Commit(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("k%05d", i), Value: value}}); err != nil {
				t.Fatalf("round %d: a write on the full disk: %v", round, err)
			}
		}
	}
	if _, err := s.Commit(t.Context(), nil, []store.Op{{Key: "k", DeletePrefix: true}}); err != nil {
		t.Errorf("a delete on the full disk: %v", err)
	}
}

// awaitRoom returns once a file has room on the disk for all of its size.
func awaitRoom(t *testing.T, path string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 >= st.Size {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has room for %d of %d bytes", path, st.Blocks*512, st.Size)
		}
	}
}
