// Package imagestore keeps blobs by their digest in a directory: manifests, kernels, initrds, roots and chunk lists of environments.
//
// A blob is a file named by the digits of its SHA-256. It is there wholly, verified and on disk, or not at all; it never changes. Which blobs
// are needed is the caller's business: the store only refuses to lose what a manifest in use names. Start with Store.
package imagestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// DefaultMinFreeBytes is what stays free of a file system unless said otherwise: the state of a server may be on it too.
const DefaultMinFreeBytes = 1 << 30

// maxManifestBytes is more than any manifest has.
const maxManifestBytes = 16 << 20

// ErrInUse: a manifest in use names the blob.
var ErrInUse = errors.New("the blob is in use")

// NoSpaceError: the file system has no room for a blob.
type NoSpaceError struct {
	Dir string
	// FreeBytes are left, of which KeptBytes stay free.
	FreeBytes, KeptBytes int64
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("no room for images in %s: %d MiB are free, of which %d MiB are kept; delete images, or free space there",
		e.Dir, e.FreeBytes>>20, e.KeptBytes>>20)
}

// Store is a directory of blobs; safe for concurrent use. One process owns a directory.
type Store struct {
	dir      string
	incoming string
	minFree  int64
	now      func() time.Time
	free     func(dir string) (int64, error)
	// mu keeps Collect from removing a blob that Put has just found to be there.
	mu sync.Mutex
}

// Open opens the store in dir, which is made if need be; minFreeBytes stay free, 0 is DefaultMinFreeBytes. What an earlier process left
// half written is removed.
func Open(dir string, minFreeBytes int64) (*Store, error) {
	if minFreeBytes == 0 {
		minFreeBytes = DefaultMinFreeBytes
	}
	s := &Store{dir: dir, incoming: filepath.Join(dir, "incoming"), minFree: minFreeBytes, now: time.Now, free: freeBytes}
	if err := os.RemoveAll(s.incoming); err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	if err := os.MkdirAll(s.incoming, 0o755); err != nil {
		return nil, fmt.Errorf("open the image store: %w", err)
	}
	return s, nil
}

func (s *Store) path(digest image.Digest) string { return filepath.Join(s.dir, digest.Hex()) }

// Put stores what r holds to its end. It returns nil once the blob is on disk, verified; a blob that was there already is not read again.
// Errors wrap image.ErrDigest when the content is another, or are a *NoSpaceError.
func (s *Store) Put(ctx context.Context, digest image.Digest, r io.Reader) error {
	if err := digest.Check(); err != nil {
		return err
	}
	if s.Touch(digest) {
		return nil
	}
	f, err := os.CreateTemp(s.incoming, digest.Hex()[:12]+"-")
	if err != nil {
		return s.explain(err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	got, err := s.receive(ctx, f, r)
	if err == nil && got != digest {
		err = fmt.Errorf("blob %s: %w: it is %s", digest, image.ErrDigest, got)
	}
	return s.keep(f, digest, err)
}

// keep gives what was received into a file its name, unless that failed.
func (s *Store) keep(f *os.File, digest image.Digest, err error) error {
	if err == nil {
		err = errors.Join(f.Chmod(0o444), f.Sync())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return s.explain(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(f.Name(), s.path(digest)); err != nil {
		return fmt.Errorf("store blob %s: %w", digest, err)
	}
	return durablefile.SyncDir(s.dir)
}

var errNotWritten = errors.New("the content was not written to its end")

// Receive stores what write writes, if write returns nil, and returns its digest. Until then nothing of it is there. Errors are those of write, or a *NoSpaceError.
func (s *Store) Receive(ctx context.Context, write func(io.Writer) error) (image.Blob, error) {
	reader, writer := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(writer)
		if err != nil {
			_ = writer.CloseWithError(errNotWritten) // not err, which may be io.EOF
		}
		_ = writer.Close()
		written <- err
	}()
	blob, err := s.take(ctx, reader)
	_ = reader.CloseWithError(io.ErrClosedPipe) // who still writes is not left waiting
	if wrote := <-written; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) {
		return image.Blob{}, wrote
	}
	return blob, err
}

// take stores what comes to its end.
func (s *Store) take(ctx context.Context, r io.Reader) (blob image.Blob, err error) {
	f, err := os.CreateTemp(s.incoming, "received-")
	if err != nil {
		return blob, s.explain(err)
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	blob.Digest, err = s.receive(ctx, f, r)
	if err == nil {
		blob.SizeBytes, err = f.Seek(0, io.SeekCurrent)
	}
	if err := s.keep(f, blob.Digest, err); err != nil {
		return image.Blob{}, err
	}
	return blob, nil
}

// spaceCheckBytes is after how many bytes the room left is looked at again.
const spaceCheckBytes = 16 << 20

// receive copies to the end, and tells the digest of what came.
func (s *Store) receive(ctx context.Context, f *os.File, r io.Reader) (image.Digest, error) {
	hash := sha256.New()
	buffer := make([]byte, 1<<20)
	for left := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if left <= 0 {
			if err := s.checkSpace(); err != nil {
				return "", err
			}
			left = spaceCheckBytes
		}
		n, err := r.Read(buffer)
		left -= int64(n)
		hash.Write(buffer[:n])
		if _, err := f.Write(buffer[:n]); err != nil {
			return "", err
		}
		if errors.Is(err, io.EOF) {
			return image.Digest("sha256:" + hex.EncodeToString(hash.Sum(nil))), nil
		}
		if err != nil {
			return "", fmt.Errorf("receive a blob: %w", err)
		}
	}
}

// Touch tells whether the blob is there, and makes it as new as one that was put now: Collect spares it.
func (s *Store) Touch(digest image.Digest) bool {
	if digest.Check() != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	return os.Chtimes(s.path(digest), now, now) == nil
}

func (s *Store) checkSpace() error {
	free, err := s.free(s.dir)
	if err != nil {
		return fmt.Errorf("read the free space of %s: %w", s.dir, err)
	}
	if free < s.minFree {
		return &NoSpaceError{Dir: s.dir, FreeBytes: free, KeptBytes: s.minFree}
	}
	return nil
}

// explain makes of the kernel's word for a full disk the store's.
func (s *Store) explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		free, statErr := s.free(s.dir)
		return errors.Join(&NoSpaceError{Dir: s.dir, FreeBytes: free, KeptBytes: s.minFree}, statErr)
	}
	return err
}

