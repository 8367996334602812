// Package lvmthin keeps block images as thin logical volumes of LVM, in a thin pool that may hold those of others, too.
//
// A pool never gives out more than it has: sizes are promised as a whole, snapshots keep the room of what they share, and so do the logical volumes of
// others, by their whole sizes. What is there is found by looking at the volume group; its logical volumes have a tag and a prefix of their names. None
// of others is ever changed. Start with Store.
package lvmthin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
)

// Config says where images are.
type Config struct {
	// Group is the volume group, Pool the thin pool in it. One node has the pool for itself among nodes.
	Group, Pool string
}

// Store keeps images. Calls for different volumes may be concurrent.
type Store struct {
	cfg Config
	// changing is held from a look at the volume group to the change that depends on it.
	changing sync.Mutex
}

// New returns a store. It touches nothing.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// look looks at the volume group.
func (s *Store) look() (found, error) {
	output, err := run("lvs", "-a", "--reportformat", "json", "--units", "b", "--nosuffix", "-o", strings.Join(columns, ","), s.cfg.Group)
	if err != nil {
		return found{}, err
	}
	f, err := parse(output, s.cfg.Pool)
	if err == nil && f.Pool == nil {
		err = fmt.Errorf("volume group %s: %w named %s", s.cfg.Group, errNoPool, s.cfg.Pool)
	}
	return f, err
}

// errNoPool reports that a volume group lacks the thin pool.
var errNoPool = errors.New("it has no thin pool")

func (s *Store) full(name string) string   { return s.cfg.Group + "/" + name }
func (s *Store) device(name string) string { return mapperName(s.cfg.Group, name) }
func (s *Store) path(name string) string   { return filepath.Join(mapperDir, s.device(name)) }

// List returns the whole images of each volume of which anything is there, drafts included. Volumes have a device afterwards.
func (s *Store) List() (map[string][]reflink.Image, error) {
	f, err := s.look()
	if err != nil {
		return nil, err
	}
	if f.unsettled() {
		if f, err = s.settle(); err != nil {
			return nil, err
		}
	}
	var sleeping []string
	all, r := map[string][]reflink.Image{}, f.room()
	for _, l := range f.Logical {
		switch {
		case !l.own():
		case l.Role == roleVolume:
			all[l.UID] = append(all[l.UID], reflink.Image{SizeBytes: l.Bytes, HeldBytes: r.sized(l.Size)})
			if !l.Active {
				sleeping = append(sleeping, s.full(l.Name))
			}
		case l.Role == roleSnapshot:
			held := r.held(Taken{SizeBytes: l.Size, MappedBytes: l.Held})
			all[l.UID] = append(all[l.UID], reflink.Image{Snapshot: l.Snapshot, SizeBytes: l.Bytes, HeldBytes: held})
		default:
			all[l.UID] = append(all[l.UID], []reflink.Image{}...) // something of the volume is there, and it is not whole
		}
	}
	return all, s.wake(sleeping)
}

// wake gives devices to logical volumes that have none, as after a boot.
func (s *Store) wake(names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := run("lvchange", append([]string{"-q", "-ay"}, names...)...)
	return err
}

// unsettled reports whether a draft was to take the place of a volume when a process ended.
func (f *found) unsettled() bool {
	for _, l := range f.Logical {
		if l.Role == roleOld {
			return true
		}
	}
	return false
}

// settle ends what an earlier process left half done of putting drafts in the places of volumes: without a volume, the old one is it again.
func (s *Store) settle() (found, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return f, err
	}
	for _, l := range f.Logical {
		if l.Role != roleOld {
			continue
		}
		if f.get(l.UID, roleVolume, "") == nil {
			err = errors.Join(err, s.rename(l.Name, nameOf(l.UID, roleVolume, "")))
		} else {
			err = errors.Join(err, s.remove(l.Name))
		}
	}
	if err != nil {
		return f, fmt.Errorf("ending an exchange that was broken off: %w", err)
	}
	return s.look()
}

func (s *Store) rename(from, to string) error {
	_, err := run("lvrename", "-q", s.cfg.Group, from, to)
	return err
}

// remove removes a logical volume that is there, or returns volume.ErrInUse.
func (s *Store) remove(name string) error {
	_, err := run("lvremove", "-q", "-f", "-y", s.full(name))
	return s.inUse(name, err)
}

