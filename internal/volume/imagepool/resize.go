package imagepool

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
)

// resize brings the volume to its size. It grows while it is attached; it shrinks while it is not.
func (p *Pool) resize(ctx context.Context, v *volume.Volume, r *record) error {
	image, _, err := p.images(v.UID)
	switch {
	case err != nil:
		return err
	case image == nil:
		return errors.New("its image is gone")
	case v.SizeBytes == image.SizeBytes && r.FittedBytes == v.SizeBytes:
		return nil
	case v.SizeBytes == image.SizeBytes && p.fits(v):
		r.FittedBytes = v.SizeBytes
		return p.write(v.UID, *r)
	case v.SizeBytes >= image.SizeBytes && ext4.CanGrowMounted():
		err = p.grow(ctx, v, r)
	default:
		err = p.rework(ctx, v, r, image.SizeBytes)
	}
	if err != nil {
		return fmt.Errorf("resizing it to %d bytes: %w", v.SizeBytes, err)
	}
	return nil
}

// fits reports whether the file system has the size that the image has. What begins as a snapshot usually is.
func (p *Pool) fits(v *volume.Volume) bool {
	if p.unattached(v.UID) != nil {
		return false
	}
	fits, err := ext4.Fits(p.cfg.Images.Path(v.UID), v.SizeBytes)
	return err == nil && fits
}

// grow makes the image larger, then the file system in it, which is mounted meanwhile.
func (p *Pool) grow(ctx context.Context, v *volume.Volume, r *record) error {
	if err := p.cfg.Images.Resize(v.UID, v.SizeBytes); err != nil {
		return err
	}
	clusters, err := p.attached(v.UID)
	if err != nil {
		return err
	}
	if err := p.mount(v.UID); err != nil {
		return err
	}
	device, err := p.cfg.Images.Open(v.UID)
	if err != nil {
		return err
	}
	err = errors.Join(ext4.GrowMounted(ctx, device.Name(), v.SizeBytes), device.Close())
	if len(clusters) == 0 {
		err = errors.Join(err, p.release(ctx, v.UID))
	}
	if err != nil {
		return err
	}
	failpoint.Hit("imagepool.after-grow")
	r.FittedBytes = v.SizeBytes
	return p.write(v.UID, *r)
}

// The room that changing the size takes for structures of the file system: a part of its size, and some more.
const (
	reworkPart  = 32
	reworkLeast = 16 << 20
)

// rework changes the file system in a draft, which then takes the volume's place: a crash in between leaves the volume as it was.
func (p *Pool) rework(ctx context.Context, v *volume.Volume, r *record, sizeBytes int64) error {
	if err := p.unattached(v.UID); err != nil && v.SizeBytes >= sizeBytes {
		return fmt.Errorf("%w; growing it meanwhile takes the capability CAP_SYS_RESOURCE, which the agent has not", err)
	} else if err != nil {
		return err
	}
	u, err := p.usage(v.UID)
	if err != nil {
		return err
	}
	if u.UsedBytes > v.SizeBytes {
		return fmt.Errorf("%w: it holds %d bytes", volume.ErrTooSmall, u.UsedBytes)
	}
	// What is written is what is moved, which is at most all that it holds, and the file system's own structures.
	written := min(v.SizeBytes, u.UsedBytes+v.SizeBytes/reworkPart+reworkLeast)
	if v.SizeBytes > sizeBytes {
		written = v.SizeBytes - sizeBytes
	}
	draft, err := p.cfg.Images.Rework(ctx, v.UID, written, v.SizeBytes)
	if err != nil {
		return err
	}
	err = ext4.Resize(ctx, draft, v.SizeBytes)
	if errors.Is(err, ext4.ErrTooSmall) {
		err = fmt.Errorf("%w: %w", volume.ErrTooSmall, err)
	}
	if err != nil {
		return errors.Join(err, p.cfg.Images.DropDraft(v.UID))
	}
	failpoint.Hit("imagepool.after-rework")
	// A crash in between leaves a record that says too little or too much of the old image: the next Apply does all of this again.
	r.FittedBytes = v.SizeBytes
	if err := p.write(v.UID, *r); err != nil {
		return err
	}
	if err := p.cfg.Images.Commit(v.UID); err != nil {
		return err
	}
	return p.cfg.Images.Resize(v.UID, v.SizeBytes)
}
