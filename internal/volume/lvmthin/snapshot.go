package lvmthin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// Snapshot makes a snapshot of a volume. It needs no still: see snap.
func (s *Store) Snapshot(_ context.Context, uid, snapshot string, _ func() (thaw func() error, err error)) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.begin(uid)
	if err != nil {
		return err
	}
	draft := nameOf(uid, roleDraft, "")
	held, err := s.share(&f, uid, "", draft)
	if err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-share")
	// Without a device nothing writes to it, and it takes no more than it has now. A boot makes none either.
	if _, err := run("lvchange", "-q", "-an", s.full(draft)); err != nil {
		return err
	}
	if _, err := run("lvchange", "-q", "-ky", "--addtag", tagHeld+strconv.FormatInt(held, 10), s.full(draft)); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.before-snapshot")
	if err := s.rename(draft, nameOf(uid, roleSnapshot, snapshot)); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-snapshot")
	return nil
}

// share makes a logical volume that begins as a volume, or as a snapshot of it, if there is room for all that both share, and returns how much that is.
func (s *Store) share(f *found, uid, snapshot, name string) (held int64, err error) {
	origin, r := f.get(uid, roleVolume, ""), f.room()
	if snapshot != "" {
		origin = f.get(uid, roleSnapshot, snapshot)
	}
	if origin == nil {
		return 0, noSnapshot(uid, snapshot)
	}
	least := origin.Held // a snapshot's is exact
	if snapshot == "" {
		if !origin.Active {
			if err := s.wake([]string{s.full(origin.Name)}); err != nil {
				return 0, err
			}
		}
		if least, err = mapped(s.device(origin.Name)); err != nil {
			return 0, err
		}
	}
	if err := need(r, least); err != nil {
		return 0, err
	}
	if err := s.snap(name, origin); err != nil {
		return 0, err
	}
	if held, err = mapped(s.device(name)); err == nil {
		// Writers may have made it more. What they write until it is gone again comes out of the pool's margin.
		err = need(r, held)
	}
	if err != nil {
		return 0, errors.Join(err, s.remove(name))
	}
	return held, nil
}

func noSnapshot(uid, snapshot string) error {
	if snapshot == "" {
		return fmt.Errorf("volume %s is gone", uid)
	}
	return fmt.Errorf("volume %s has no snapshot %s", uid, snapshot)
}

// Begin makes a draft that begins as a snapshot of a volume, which may be another, and returns its path. It is as large as the snapshot.
func (s *Store) Begin(_ context.Context, uid, from, snapshot string) (string, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.begin(uid)
	if err != nil {
		return "", err
	}
	source := f.get(from, roleSnapshot, snapshot)
	if source == nil {
		return "", noSnapshot(from, snapshot)
	}
	if err := need(f.room(), source.Size); err != nil {
		return "", err
	}
	draft := nameOf(uid, roleDraft, "")
	return s.path(draft), s.snap(draft, source)
}

// Restore puts a snapshot of a volume in the volume's place; nothing may have it open. The volume is as large as the snapshot afterwards.
func (s *Store) Restore(_ context.Context, uid, snapshot string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.begin(uid)
	if err != nil {
		return err
	}
	source, before := f.get(uid, roleSnapshot, snapshot), f.get(uid, roleVolume, "")
	if source == nil {
		return noSnapshot(uid, snapshot)
	}
	if before != nil && source.Size > before.Size {
		if err := need(f.room(), source.Size-before.Size); err != nil {
			return err
		}
	}
	draft := *source
	draft.Name, draft.Role, draft.Snapshot = nameOf(uid, roleDraft, ""), roleDraft, ""
	if err := s.snap(draft.Name, source); err != nil {
		return err
	}
	return s.commit(&f, &draft)
}

// Rework makes a draft of a volume's own blocks, to which at most so many bytes will be written, and returns its path. In its place the volume will have
// the size.
func (s *Store) Rework(_ context.Context, uid string, written, sizeBytes int64) (string, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.begin(uid)
	if err != nil {
		return "", err
	}
	l := f.get(uid, roleVolume, "")
	if l == nil {
		return "", noSnapshot(uid, "")
	}
	if err := need(f.room(), written); err != nil {
		return "", err
	}
	origin, draft := *l, nameOf(uid, roleDraft, "")
	origin.Bytes = sizeBytes
	if err := s.snap(draft, &origin); err != nil {
		return "", err
	}
	if size := roundUp(sizeBytes, f.Pool.Extent); size > l.Size {
		_, err = run("lvextend", "-q", "-L", strconv.FormatInt(size, 10)+"b", s.full(draft))
	}
	return s.path(draft), err
}

// RemoveSnapshot removes a snapshot, if it is there.
func (s *Store) RemoveSnapshot(uid, snapshot string) error {
	if err := s.dropOne(uid, roleSnapshot, snapshot); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-remove-snapshot")
	return nil
}

// Copy makes a copy of a snapshot, or for "" of a volume, in place of any that is there. Room is kept for it as for a snapshot, and it goes with the
// volume. It needs no still: see snap.
func (s *Store) Copy(_ context.Context, uid, snapshot string, _ func() (thaw func() error, err error)) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	name := nameOf(uid, roleCopy, "")
	if f.get(uid, roleCopy, "") != nil {
		if err := s.remove(name); err != nil {
			return err
		}
		f.drop(name)
	}
	held, err := s.share(&f, uid, snapshot, name)
	if err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-copy")
	_, err = run("lvchange", "-q", "--addtag", tagHeld+strconv.FormatInt(held, 10), s.full(name))
	return err
}

// DropCopy removes the copy of a volume, if there is one.
func (s *Store) DropCopy(uid string) error { return s.dropOne(uid, roleCopy, "") }

// DropCopies removes the copies of all volumes.
func (s *Store) DropCopies() error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	for _, l := range f.Logical {
		if l.Role == roleCopy {
			err = errors.Join(err, s.remove(l.Name))
		}
	}
	return err
}

// Remove removes all logical volumes of a volume, then looks whether anything is left: one of them, or a device.
func (s *Store) Remove(_ context.Context, uid string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	for _, l := range f.Logical {
		if l.UID != uid {
			continue
		}
		if err := s.remove(l.Name); err != nil {
			return err
		}
		failpoint.Hit("lvmthin.after-remove")
	}
	if f, err = s.look(); err != nil {
		return err
	}
	for _, l := range f.Logical {
		if l.UID == uid {
			return fmt.Errorf("%s is still there", s.full(l.Name))
		}
	}
	nodes, err := os.ReadDir(mapperDir)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if strings.HasPrefix(n.Name(), s.device(prefix+uid+separator)) {
			return fmt.Errorf("the device %s is still there", filepath.Join(mapperDir, n.Name()))
		}
	}
	return nil
}
