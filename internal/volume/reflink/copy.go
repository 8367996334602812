package reflink

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// Copy makes a copy of a snapshot, or for "" of a volume, in place of any that is there. still is called before the blocks are shared, and what it returns
// afterwards: in between, nothing may write to the volume. Room is kept for it as for a snapshot, and it goes with the volume.
func (s *Store) Copy(_ context.Context, uid, snapshot string, still func() (thaw func() error, err error)) error {
	if _, err := s.open(false); err != nil {
		return err
	}
	if err := s.DropCopy(uid); err != nil {
		return err
	}
	s.room.Lock()
	defer s.room.Unlock()
	source, target := s.Path(uid), s.file(uid, fileCopy)
	if snapshot != "" {
		source = s.file(uid, prefixSnapshot+snapshot)
	}
	before, err := taken(source)
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
	shared, err := clone(source, target)
	if err == nil && shared > r.LeftBytes() { // it is gone before the volume is written to
		err = errors.Join(tooLittle(shared, r.LeftBytes(), r), s.DropCopy(uid))
	}
	failpoint.Hit("reflink.after-copy")
	return errors.Join(err, thaw())
}

// DropCopy removes the copy of a volume, if there is one.
func (s *Store) DropCopy(uid string) error {
	if err := os.Remove(s.file(uid, fileCopy)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// DropCopies removes the copies of all volumes.
func (s *Store) DropCopies() error {
	if there, err := s.open(false); err != nil || !there {
		return err
	}
	var all []string
	err := s.each(func(uid, name string, _ Taken) {
		if name == fileCopy {
			all = append(all, uid)
		}
	})
	for _, uid := range all {
		err = errors.Join(err, s.DropCopy(uid))
	}
	if err != nil || len(all) == 0 {
		return err
	}
	return durablefile.SyncDir(s.dir())
}

// OpenDraft returns an open block device of a volume's draft, OpenCopy one of its copy, as Open does of the volume.
func (s *Store) OpenDraft(uid string) (*os.File, error) { return openDevice(s.file(uid, fileDraft)) }

// OpenCopy is like OpenDraft.
func (s *Store) OpenCopy(uid string) (*os.File, error) { return openDevice(s.file(uid, fileCopy)) }
