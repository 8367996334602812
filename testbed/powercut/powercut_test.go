// Package powercut takes the power away from a machine that writes state, and looks at what is there when it comes back.
//
// kill -9 can't show it: the page cache outlives the process. Here the whole machine is a guest of testbed/guest that is cut off, so
// what its kernel had not been made to write is lost. Run by "make test-guest".
package powercut

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
	"github.com/nearmetal/nearmetal/testbed/guest"
)

// cutAfter is how many commits are acknowledged before the power goes: well within the 5 s after which ext4 writes by itself.
const cutAfter = 40

// deadline cuts off a guest that does not get on; it boots in about 7 s.
const deadline = time.Minute

func TestCommitsSurviveAPowerCut(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-guest")
	image, err := guest.EnsureImage(t.Context(), guest.CacheDir, guest.NodePackages())
	if err != nil {
		t.Fatal(err)
	}
	disk := newDisk(t, 512)

	writer, output := boot(t, image, disk, "TestInsideTheGuest", "write")
	acked := 0
	for acked < cutAfter && output.Scan() {
		_, _ = fmt.Sscanf(output.Text(), "acked %d", &acked)
	}
	writer.Cut()
	// What was acknowledged before the power was gone counts too.
	for output.Scan() {
		_, _ = fmt.Sscanf(output.Text(), "acked %d", &acked)
	}
	if code, err := writer.Wait(); err == nil {
		t.Fatalf("the writer ended by itself with exit code %d after %d commits", code, acked)
	}
	if acked < cutAfter {
		t.Fatalf("only %d commits were acknowledged before the guest ended", acked)
	}

	reader, output := boot(t, image, disk, "TestInsideTheGuest", "read")
	found, lines := -1, []string{}
	for output.Scan() {
		lines = append(lines, output.Text())
		_, _ = fmt.Sscanf(output.Text(), "found %d", &found)
	}
	if code, err := reader.Wait(); err != nil || code != 0 {
		t.Fatalf("reading after the power cut: exit code %d, %v\n%s", code, err, strings.Join(lines, "\n"))
	}
	t.Logf("%d commits acknowledged, %d found", acked, found)
	// One more may have been committed and not yet been told.
	if found < acked || found > acked+1 {
		t.Errorf("after the power cut %d commits are there, want all %d that were acknowledged, and at most one more", found, acked)
	}
}

// TestInsideTheGuest is what the guest runs: the other half of the test above.
func TestInsideTheGuest(t *testing.T) {
	needs.Child(t, "NEARMETAL_POWERCUT")
	role := os.Getenv("NEARMETAL_POWERCUT")
	s, err := etcd.Open(t.Context(), etcd.Config{Dir: "/mnt/etcd"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if role == "write" {
		for n := 1; ; n++ {
			key := fmt.Sprintf("n/%06d", n)
			if _, err := s.Commit(t.Context(), []store.Cond{{Key: key}}, []store.Op{{Key: key, Value: []byte(key)}}); err != nil {
				t.Fatal(err)
			}
			fmt.Printf("acked %d\n", n)
		}
	}
	snapshot, err := s.List(t.Context(), "n/")
	if err != nil {
		t.Fatal(err)
	}
	for i, entry := range snapshot.Entries {
		if want := fmt.Sprintf("n/%06d", i+1); entry.Key != want || string(entry.Value) != want {
			t.Fatalf("entry %d is %s = %q, want %s: a commit is missing or damaged", i, entry.Key, entry.Value, want)
		}
	}
	fmt.Printf("found %d\n", len(snapshot.Entries))
}

// newDisk makes an empty disk of a size with the file system that Debian installs.
func newDisk(t *testing.T, mebibytes int64) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, mebibytes<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "mke2fs", "-q", "-t", "ext4", disk).CombinedOutput(); err != nil {
		t.Fatalf("mke2fs: %v\n%s", err, out)
	}
	return disk
}

// boot starts a guest that mounts the disk and runs a test of this binary in a role; it returns what the guest prints, line by line.
func boot(t *testing.T, image guest.Image, disk, test, role string) (*guest.Machine, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	lines, output := io.Pipe()
	// State that is damaged may make a store wait for ever.
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	m, err := guest.Start(ctx, guest.Config{
		Image: image, CPUs: 2, MemoryMiB: 1024, Disks: []string{disk}, Shares: []string{filepath.Dir(self)}, Modules: []string{"loop", "xfs"},
		Env: []string{"NEARMETAL_POWERCUT=" + role}, Output: output,
		Command: []string{"sh", "-c", `mount -t ext4 /dev/vdb /mnt && exec "$1" -test.run "^$2\$"`, "sh", self, test},
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = m.Wait()
		_ = output.Close()
	}()
	return m, bufio.NewScanner(lines)
}
