package ext4

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

const mib = 1 << 20

// image makes a file system in a file.
func image(t *testing.T, sizeBytes, files int64) string {
	t.Helper()
	for _, name := range programs {
		if _, err := program(name); err != nil {
			needs.Program(t, name)
		}
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, sizeBytes)); err != nil {
		t.Fatal(err)
	}
	if err := Make(t.Context(), path, sizeBytes, files, Owner{UID: 1000, GID: 1001}); err != nil {
		t.Fatal(err)
	}
	whole(t, path)
	return path
}

func whole(t *testing.T, path string) {
	t.Helper()
	file, err := program("e2fsck")
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(file, "-f", "-n", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

func TestANewFileSystemIsEmptyAndHasItsFiles(t *testing.T) {
	for _, c := range []struct{ size, files int64 }{{64 * mib, 4096}, {64 * mib, 64}, {100*mib + 5000, 6400}, {3 << 30, 196608}, {300 << 30, 1000}} {
		u, err := OfImage(image(t, c.size, c.files))
		if err != nil || u.UsedFiles != 0 || u.UsedBytes > mib || u.Files < c.files || u.Files > c.files+c.files/8+16*groupsOf(c.size) {
			t.Errorf("of %d bytes for %d files it has %+v, %v", c.size, c.files, u, err)
		}
	}
}

func groupsOf(size int64) int64 { return size/blockBytes/groupBlocks(size) + 1 }

func TestFilesFollowTheSize(t *testing.T) {
	path := image(t, 64*mib, 4096)
	for _, size := range []int64{128 * mib, 1 << 30, 96 * mib, 64 * mib} {
		if err := Resize(t.Context(), path, size); err != nil {
			t.Fatal(err)
		}
		whole(t, path)
		u, err := OfImage(path)
		if want := size / (16 << 10); err != nil || u.UsedFiles != 0 || u.Files < want*15/16 || u.Files > want*5/4 {
			t.Errorf("of %d bytes it has %+v, %v; want %d files", size, u, err, want)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != size {
			t.Errorf("the file is %v, %v; want %d bytes", info, err, size)
		}
	}
}

func TestAFileSystemThatHoldsMoreDoesNotShrink(t *testing.T) {
	path := image(t, 64*mib, 4096)
	full := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(full, bytes.Repeat([]byte("content "), 4*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := edit(t.Context(), path, "write "+full+" content"); err != nil && !errors.Is(err, errSaid) {
		t.Fatal(err)
	}
	if u, err := OfImage(path); err != nil || u.UsedBytes < 32*mib || u.UsedFiles != 1 {
		t.Fatalf("with a file it has %+v, %v", u, err)
	}
	if err := Resize(t.Context(), path, 24*mib); !errors.Is(err, ErrTooSmall) {
		t.Errorf("got %v, want ErrTooSmall", err)
	}
}

func TestACopyHasAnIdentityOfItsOwn(t *testing.T) {
	path := image(t, 64*mib, 4096)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Rename(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	whole(t, path)
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const uuidAt = superblockAt + 0x68
	if string(before[uuidAt:uuidAt+16]) == string(after[uuidAt:uuidAt+16]) {
		t.Error("it has the same UUID")
	}
}

func TestWhatIsNoFileSystemHasNoUsage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if u, err := OfImage(path); err == nil {
		t.Errorf("it has %+v", u)
	}
	if u, err := OfMount(t.TempDir()); err == nil && u.Files == 0 {
		t.Errorf("a directory has %+v", u)
	}
	if err := Resize(t.Context(), path, 1<<20); err == nil {
		t.Error("it was resized")
	}
}

func TestAWrongCommandIsAnError(t *testing.T) {
	if err := edit(t.Context(), image(t, 64*mib, 64), "rmdir nothing-here"); !errors.Is(err, errSaid) {
		t.Errorf("got %v", err)
	}
}