// inUse adds volume.ErrInUse to an error about a logical volume that something uses.
func (s *Store) inUse(name string, err error) error {
	if err == nil {
		return nil
	}
	if count, _, unknown := opened(s.device(name)); unknown == nil && count > 0 {
		return fmt.Errorf("%w: %w", volume.ErrInUse, err)
	}
	return err
}

// need returns ErrFull unless the room for so many bytes is left.
func need(r Room, bytes int64) error {
	if bytes = r.sized(bytes); bytes > max(0, r.freeBytes()) {
		return fmt.Errorf("%w: %d MiB more is needed, and %d MiB is left of %d MiB%s", volume.ErrFull, (bytes+1<<20-1)>>20, r.LeftBytes()>>20, r.CapacityBytes()>>20, r.why())
	}
	return nil
}

// begin looks, and removes a draft that an earlier attempt left.
func (s *Store) begin(uid string) (found, error) {
	f, err := s.look()
	if err != nil {
		return f, err
	}
	for _, role := range []string{roleDraft, roleOld} {
		if l := f.get(uid, role, ""); l != nil {
			if role == roleOld && f.get(uid, roleVolume, "") == nil {
				return f, fmt.Errorf("%s has no volume beside it", l.Name) // List puts it back
			}
			if err := s.remove(l.Name); err != nil {
				return f, err
			}
			f.drop(l.Name)
		}
	}
	return f, nil
}

// create makes a logical volume with a device: thin arguments say of what.
func (s *Store) create(name string, bytes int64, thin ...string) error {
	_, err := run("lvcreate", append([]string{
		"-q", "-y", "-n", name, "--addtag", tag, "--addtag", tagSize + strconv.FormatInt(bytes, 10), "-kn", "-ay",
	}, thin...)...)
	return err
}

// snap makes a logical volume that begins as another. While their blocks become shared, LVM suspends the origin's device, and the kernel stops the file
// system on that with all of it written.
func (s *Store) snap(name string, origin *logical) error {
	return s.create(name, origin.Bytes, "-s", s.full(origin.Name))
}

// Draft makes a draft of so many bytes, which read as zeros, in place of any that is there, and returns its path.
func (s *Store) Draft(_ context.Context, uid string, bytes int64) (string, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.begin(uid)
	if err != nil {
		return "", err
	}
	if !f.Pool.Zeroes {
		return "", errors.New(s.zeroing())
	}
	if err := need(f.room(), bytes); err != nil {
		return "", err
	}
	name := nameOf(uid, roleDraft, "")
	size := roundUp(bytes, f.Pool.Extent)
	if err := s.create(name, bytes, "--type", "thin", "-V", strconv.FormatInt(size, 10)+"b", "--thinpool", s.full(s.cfg.Pool)); err != nil {
		return "", err
	}
	failpoint.Hit("lvmthin.after-draft")
	return s.path(name), nil
}

// DropDraft removes a draft, if there is one.
func (s *Store) DropDraft(uid string) error { return s.dropOne(uid, roleDraft, "") }

func (s *Store) dropOne(uid, role, snapshot string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	if l := f.get(uid, role, snapshot); l != nil {
		return s.remove(l.Name)
	}
	return nil
}

// Commit puts the draft of a volume in the place of the volume, and returns when that outlasts a power cut.
func (s *Store) Commit(uid string) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	draft := f.get(uid, roleDraft, "")
	if draft == nil {
		return errors.New("it has no draft")
	}
	return s.commit(&f, draft)
}

// commit exchanges a volume for its draft. A crash before the draft has the volume's name leaves the volume as it was.
func (s *Store) commit(f *found, draft *logical) error {
	if err := errors.Join(s.sync(draft.Name), s.trim(draft, f.Pool)); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.before-commit")
	volumeName, oldName := nameOf(draft.UID, roleVolume, ""), nameOf(draft.UID, roleOld, "")
	replaces := f.get(draft.UID, roleVolume, "") != nil
	if replaces {
		if err := s.rename(volumeName, oldName); err != nil {
			return err
		}
		failpoint.Hit("lvmthin.after-old")
	}
	if err := s.rename(draft.Name, volumeName); err != nil {
		if replaces {
			err = errors.Join(err, s.rename(oldName, volumeName))
		}
		return err
	}
	failpoint.Hit("lvmthin.after-commit")
	if replaces {
		return s.remove(oldName)
	}
	return nil
}

// sync writes what the kernel has of a device in memory.
func (s *Store) sync(name string) error {
	device, err := os.Open(s.path(name))
	if err != nil {
		return err
	}
	return errors.Join(device.Sync(), device.Close())
}

