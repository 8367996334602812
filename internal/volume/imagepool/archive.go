package imagepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
)

// own is where a copy or a draft of a volume is mounted for this process alone.
func (p *Pool) own(uid string) string { return filepath.Join(p.cfg.Dir, dirOwn, uid) }

// claim keeps others from exporting or purging a volume until free is called, or returns ErrInUse.
func (p *Pool) claim(uid string) (free func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exporting[uid] {
		return nil, fmt.Errorf("%w: a backup of it is being written", volume.ErrInUse)
	}
	p.exporting[uid] = true
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.exporting, uid)
	}, nil
}

// sweep removes, once, the copies that an earlier process left.
func (p *Pool) sweep() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.swept {
		return nil
	}
	if err := p.cfg.Images.DropCopies(); err != nil {
		return err
	}
	p.swept = true
	return nil
}

// Export implements volume.Exporter.
func (p *Pool) Export(ctx context.Context, uid, snapshot string, out io.Writer) error {
	err := errors.Join(ctx.Err(), volume.CheckUID(uid))
	if snapshot != "" {
		err = errors.Join(err, volume.CheckUID(snapshot))
	}
	if err != nil {
		return err
	}
	if err := p.export(ctx, uid, snapshot, out); err != nil {
		return fmt.Errorf("writing an archive of volume %s: %w", uid, err)
	}
	return nil
}

func (p *Pool) export(ctx context.Context, uid, snapshot string, out io.Writer) (err error) {
	if err := p.sweep(); err != nil {
		return err
	}
	free, err := p.claim(uid)
	if err != nil {
		return err
	}
	defer free()
	size, err := p.sizeOf(uid, snapshot)
	if err != nil {
		return err
	}
	if r, _, err := p.read(uid); err != nil || r.Block {
		return cmp.Or(err, errors.New("it is a block volume, which has no files of ours"))
	}
	still := func() (func() error, error) { return p.still(uid) }
	if snapshot != "" {
		still = func() (func() error, error) { return func() error { return nil }, nil }
	}
	// What this takes away must go even if ctx has ended.
	defer func() {
		err = errors.Join(err, p.leaveOwn(context.WithoutCancel(ctx), uid), p.cfg.Images.DropCopy(uid))
	}()
	if err := p.cfg.Images.Copy(ctx, uid, snapshot, still); err != nil {
		return err
	}
	dir, err := p.mountOwn(uid, p.cfg.Images.OpenCopy, unix.MS_RDONLY)
	if err != nil {
		return err
	}
	failpoint.Hit("imagepool.after-mount-copy")
	bounds, err := ext4.OfMount(p.own(uid))
	if err == nil {
		_, err = archive.Pack(ctx, archive.Source{Dir: dir, VolumeBytes: size, VolumeFiles: bounds.Files, Scratch: p.dir(dirOwn)}, out)
	}
	return errors.Join(err, dir.Close())
}

// sizeOf returns the size of a volume, or of a snapshot of it.
func (p *Pool) sizeOf(uid, snapshot string) (int64, error) {
	all, err := p.cfg.Images.List()
	if err != nil {
		return 0, err
	}
	for _, i := range all[uid] {
		if i.Snapshot == snapshot {
			return i.SizeBytes, nil
		}
	}
	if snapshot != "" {
		return 0, fmt.Errorf("it has no snapshot %s on this node", snapshot)
	}
	return 0, errors.New("it is not on this node")
}

// mountOwn mounts a device where only this process looks, and returns the root directory of its file system, open.
func (p *Pool) mountOwn(uid string, open func(uid string) (*os.File, error), flags uintptr) (*os.File, error) {
	at := p.own(uid)
	if err := errors.Join(os.MkdirAll(p.cfg.Dir, 0o711), os.MkdirAll(p.dir(dirOwn), 0o700), os.MkdirAll(at, 0o700)); err != nil {
		return nil, err
	}
	device, err := open(uid)
	if err != nil {
		return nil, err
	}
	err = unix.Mount(device.Name(), at, "ext4", flags|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "errors=remount-ro")
	if err := errors.Join(err, device.Close()); err != nil {
		return nil, fmt.Errorf("mounting it at %s: %w", at, err)
	}
	dir, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	var here, above unix.Stat_t
	err = errors.Join(unix.Fstat(int(dir.Fd()), &here), unix.Stat(p.dir(dirOwn), &above))
	if err == nil && here.Dev == above.Dev {
		err = fmt.Errorf("%s is not mounted", at)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// leaveOwn unmounts what mountOwn has mounted, and returns once its device is gone.
func (p *Pool) leaveOwn(ctx context.Context, uid string) error {
	if err := unmount(ctx, p.own(uid)); err != nil {
		return err
	}
	return p.cfg.Images.AwaitOwn(ctx, uid)
}

// Import implements volume.Importer.
func (p *Pool) Import(ctx context.Context, v volume.Volume, in io.Reader) error {
	if err := errors.Join(ctx.Err(), v.Check()); err != nil {
		return err
	}
	if err := p.importArchive(ctx, &v, in); err != nil {
		return fmt.Errorf("making volume %s of an archive: %w", v.UID, err)
	}
	return nil
}

func (p *Pool) importArchive(ctx context.Context, v *volume.Volume, in io.Reader) error {
	r, err := p.obey(v.UID, v.Generation)
	if err != nil {
		return err
	}
	image, _, err := p.images(v.UID)
	switch {
	case err != nil:
		return err
	case image != nil:
		return errors.New("it is there already")
	case v.Made:
		return volume.ErrLost
	}
	if problems := ext4.Problems(); len(problems) > 0 {
		return errors.New(problems[0])
	}
	if err := p.fillDraft(ctx, v, in); err != nil {
		return errors.Join(err, p.cfg.Images.DropDraft(v.UID))
	}
	failpoint.Hit("imagepool.after-unpack")
	r.FittedBytes = v.SizeBytes
	if err := p.write(v.UID, r); err != nil {
		return err
	}
	return p.cfg.Images.Commit(v.UID)
}

// fillDraft makes a draft with what is in an archive.
func (p *Pool) fillDraft(ctx context.Context, v *volume.Volume, in io.Reader) (err error) {
	if err := p.makeEmpty(ctx, v); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.leaveOwn(context.WithoutCancel(ctx), v.UID)) }()
	dir, err := p.mountOwn(v.UID, p.cfg.Images.OpenDraft, 0)
	if err != nil {
		return err
	}
	failpoint.Hit("imagepool.after-mount-draft")
	_, err = archive.Unpack(ctx, in, archive.Target{Dir: dir, VolumeBytes: v.SizeBytes})
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: of %d bytes and %d files: %w", volume.ErrTooSmall, v.SizeBytes, v.MaxFiles, err)
	}
	return errors.Join(err, dir.Close())
}
