package imagestore

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// What Put has stored is on the disk: a power cut that comes right after it loses nothing, and leaves no blob that is there in part.
func TestABlobIsOnDiskBeforeItHasItsName(t *testing.T) {
	needs.Root(t, "mounts a file system")
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 16<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-O", "has_journal", disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := open(t, mounted(t, disk))
	text := strings.Repeat("kernel ", 10_000)
	blob := put(t, s, text)

	// What a machine would find that was cut off now: the disk as it is, without what only memory holds.
	after := filepath.Join(t.TempDir(), "after")
	data, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(after, data, 0o600); err != nil {
		t.Fatal(err)
	}
	again := open(t, mounted(t, after))
	b, err := again.Open(blob.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size())); err != nil || image.DigestOf(got) != blob.Digest {
		t.Errorf("of %d bytes %d are there, %v", len(text), len(got), err)
	}
}

// mounted is a directory with the file system of a disk's file.
func mounted(t *testing.T, disk string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-o", "loop", disk, dir).CombinedOutput(); err != nil {
		needs.Missing(t, "no loop device can be mounted here: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}
