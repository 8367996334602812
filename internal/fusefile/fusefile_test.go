package fusefile

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// source has random content. Reads of the byte at bad fail.
type source struct {
	data  []byte
	bad   int64
	mu    sync.Mutex
	reads int
}

func (s *source) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	s.reads++
	s.mu.Unlock()
	if off <= s.bad && s.bad < off+int64(len(p)) {
		return 0, errors.New("bad")
	}
	return bytes.NewReader(s.data).ReadAt(p, off)
}

func mount(t *testing.T, s *source) *File {
	t.Helper()
	needs.Root(t, "mounts a file system")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		needs.Hardware(t, "the kernel has no FUSE")
	}
	f, err := Mount(filepath.Join(t.TempDir(), "shown"), s, int64(len(s.data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestTheFileHasWhatItsSourceHas(t *testing.T) {
	data := make([]byte, 5<<20+1234)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	s := &source{data: data, bad: -1}
	f := mount(t, s)
	got, err := os.ReadFile(f.Path())
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes of %d, the same: %v, %v", len(got), len(data), bytes.Equal(got, data), err)
	}
	asked := s.reads
	if got, err = os.ReadFile(f.Path()); err != nil || !bytes.Equal(got, data) || s.reads != asked {
		t.Errorf("reading again: %v, and %d questions to the source: the kernel has it", err, s.reads-asked)
	}
	if entries, err := os.ReadDir(filepath.Dir(f.Path())); err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(f.Path()) {
		t.Errorf("the directory has %v, %v", entries, err)
	}
	if _, err := os.OpenFile(f.Path(), os.O_WRONLY, 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("opening for writing: %v", err)
	}
	if _, err := os.Stat(f.Path() + "2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another name: %v", err)
	}
}

// Zeros in place of what could not be had would be taken for the content.
func TestAReadThatFailsIsAnError(t *testing.T) {
	data := make([]byte, 4<<20)
	f := mount(t, &source{data: data, bad: 3 << 20})
	file, err := os.Open(f.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.ReadAt(make([]byte, 100), 0); err != nil {
		t.Errorf("a part that the source has: %v", err)
	}
	if n, err := file.ReadAt(make([]byte, 100), 3<<20-50); !errors.Is(err, syscall.EIO) && !errors.Is(err, io.ErrUnexpectedEOF) || n > 50 {
		t.Errorf("a part that the source does not have: %d bytes, %v", n, err)
	}
}

// A program that makes a namespace of its own has a copy of every mount.
func TestAFileIsClosedThoughAnotherNamespaceHasItMounted(t *testing.T) {
	data := make([]byte, 1<<20)
	needs.Root(t, "mounts a file system")
	f, err := Mount(filepath.Join(t.TempDir(), "shown"), &source{data: data, bad: -1}, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo made; read -r end")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = other.Wait()
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "made\n" {
		t.Fatalf("unshare says %q, %v", line, err)
	}
	closed := make(chan error)
	go func() { closed <- f.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the file is served on")
	}
}
