package imagestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/needs"
)

var _ netboot.Blobs = (*Store)(nil)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, s *Store, text string) image.Blob {
	t.Helper()
	digest := image.DigestOf([]byte(text))
	if err := s.Put(t.Context(), digest, strings.NewReader(text)); err != nil {
		t.Fatalf("Put(%q): %v", text, err)
	}
	return image.Blob{Digest: digest, SizeBytes: int64(len(text))}
}

// putImage stores an image with these blobs and returns its manifest's digest.
func putImage(t *testing.T, s *Store, name string, root, chunks image.Blob) image.Digest {
	t.Helper()
	m := image.Manifest{Environment: name, Root: image.Root{Blob: root, Chunks: chunks}}
	data, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, string(data))
	return digest
}

func TestWhatWasPutIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	b := put(t, s, "a root")
	put(t, s, "a root") // once more is nothing
	if err := os.WriteFile(filepath.Join(dir, "incoming", "torn"), []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	got, err := s.Open(b.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	piece := make([]byte, 4)
	if _, err := got.ReadAt(piece, 2); err != nil || string(piece) != "root" || got.Size() != 6 {
		t.Errorf("ReadAt = %q, %v; size %d", piece, err, got.Size())
	}
	if all, err := s.List(); err != nil || len(all) != 1 || all[0] != b {
		t.Errorf("List = %v, %v", all, err)
	}
	if torn, _ := os.ReadDir(filepath.Join(dir, "incoming")); len(torn) > 0 {
		t.Errorf("half a blob is still there: %v", torn)
	}
	if _, err := s.Open(image.DigestOf(nil)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of what is not there: %v", err)
	}
	for _, bad := range []image.Digest{"", "sha256:", "../../etc/passwd", "sha256:../../../etc/passwd", image.Digest("sha256:" + strings.Repeat("A", 64))} {
		if _, err := s.Open(bad); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Open(%q): %v", bad, err)
		}
		if err := s.Put(t.Context(), bad, strings.NewReader("x")); err == nil {
			t.Errorf("Put(%q) was taken", bad)
		}
	}
}

