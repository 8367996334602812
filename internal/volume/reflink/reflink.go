// Package reflink keeps block images as files that share blocks with each other, on XFS or Btrfs.
//
// Where the directory is on neither, the images are on an XFS in one file there, which is allocated whole when the first image is made. An image
// has all its blocks from the beginning, and the room for copies of shared blocks is kept free: a write to an image must never fail for lack of
// room. Every image is a draft under another name until it is whole. Start with Store.
package reflink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
)

// The names of a volume's files. A snapshot's is its UID after the prefix.
const (
	fileVolume     = "volume"
	fileDraft      = "draft"
	fileCopy       = "copy"
	prefixSnapshot = "snapshot-"
)

// sharedAttribute of a volume's file is the number of bytes that it shared with its origin when it was made.
const sharedAttribute = "trusted.nearmetal.shared"

// Config says where images are.
type Config struct {
	// Dir is an absolute path. It is made when the first image is.
	Dir string
	// LoopBytes is the size of the file with an XFS that is made where Dir is on neither XFS nor Btrfs; 0: none is made.
	LoopBytes int64
	// Sparse makes that file without allocating it, for development: when the disk is full, volumes fail.
	Sparse bool
}

// Store keeps images. Calls for different volumes may be concurrent.
type Store struct {
	cfg Config
	// opening guards making and mounting the file system; room is held from the look at the room to taking it.
	opening, room sync.Mutex
}

// New returns a store. It touches nothing.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// dir is where the images are; where they are on a file system of their own, it is mounted there.
func (s *Store) dir() string { return filepath.Join(s.cfg.Dir, "images") }

func (s *Store) file(uid, name string) string { return filepath.Join(s.dir(), uid, name) }

// Image is one that was found, whole.
type Image struct {
	// Snapshot is the snapshot's UID, "" for the volume itself.
	Snapshot string
	// SizeBytes bounds it; HeldBytes is the room that is kept for it.
	SizeBytes, HeldBytes int64
}

// List returns the whole images of each volume of which anything is there, drafts included.
func (s *Store) List() (map[string][]Image, error) {
	all := map[string][]Image{}
	if there, err := s.open(false); err != nil || !there {
		return all, err
	}
	return all, s.each(func(uid, name string, t Taken) {
		image := Image{SizeBytes: t.SizeBytes, HeldBytes: t.heldBytes()}
		if snapshot, ok := strings.CutPrefix(name, prefixSnapshot); ok {
			image.Snapshot = snapshot
		} else if name != fileVolume {
			all[uid] = append(all[uid], []Image{}...) // the volume is there, and nothing of it is whole
			return
		}
		all[uid] = append(all[uid], image)
	})
}

// each looks at every file of every volume. A volume without files has one with an empty name.
func (s *Store) each(visit func(uid, name string, t Taken)) error {
	volumes, err := os.ReadDir(s.dir())
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if !v.IsDir() {
			continue
		}
		files, err := os.ReadDir(filepath.Join(s.dir(), v.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being purged
		}
		if err != nil {
			return err
		}
		if len(files) == 0 {
			visit(v.Name(), "", Taken{})
		}
		for _, f := range files {
			t, err := taken(s.file(v.Name(), f.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			t.Snapshot = strings.HasPrefix(f.Name(), prefixSnapshot) || f.Name() == fileCopy
			visit(v.Name(), f.Name(), t)
		}
	}
	return nil
}

// taken looks at a file.
func taken(path string) (t Taken, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return t, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return t, fmt.Errorf("%s: no blocks are known", path)
	}
	t.SizeBytes, t.AllocatedBytes = info.Size(), stat.Blocks*512
	text := make([]byte, 20)
	if n, err := unix.Lgetxattr(path, sharedAttribute, text); err == nil {
		_, _ = fmt.Sscan(string(text[:n]), &t.SharedBytes)
	}
	return t, nil
}

// look returns the room of the file system that is open.
func (s *Store) look() (Room, error) {
	var r Room
	var disk unix.Statfs_t
	if err := unix.Statfs(s.dir(), &disk); err != nil {
		return r, fmt.Errorf("looking at the room in %s: %w", s.dir(), err)
	}
	r.TotalBytes, r.FreeBytes, r.Alone = int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize, s.hasPoolFile()
	return r, s.each(func(_, _ string, t Taken) { r.Images = append(r.Images, t) })
}

// need returns ErrFull unless the room for so many bytes is left. The caller has the lock of room.
func (s *Store) need(bytes int64) error {
	r, err := s.lookFor(bytes)
	if err != nil {
		return err
	}
	if left := r.LeftBytes(); bytes > left {
		return tooLittle(bytes, left, r)
	}
	return nil
}

// lookFor is look; where there is too little room for so many bytes, it waits for what was removed to be given back.
func (s *Store) lookFor(bytes int64) (Room, error) {
	r, err := s.look()
	if err != nil || r.Alone || bytes <= r.LeftBytes() {
		return r, err
	}
	dir, err := os.Open(s.dir())
	if err != nil {
		return r, err
	}
	if err := errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close()); err != nil {
		return r, err
	}
	return s.look()
}

func tooLittle(bytes, left int64, r Room) error {
	return fmt.Errorf("%w: %d MiB more is needed, and %d MiB is left of %d MiB", volume.ErrFull, (bytes+1<<20-1)>>20, left>>20, r.CapacityBytes()>>20)
}

