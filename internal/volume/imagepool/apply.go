package imagepool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
)

// Apply implements volume.Pool.
func (p *Pool) Apply(ctx context.Context, v volume.Volume) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := v.Check(); err != nil {
		return err
	}
	if err := p.apply(ctx, &v); err != nil {
		return fmt.Errorf("volume %s: %w", v.UID, err)
	}
	return nil
}

func (p *Pool) apply(ctx context.Context, v *volume.Volume) error {
	r, err := p.obey(v.UID, v.Generation)
	if err != nil {
		return err
	}
	if v.Purge {
		if err := p.detachDisks(ctx, v.UID, nil); err != nil { // before what waits for the image's last user
			return err
		}
		if err := p.detach(ctx, v.UID, nil); err != nil {
			return err
		}
		return p.purge(ctx, v.UID)
	}
	if v.Block {
		return p.applyBlock(ctx, v, &r)
	}
	if err := p.ensureMade(ctx, v, &r); err != nil {
		return err
	}
	if r.Block {
		return errors.New("it is a block volume, whose content no host may mount")
	}
	if err := p.detach(ctx, v.UID, v.Attachments); err != nil {
		return err
	}
	if err := p.restore(ctx, v, &r); err != nil {
		return err
	}
	// A size that it can't have keeps nobody from what it has.
	return errors.Join(p.resize(ctx, v, &r), p.snapshot(ctx, v), p.attach(ctx, v))
}

// obey records the generation of a decision before anything is done about it, and refuses one that is older than another that was obeyed.
func (p *Pool) obey(uid string, generation int64) (record, error) {
	r, there, err := p.read(uid)
	switch {
	case err != nil:
		return r, err
	case generation < r.Generation:
		return r, fmt.Errorf("%w: that of generation %d, and this is %d", volume.ErrStale, r.Generation, generation)
	case there && generation == r.Generation:
		return r, nil
	}
	r.Generation = generation
	if err := p.write(uid, r); err != nil {
		return r, err
	}
	failpoint.Hit("imagepool.after-record")
	return r, nil
}

// images returns a volume's image, nil when it has none, and its snapshots' UIDs.
func (p *Pool) images(uid string) (image *reflink.Image, snapshots []string, err error) {
	all, err := p.cfg.Images.List()
	for _, i := range all[uid] {
		if i.Snapshot != "" {
			snapshots = append(snapshots, i.Snapshot)
		} else {
			image = &i
		}
	}
	return image, snapshots, err
}

// ensureMade makes the volume, empty or as the snapshot that it begins as, unless it is there.
func (p *Pool) ensureMade(ctx context.Context, v *volume.Volume, r *record) error {
	image, _, err := p.images(v.UID)
	if err != nil || image != nil {
		return err
	}
	if err := v.MayMake(); err != nil {
		return err
	}
	if problems := ext4.Problems(); len(problems) > 0 {
		return errors.New(problems[0])
	}
	r.FittedBytes, r.Block = 0, v.Block
	if v.Origin.IsSnapshot() {
		err = p.beginAs(ctx, v)
	} else {
		r.FittedBytes, err = v.SizeBytes, p.makeEmpty(ctx, v)
	}
	if err != nil {
		return errors.Join(err, p.cfg.Images.DropDraft(v.UID))
	}
	failpoint.Hit("imagepool.after-format")
	// The record comes first: an image of which it says too much is made anew, and one that is there is never looked at again.
	if err := p.write(v.UID, *r); err != nil {
		return err
	}
	return p.cfg.Images.Commit(v.UID)
}

func (p *Pool) makeEmpty(ctx context.Context, v *volume.Volume) error {
	draft, err := p.cfg.Images.Draft(ctx, v.UID, v.SizeBytes)
	if err != nil || v.Block {
		return err
	}
	return ext4.Make(ctx, draft, v.SizeBytes, v.MaxFiles, owner)
}

func (p *Pool) beginAs(ctx context.Context, v *volume.Volume) error {
	draft, err := p.cfg.Images.Begin(ctx, v.UID, v.Origin.VolumeUID, v.Origin.SnapshotUID)
	if err != nil || v.Block {
		return err
	}
	return ext4.Rename(ctx, draft)
}

