package reflink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
)

// Snapshot makes a snapshot of a volume. still is called before its blocks are shared, and what it returns afterwards: in between, nothing may
// write to the volume.
func (s *Store) Snapshot(_ context.Context, uid, snapshot string, still func() (thaw func() error, err error)) error {
	if err := s.beginDraft(uid); err != nil {
		return err
	}
	s.room.Lock()
	defer s.room.Unlock()
	before, err := taken(s.Path(uid))
	if err != nil {
		return err
	}
	r, err := s.lookFor(before.AllocatedBytes)
	if err != nil {
		return err
	}
	thaw, err := still()
	if err != nil {
		return err
	}
	if err := errors.Join(s.share(uid, r), thaw()); err != nil {
		return errors.Join(err, s.DropDraft(uid))
	}
	return s.commit(uid, prefixSnapshot+snapshot)
}

// share makes a draft of the volume's blocks, if there is room for as much again. Without, the draft is gone before the volume is written to.
func (s *Store) share(uid string, r Room) error {
	failpoint.Hit("reflink.before-clone")
	shared, err := clone(s.Path(uid), s.file(uid, fileDraft))
	if err != nil {
		return err
	}
	failpoint.Hit("reflink.after-clone")
	if left := r.LeftBytes(); shared > left {
		return errors.Join(tooLittle(shared, left, r), s.DropDraft(uid))
	}
	return nil
}

// Begin makes a draft that begins as a snapshot of a volume, which may be another, and returns its path. It is as large as the snapshot.
func (s *Store) Begin(_ context.Context, uid, from, snapshot string) (string, error) {
	source, draft, err := s.source(uid, from, snapshot)
	if err != nil {
		return "", err
	}
	s.room.Lock()
	defer s.room.Unlock()
	t, err := taken(source)
	if err != nil {
		return "", err
	}
	if err := s.need(t.SizeBytes); err != nil {
		return "", err
	}
	shared, err := clone(source, draft)
	if err != nil {
		return "", err
	}
	err = unix.Setxattr(draft, sharedAttribute, []byte(strconv.FormatInt(shared, 10)), 0)
	if err == nil {
		err = extend(draft, t.SizeBytes)
	}
	if err != nil {
		return "", errors.Join(full(err), s.DropDraft(uid))
	}
	return draft, nil
}

// source returns the paths of a snapshot, which must exist, and of the draft that is about to begin as it.
func (s *Store) source(uid, from, snapshot string) (source, draft string, err error) {
	if err := s.beginDraft(uid); err != nil {
		return "", "", err
	}
	source = s.file(from, prefixSnapshot+snapshot)
	if _, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("volume %s has no snapshot %s", from, snapshot)
	} else if err != nil {
		return "", "", err
	}
	return source, s.file(uid, fileDraft), nil
}

// Restore puts a snapshot of a volume in the volume's place; nothing may have it open. The volume is as large as the snapshot afterwards, and may
// lack blocks until Resize.
func (s *Store) Restore(_ context.Context, uid, snapshot string) error {
	source, draft, err := s.source(uid, uid, snapshot)
	if err != nil {
		return err
	}
	s.room.Lock()
	defer s.room.Unlock()
	after, err := taken(source)
	if err != nil {
		return err
	}
	before, err := taken(s.Path(uid))
	if err != nil {
		return err
	}
	if after.SizeBytes > before.SizeBytes {
		if err := s.need(after.SizeBytes - before.SizeBytes); err != nil {
			return err
		}
	}
	if _, err := clone(source, draft); err != nil {
		return err
	}
	return s.commit(uid, fileVolume)
}

// Rework makes a draft of a volume's own blocks, to which at most so many bytes will be written, and returns its path. Who changes the size of the file
// system changes that of the draft.
func (s *Store) Rework(_ context.Context, uid string, written, _ int64) (string, error) {
	if err := s.beginDraft(uid); err != nil {
		return "", err
	}
	s.room.Lock()
	defer s.room.Unlock()
	if err := s.need(written); err != nil {
		return "", err
	}
	draft := s.file(uid, fileDraft)
	_, err := clone(s.Path(uid), draft)
	return draft, err
}

// RemoveSnapshot removes a snapshot, if it is there.
func (s *Store) RemoveSnapshot(uid, snapshot string) error {
	if err := os.Remove(s.file(uid, prefixSnapshot+snapshot)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	failpoint.Hit("reflink.after-remove-snapshot")
	return durablefile.SyncDir(filepath.Join(s.dir(), uid))
}

// Remove removes all files of a volume, then looks whether anything is left: a file, or a device of one.
func (s *Store) Remove(_ context.Context, uid string) error {
	if there, err := s.open(false); err != nil || !there {
		return err
	}
	dir := filepath.Join(s.dir(), uid)
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		failpoint.Hit("reflink.after-remove")
	}
	if err := os.Remove(dir); err != nil {
		return err
	}
	if err := durablefile.SyncDir(s.dir()); err != nil {
		return err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is still there: %w", dir, err)
	}
	if devices, err := loopdev.Backed(dir + "/"); err != nil || len(devices) > 0 {
		return errors.Join(fmt.Errorf("removed files in %s are still in use by %v", dir, devices), err)
	}
	return nil
}