// Open opens a blob. The error is fs.ErrNotExist when there is none.
func (s *Store) Open(digest image.Digest) (netboot.Blob, error) {
	if err := digest.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	f, err := netboot.OpenFile(s.path(digest))
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", digest, err)
	}
	return f, nil
}

// Has tells whether the blob is there.
func (s *Store) Has(digest image.Digest) bool {
	if digest.Check() != nil {
		return false
	}
	_, err := os.Stat(s.path(digest))
	return err == nil
}

// Manifest reads and verifies a manifest.
func (s *Store) Manifest(digest image.Digest) (*image.Manifest, error) {
	b, err := s.Open(digest)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if b.Size() > maxManifestBytes {
		return nil, fmt.Errorf("%s is not a manifest: it has %d bytes", digest, b.Size())
	}
	data, err := io.ReadAll(io.NewSectionReader(b, 0, b.Size()))
	if err != nil {
		return nil, fmt.Errorf("manifest %s: %w", digest, err)
	}
	return image.Decode(data, digest)
}

// Missing are those blobs of a manifest, itself included, that are not there.
func (s *Store) Missing(digest image.Digest) ([]image.Blob, error) {
	m, err := s.Manifest(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return []image.Blob{{Digest: digest}}, nil
	}
	if err != nil {
		return nil, err
	}
	var missing []image.Blob
	for _, b := range m.Blobs() {
		if b.Digest != "" && !s.Has(b.Digest) {
			missing = append(missing, b)
		}
	}
	return missing, nil
}

// List are all blobs, by name.
func (s *Store) List() ([]image.Blob, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the image store: %w", err)
	}
	var blobs []image.Blob
	for _, e := range entries {
		digest := image.Digest("sha256:" + e.Name())
		if digest.Check() != nil || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		blobs = append(blobs, image.Blob{Digest: digest, SizeBytes: info.Size()})
	}
	return blobs, nil
}

// Verify reads a blob again; the error wraps image.ErrDigest when the disk gives something else than was stored.
func (s *Store) Verify(ctx context.Context, digest image.Digest) error {
	b, err := s.Open(digest)
	if err != nil {
		return err
	}
	defer b.Close()
	hash := sha256.New()
	buffer := make([]byte, 1<<20)
	for off := int64(0); off < b.Size(); {
		n, err := b.ReadAt(buffer, off)
		if err = errors.Join(noEOF(err), ctx.Err()); err != nil {
			return fmt.Errorf("verify blob %s: %w", digest, err)
		}
		hash.Write(buffer[:n])
		off += int64(n)
	}
	if got := "sha256:" + hex.EncodeToString(hash.Sum(nil)); got != string(digest) {
		return fmt.Errorf("blob %s on disk: %w: it is %s; remove %s and build or fetch it again", digest, image.ErrDigest, got, s.path(digest))
	}
	return nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// freeBytes is what a file system has left for users.
func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