func TestContentOfAnotherDigestIsRefusedAndNothingStays(t *testing.T) {
	s := open(t, t.TempDir())
	digest := image.DigestOf([]byte("what was built"))
	for name, tc := range map[string]struct {
		r    io.Reader
		want error
	}{
		"another content": {strings.NewReader("what was sent"), image.ErrDigest},
		"too short":       {strings.NewReader("what was"), image.ErrDigest},
		"too long":        {strings.NewReader("what was built, and more"), image.ErrDigest},
		"a broken line":   {io.MultiReader(strings.NewReader("what was built"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
	} {
		if err := s.Put(t.Context(), digest, tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Put(ctx, digest, strings.NewReader("what was built")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, _ := os.ReadDir(s.incoming); len(left) > 0 || s.Has(digest) {
		t.Errorf("left: %v, stored: %v", left, s.Has(digest))
	}
}

func TestWhatIsReceivedHasItsNameOnceItIsWhole(t *testing.T) {
	s := open(t, t.TempDir())
	const text = "changed files"
	blob, err := s.Receive(t.Context(), func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		if all, _ := s.List(); len(all) > 0 {
			t.Errorf("before its end there are %v", all)
		}
		return err
	})
	if err != nil || blob != (image.Blob{Digest: image.DigestOf([]byte(text)), SizeBytes: int64(len(text))}) || !s.Has(blob.Digest) {
		t.Errorf("received %+v, %v", blob, err)
	}
	if err := s.Remove(blob.Digest, nil); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		then error
		want error
	}{
		"refused at its end":  {t.Context(), mine, mine},
		"refused with an end": {t.Context(), io.EOF, io.EOF},
		"broken off":          {t.Context(), io.ErrUnexpectedEOF, io.ErrUnexpectedEOF},
		"nobody waits for it": {canceled, nil, context.Canceled},
	} {
		_, err := s.Receive(tc.ctx, func(w io.Writer) error {
			for range 100 {
				if _, err := io.WriteString(w, text); err != nil {
					return err
				}
			}
			return tc.then
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if left, _ := os.ReadDir(s.incoming); len(left) > 0 {
			t.Errorf("%s: left: %v", name, left)
		}
		if all, err := s.List(); err != nil || len(all) > 0 {
			t.Errorf("%s: stored: %v, %v", name, all, err)
		}
	}
}

func TestAFullFileSystemIsAClearErrorAndLosesNothing(t *testing.T) {
	needs.Root(t, "mounts a small file system")
	dir := t.TempDir()
	if err := syscall.Mount("images", dir, "tmpfs", 0, "size=4m"); err != nil {
		needs.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := open(t, dir)
	small := put(t, s, "small")
	big := bytes.Repeat([]byte("big "), 2<<20)
	err := s.Put(t.Context(), image.DigestOf(big), bytes.NewReader(big))
	var full *NoSpaceError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "delete images, or free space there") {
		t.Fatalf("Put of 8 MiB into 4 MiB: %v", err)
	}
	if left, _ := os.ReadDir(s.incoming); len(left) > 0 || !s.Has(small.Digest) {
		t.Errorf("left: %v; what was there is there: %v", left, s.Has(small.Digest))
	}
	s.minFree = 1 << 30
	if err := s.Put(t.Context(), image.DigestOf([]byte("x")), strings.NewReader("x")); !errors.As(err, &full) {
		t.Errorf("Put where too little would stay free: %v", err)
	}
}

func TestOnlyWhatNoManifestInUseNamesIsCollected(t *testing.T) {
	s := open(t, t.TempDir())
	shared, root1, root2, lost := put(t, s, "chunks"), put(t, s, "root 1"), put(t, s, "root 2"), put(t, s, "of a build that failed")
	one, two := putImage(t, s, "one", root1, shared), putImage(t, s, "two", root2, shared)
	day := s.now().Add(24 * time.Hour)
	s.now = func() time.Time { return day }

	if err := s.Remove(shared.Digest, []image.Digest{two}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), string(two)) {
		t.Errorf("Remove of what is in use: %v", err)
	}
	unknown := image.DigestOf([]byte("no manifest"))
	if freed, err := s.Collect([]image.Digest{one, unknown}, time.Hour); err == nil || len(freed) > 0 {
		t.Errorf("Collect with a manifest that can't be read: %v, %v", freed, err)
	}
	// A new build found its root there: it was put again, and is as good as new.
	if err := s.Put(t.Context(), lost.Digest, iotest.ErrReader(errors.New("not read"))); err != nil {
		t.Fatal(err)
	}
	freed, err := s.Collect([]image.Digest{one}, time.Hour)
	if err != nil || len(freed) != 2 || s.Has(two) || s.Has(root2.Digest) {
		t.Errorf("Collect = %v, %v; want image two and its root", freed, err)
	}
	for _, kept := range []image.Digest{one, root1.Digest, shared.Digest, lost.Digest} {
		if !s.Has(kept) {
			t.Errorf("%s is gone", kept)
		}
	}
	if missing, err := s.Missing(one); err != nil || len(missing) > 0 {
		t.Errorf("Missing = %v, %v", missing, err)
	}
	if err := s.Remove(root1.Digest, nil); err != nil {
		t.Error(err)
	}
	if missing, err := s.Missing(one); err != nil || len(missing) != 1 || missing[0] != root1 {
		t.Errorf("Missing = %v, %v; want the root", missing, err)
	}
	if err := s.Remove(root1.Digest, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Remove of what is not there: %v", err)
	}
}

func TestARotDiskIsNoticed(t *testing.T) {
	s := open(t, t.TempDir())
	b := put(t, s, "what was stored")
	if err := s.Verify(t.Context(), b.Digest); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(s.path(b.Digest), []byte("what was storeD"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), b.Digest); !errors.Is(err, image.ErrDigest) {
		t.Errorf("Verify: %v", err)
	}
}

func TestContentThatIsNoImageIsCollectedUnlessItIsInUseItself(t *testing.T) {
	s := open(t, t.TempDir())
	used, unused := put(t, s, "files of a member"), put(t, s, "files of a member that is gone")
	if freed, err := s.CollectContent([]image.Digest{used.Digest}, time.Hour); err != nil || len(freed) > 0 {
		t.Errorf("within the grace time: %v, %v", freed, err)
	}
	later := s.now().Add(2 * time.Hour)
	s.now = func() time.Time { return later }
	if freed, err := s.CollectContent([]image.Digest{used.Digest}, time.Hour); err != nil || len(freed) != 1 || freed[0].Digest != unused.Digest || !s.Has(used.Digest) {
		t.Errorf("collected %v, %v", freed, err)
	}
}

func TestManyPutTheSameBlobAtOnceWhileOthersReadAndCollect(t *testing.T) {
	s := open(t, t.TempDir())
	text := strings.Repeat("root ", 100_000)
	digest := image.DigestOf([]byte(text))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				if err := s.Put(context.Background(), digest, strings.NewReader(text)); err != nil {
					t.Error(err)
					return
				}
				b, err := s.Open(digest)
				if err != nil {
					t.Error(err)
					return
				}
				data, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size()))
				if err != nil || string(data) != text {
					t.Errorf("read %d bytes, %v", len(data), err)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for range 20 {
			if freed, err := s.Collect(nil, time.Hour); err != nil || len(freed) > 0 {
				t.Error(fmt.Errorf("collected %v: %w", freed, err))
			}
		}
	})
	all.Wait()
}