// detach removes every attachment but those that are wanted as they are. Without any, the volume's content is no longer in use.
func (p *Pool) detach(ctx context.Context, uid string, wanted []volume.Attachment) error {
	clusters, err := p.attached(uid)
	if err != nil {
		return err
	}
	for cluster, all := range clusters {
		if p.asWanted(uid, cluster, all, wanted) {
			continue
		}
		for range all {
			if err := unmount(ctx, p.Dir(uid, cluster)); err != nil {
				return err
			}
		}
		failpoint.Hit("imagepool.after-detach")
		delete(clusters, cluster)
	}
	mounted, err := p.mounted(uid)
	if err != nil {
		return err
	}
	if mounted {
		// An earlier process may have been killed amid a snapshot.
		if err := ext4.Thaw(p.Root(uid)); err != nil {
			return err
		}
	}
	if len(clusters) > 0 {
		return nil
	}
	return p.release(ctx, uid)
}

// asWanted reports whether a cluster has the volume as it should.
func (p *Pool) asWanted(uid, cluster string, there []mounts.Mount, wanted []volume.Attachment) bool {
	i := slices.IndexFunc(wanted, func(a volume.Attachment) bool { return a.ClusterUID == cluster })
	if i < 0 || len(there) != 1 || !there[0].Mapped || there[0].ReadOnly != wanted[i].ReadOnly {
		return false
	}
	first, err := mounts.FirstOwner(p.Root(uid), there[0].Path)
	return err == nil && first == wanted[i].UserIDs.First
}

// release unmounts a volume that is attached to nothing, and returns once nothing uses its content any more.
func (p *Pool) release(ctx context.Context, uid string) error {
	all, err := mounts.Below(p.Root(uid))
	if err != nil {
		return err
	}
	for range all {
		if err := unmount(ctx, p.Root(uid)); err != nil {
			return err
		}
	}
	return p.cfg.Images.Await(ctx, uid)
}

// restore puts a snapshot in the volume's place, if that was asked for and not done.
func (p *Pool) restore(ctx context.Context, v *volume.Volume, r *record) error {
	if v.Restore == nil || v.Restore.Number <= r.Restored {
		return nil
	}
	if err := p.unattached(v.UID); err != nil {
		return fmt.Errorf("restoring snapshot %s: %w", v.Restore.SnapshotUID, err)
	}
	// The file system may be of another size afterwards.
	r.FittedBytes = 0
	if err := p.write(v.UID, *r); err != nil {
		return err
	}
	if err := p.cfg.Images.Restore(ctx, v.UID, v.Restore.SnapshotUID); err != nil {
		return fmt.Errorf("restoring snapshot %s: %w", v.Restore.SnapshotUID, err)
	}
	failpoint.Hit("imagepool.after-restore")
	// After a crash before this it is done again. Nothing has had the volume in between.
	r.Restored = v.Restore.Number
	return p.write(v.UID, *r)
}

// unattached returns ErrInUse if a volume is attached.
func (p *Pool) unattached(uid string) error {
	clusters, err := p.attached(uid)
	if err != nil {
		return err
	}
	disks, err := p.disksOf(uid)
	if count := len(clusters) + len(disks); err == nil && count > 0 {
		err = fmt.Errorf("%w to %d clusters", volume.ErrInUse, count)
	}
	return err
}

// snapshot removes snapshots that are not wanted, and makes those that are.
func (p *Pool) snapshot(ctx context.Context, v *volume.Volume) error {
	_, there, err := p.images(v.UID)
	if err != nil {
		return err
	}
	for _, uid := range there {
		if !slices.Contains(v.Snapshots, uid) {
			if err := p.cfg.Images.RemoveSnapshot(v.UID, uid); err != nil {
				return fmt.Errorf("removing snapshot %s: %w", uid, err)
			}
		}
	}
	for _, uid := range v.Snapshots {
		if slices.Contains(there, uid) {
			continue
		}
		still := func() (func() error, error) { return p.still(v.UID) }
		if err := p.cfg.Images.Snapshot(ctx, v.UID, uid, still); err != nil {
			return fmt.Errorf("snapshot %s: %w", uid, err)
		}
	}
	return nil
}