// trim gives back what a logical volume has beyond the size that was asked for. The file system in it is no larger than that.
func (s *Store) trim(l *logical, p *pool) error {
	size := roundUp(l.Bytes, p.Extent)
	if l.Size <= size {
		return nil
	}
	if _, err := run("lvreduce", "-q", "-f", "-y", "-L", strconv.FormatInt(size, 10)+"b", s.full(l.Name)); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-trim")
	l.Size = size
	return nil
}

// Resize makes a volume larger. Of no larger size, it makes sure that it takes no more of the pool than its size.
func (s *Store) Resize(uid string, bytes int64) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	f, err := s.look()
	if err != nil {
		return err
	}
	l := f.get(uid, roleVolume, "")
	if l == nil {
		return fmt.Errorf("volume %s is not in volume group %s: %w", uid, s.cfg.Group, fs.ErrNotExist)
	}
	if !f.Pool.Zeroes { // the volume may write to blocks that it has not yet
		return errors.New(s.zeroing())
	}
	if bytes <= l.Bytes {
		return s.trim(l, f.Pool)
	}
	r := f.room()
	size := roundUp(bytes, f.Pool.Extent)
	if err := need(r, r.sized(size)-r.sized(l.Size)); err != nil && size > l.Size {
		return err
	}
	if size > l.Size {
		if _, err := run("lvextend", "-q", "-L", strconv.FormatInt(size, 10)+"b", s.full(l.Name)); err != nil {
			return err
		}
	}
	failpoint.Hit("lvmthin.after-extend")
	if err := s.retag(l.Name, tagSize, l.Bytes, bytes); err != nil {
		return err
	}
	failpoint.Hit("lvmthin.after-resize")
	return nil
}

// retag changes the number in a tag.
func (s *Store) retag(name, begins string, from, to int64) error {
	_, err := run("lvchange", "-q", "--deltag", begins+strconv.FormatInt(from, 10), "--addtag", begins+strconv.FormatInt(to, 10), s.full(name))
	return err
}

// Path returns the path of a volume's device, which List makes sure of.
func (s *Store) Path(uid string) string { return s.path(nameOf(uid, roleVolume, "")) }

// Open returns a volume's block device, open. OpenDraft and OpenCopy return those of its draft and of its copy.
func (s *Store) Open(uid string) (*os.File, error) { return s.open(uid, roleVolume) }

// OpenDraft is like Open.
func (s *Store) OpenDraft(uid string) (*os.File, error) { return s.open(uid, roleDraft) }

// OpenCopy is like Open.
func (s *Store) OpenCopy(uid string) (*os.File, error) { return s.open(uid, roleCopy) }

func (s *Store) open(uid, role string) (*os.File, error) {
	name := nameOf(uid, role, "")
	device, err := os.Open(s.path(name))
	if !errors.Is(err, fs.ErrNotExist) {
		return device, err
	}
	if err := s.wake([]string{s.full(name)}); err != nil {
		return nil, err
	}
	return os.Open(s.path(name))
}

// The pauses and the end of waiting for a device's last user to go. A mount goes a moment after it was unmounted.
const (
	lookEvery = 10 * time.Millisecond
	waitMost  = 5 * time.Second
)

// Await returns when nothing uses a volume's block device any more, or volume.ErrInUse when something goes on doing so.
func (s *Store) Await(ctx context.Context, uid string) error {
	return s.await(ctx, uid, roleVolume, roleDraft)
}

// AwaitOwn is Await for the devices of the volume's draft and of its copy.
func (s *Store) AwaitOwn(ctx context.Context, uid string) error {
	return s.await(ctx, uid, roleDraft, roleCopy)
}

func (s *Store) await(ctx context.Context, uid string, roles ...string) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for _, role := range roles {
		for {
			device := s.device(nameOf(uid, role, ""))
			count, _, err := opened(device)
			if err != nil {
				return err
			}
			if count == 0 {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%w: %s has %d users", volume.ErrInUse, device, count)
			}
		}
	}
	return nil
}

// Close takes the devices of all volumes away; nothing may use one.
func (s *Store) Close(context.Context) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	if len(s.missing()) > 0 {
		return nil // without LVM or device mapper there are none
	}
	f, err := s.look()
	if err != nil {
		return err
	}
	for _, l := range f.Logical {
		if l.own() && l.Active {
			_, more := run("lvchange", "-q", "-an", s.full(l.Name))
			err = errors.Join(err, s.inUse(l.Name, more))
		}
	}
	return err
}