// full makes ErrFull of the kernel's word for it.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: %w", volume.ErrFull, err)
	}
	return err
}

// Draft makes a draft of so many bytes, which read as zeros, in place of any that is there, and returns its path.
func (s *Store) Draft(_ context.Context, uid string, bytes int64) (string, error) {
	if err := s.beginDraft(uid); err != nil {
		return "", err
	}
	s.room.Lock()
	defer s.room.Unlock()
	if err := s.need(bytes); err != nil {
		return "", err
	}
	draft := s.file(uid, fileDraft)
	if err := extend(draft, bytes); err != nil {
		return "", errors.Join(err, s.DropDraft(uid))
	}
	failpoint.Hit("reflink.after-draft")
	return draft, nil
}

// beginDraft makes the directory of a volume, and removes what an earlier attempt left.
func (s *Store) beginDraft(uid string) error {
	if _, err := s.open(true); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(s.dir(), uid), 0o700); err == nil {
		if err := durablefile.SyncDir(s.dir()); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.DropDraft(uid)
}

// DropDraft removes a draft, if there is one.
func (s *Store) DropDraft(uid string) error {
	if err := os.Remove(s.file(uid, fileDraft)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// fillBytes is how much of a file is given blocks in one call. XFS reserves the room for all of it, though the file may have most already; so much
// is always there, by the margin.
const fillBytes = 16 << 20

// extend gives a file a size, and all its blocks. Blocks that it has are left alone.
func extend(path string, bytes int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(allocate(file, bytes), file.Sync(), file.Close())
}

func allocate(file *os.File, bytes int64) error {
	t, err := taken(file.Name())
	if err != nil {
		return err
	}
	if bytes > t.SizeBytes {
		if err := unix.Fallocate(int(file.Fd()), 0, t.SizeBytes, bytes-t.SizeBytes); err != nil {
			return fmt.Errorf("allocating %d bytes more of %s: %w", bytes-t.SizeBytes, file.Name(), full(err))
		}
	}
	if t.AllocatedBytes >= t.SizeBytes {
		return nil
	}
	for at := int64(0); at < t.SizeBytes; at += fillBytes {
		if err := unix.Fallocate(int(file.Fd()), 0, at, min(fillBytes, t.SizeBytes-at)); err != nil {
			return fmt.Errorf("allocating what %s lacks: %w", file.Name(), full(err))
		}
	}
	return nil
}

// clone makes a file with the blocks of another, and returns how many bytes it shares.
func clone(from, to string) (shared int64, err error) {
	source, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlFileClone(int(target.Fd()), int(source.Fd()))
	if err := errors.Join(err, target.Close()); err != nil {
		return 0, errors.Join(fmt.Errorf("sharing the blocks of %s: %w", from, full(err)), os.Remove(to))
	}
	t, err := taken(to)
	return t.AllocatedBytes, err
}

// Commit puts the draft of a volume in the place of the volume, and returns when that outlasts a power cut.
func (s *Store) Commit(uid string) error { return s.commit(uid, fileVolume) }

func (s *Store) commit(uid, name string) error {
	file, err := os.Open(s.file(uid, fileDraft))
	if err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	failpoint.Hit("reflink.before-commit")
	if err := durablefile.Rename(s.file(uid, fileDraft), s.file(uid, name)); err != nil {
		return err
	}
	failpoint.Hit("reflink.after-commit")
	return nil
}

// Resize gives a volume's file a larger size, and all its blocks. Of the same size, it only gives it the blocks that it lacks.
func (s *Store) Resize(uid string, bytes int64) error {
	s.room.Lock()
	defer s.room.Unlock()
	path := s.file(uid, fileVolume)
	t, err := taken(path)
	if err != nil {
		return err
	}
	if bytes > t.SizeBytes {
		if err := s.need(bytes - t.SizeBytes); err != nil {
			return err
		}
	}
	if err := extend(path, max(bytes, t.SizeBytes)); err != nil {
		return err
	}
	failpoint.Hit("reflink.after-resize")
	return nil
}

// Path returns the path of a volume's file.
func (s *Store) Path(uid string) string { return s.file(uid, fileVolume) }

// Open returns an open block device of a volume, as large as its file. It is there for as long as it is open or mounted.
func (s *Store) Open(uid string) (*os.File, error) { return openDevice(s.Path(uid)) }

func openDevice(path string) (*os.File, error) {
	device, err := loopdev.Open(path)
	if err != nil {
		return nil, err
	}
	if err := loopdev.Grow(device); err != nil {
		return nil, errors.Join(err, device.Close())
	}
	return device, nil
}

// Await returns when nothing uses a volume's block device any more, or volume.ErrInUse when something goes on doing so.
func (s *Store) Await(ctx context.Context, uid string) error {
	return s.await(ctx, uid, fileVolume, fileDraft)
}

// AwaitOwn is Await for the devices of the volume's draft and of its copy.
func (s *Store) AwaitOwn(ctx context.Context, uid string) error {
	return s.await(ctx, uid, fileDraft, fileCopy)
}

func (s *Store) await(ctx context.Context, uid string, names ...string) error {
	if there, err := s.open(false); err != nil || !there {
		return err
	}
	for _, name := range names {
		err := loopdev.Await(ctx, s.file(uid, name))
		if errors.Is(err, loopdev.ErrBusy) {
			return fmt.Errorf("%w: %w", volume.ErrInUse, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