// still keeps writers from a volume until thaw.
func (p *Pool) still(uid string) (thaw func() error, err error) {
	mounted, err := p.mounted(uid)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return func() error { return nil }, nil
	}
	if err := ext4.Freeze(p.Root(uid)); err != nil {
		return nil, err
	}
	failpoint.Hit("imagepool.after-freeze")
	return func() error { return ext4.Thaw(p.Root(uid)) }, nil
}

// mount mounts a volume for root, unless it is mounted.
func (p *Pool) mount(uid string) error {
	mounted, err := p.mounted(uid)
	if err != nil || mounted {
		return err
	}
	// Zeroing has given blocks back on kernels that can't be kept from that.
	if err := p.cfg.Images.Resize(uid, 0); err != nil {
		return err
	}
	device, err := p.cfg.Images.Open(uid)
	if err != nil {
		return err
	}
	defer device.Close()
	at := p.Root(uid)
	if err := errors.Join(os.MkdirAll(p.cfg.Dir, 0o711), os.MkdirAll(at, 0o700)); err != nil {
		return err
	}
	if err := unix.Mount(device.Name(), at, "ext4", unix.MS_NOSUID|unix.MS_NODEV, "errors=remount-ro"); err != nil {
		return fmt.Errorf("mounting %s at %s: %w", device.Name(), at, err)
	}
	failpoint.Hit("imagepool.after-mount")
	return nil
}

// attach makes the attachments that are wanted and not there.
func (p *Pool) attach(ctx context.Context, v *volume.Volume) error {
	if len(v.Attachments) == 0 {
		return nil
	}
	if err := p.mount(v.UID); err != nil {
		return err
	}
	clusters, err := p.attached(v.UID)
	if err != nil {
		return err
	}
	for _, a := range v.Attachments {
		if len(clusters[a.ClusterUID]) > 0 {
			continue
		}
		at := p.Dir(v.UID, a.ClusterUID)
		if err := os.MkdirAll(at, 0o711); err != nil {
			return err
		}
		if err := mounts.Map(p.Root(v.UID), at, a.UserIDs, a.ReadOnly); err != nil {
			return fmt.Errorf("attaching it to cluster %s: %w", a.ClusterUID, err)
		}
		failpoint.Hit("imagepool.after-attach")
	}
	return ctx.Err()
}

// Purge implements volume.Pool. Nothing that was in the volume can be read afterwards: the blocks that it gives back read as zeros to who gets them.
func (p *Pool) Purge(ctx context.Context, uid string, generation int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := volume.CheckUID(uid); err != nil {
		return err
	}
	r, there, err := p.read(uid)
	switch {
	case err != nil:
	case generation < r.Generation:
		err = fmt.Errorf("%w: that of generation %d, and this is %d", volume.ErrStale, r.Generation, generation)
	default:
		if there {
			_, err = p.obey(uid, generation)
		}
		if err == nil {
			err = p.purge(ctx, uid)
		}
	}
	if err != nil {
		return fmt.Errorf("purging volume %s: %w", uid, err)
	}
	return nil
}

func (p *Pool) purge(ctx context.Context, uid string) error {
	if err := p.unattached(uid); err != nil {
		return err
	}
	if err := p.detachDisks(ctx, uid, nil); err != nil { // what a process that has ended left
		return err
	}
	free, err := p.claim(uid)
	if err != nil {
		return err
	}
	defer free()
	if err := p.release(ctx, uid); err != nil {
		return err
	}
	if err := p.cfg.Images.Remove(ctx, uid); err != nil {
		return err
	}
	failpoint.Hit("imagepool.before-forget")
	if err := p.removePlaces(uid); err != nil {
		return err
	}
	// With what a crash has left of writing it.
	records, err := filepath.Glob(filepath.Join(p.dir(dirRecords), "."+uid+".new-*"))
	if err != nil {
		return err
	}
	for _, path := range append(records, p.recordFile(uid)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := durablefile.SyncDir(p.dir(dirRecords)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removePlaces removes the directories at which a volume was mounted. They are empty, unless something is mounted there after all.
func (p *Pool) removePlaces(uid string) error {
	dir := filepath.Join(p.dir(dirClusters), uid)
	places := []string{p.Root(uid), p.own(uid)}
	clusters, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, c := range clusters {
		places = append(places, filepath.Join(dir, c.Name()))
	}
	for _, place := range append(places, dir) {
		if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
