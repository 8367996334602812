package imagepool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// A block volume is an image that is never mounted here: what a guest writes there, no kernel of a host takes for a file system. A process serves it to
// each cluster that has it (package diskserver).

// applyBlock is apply for a block volume.
func (p *Pool) applyBlock(ctx context.Context, v *volume.Volume, r *record) error {
	if err := p.ensureMade(ctx, v, r); err != nil {
		return err
	}
	if !r.Block {
		return errors.New("it has a file system, and is no block volume")
	}
	if err := p.detachDisks(ctx, v.UID, v.Attachments); err != nil {
		return err
	}
	if err := p.restore(ctx, v, r); err != nil {
		return err
	}
	return errors.Join(p.growBlock(v), p.snapshot(ctx, v), p.attachDisks(ctx, v))
}

// awaken makes the path of an image lead to it, where that takes a device.
func (p *Pool) awaken(uid string) error {
	if _, err := os.Stat(p.cfg.Images.Path(uid)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	device, err := p.cfg.Images.Open(uid)
	if err != nil {
		return err
	}
	return device.Close()
}

// growBlock makes the image larger. A client sees that when it connects anew.
func (p *Pool) growBlock(v *volume.Volume) error {
	image, _, err := p.images(v.UID)
	switch {
	case err != nil:
		return err
	case image == nil:
		return errors.New("its image is gone")
	case v.SizeBytes < image.SizeBytes:
		return fmt.Errorf("%w: nobody knows how much of the %d bytes of a block volume is in use", volume.ErrTooSmall, image.SizeBytes)
	case v.SizeBytes == image.SizeBytes:
		return nil
	}
	if err := p.cfg.Images.Resize(v.UID, v.SizeBytes); err != nil {
		return fmt.Errorf("resizing it to %d bytes: %w", v.SizeBytes, err)
	}
	return nil
}

// disksOf are the clusters to which a block volume is served, in order.
func (p *Pool) disksOf(uid string) (clusters []string, err error) {
	there, err := os.ReadDir(filepath.Join(p.dir(dirDisks), uid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range there {
		runs, err := diskserver.Runs(p.disk(uid, e.Name()))
		if err != nil {
			return nil, err
		}
		if runs {
			clusters = append(clusters, e.Name())
		}
	}
	return clusters, nil
}

// detachDisks ends what serves a block volume to clusters that are not to have it.
func (p *Pool) detachDisks(ctx context.Context, uid string, wanted []volume.Attachment) error {
	dir := filepath.Join(p.dir(dirDisks), uid)
	there, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range there {
		if slices.ContainsFunc(wanted, func(a volume.Attachment) bool { return a.ClusterUID == e.Name() }) {
			continue
		}
		if err := diskserver.End(ctx, p.disk(uid, e.Name())); err != nil {
			return err
		}
		failpoint.Hit("imagepool.after-disk-end")
	}
	if len(wanted) > 0 {
		return nil
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// attachDisks serves a block volume to the clusters that are to have it.
func (p *Pool) attachDisks(ctx context.Context, v *volume.Volume) error {
	if len(v.Attachments) == 0 {
		return nil
	}
	// Zeroing has given blocks back on kernels that can't be kept from that.
	if err := p.cfg.Images.Resize(v.UID, 0); err != nil {
		return err
	}
	if err := p.awaken(v.UID); err != nil {
		return err
	}
	// The ways to it are searched by other users: what serves it to another node is the cluster's.
	if err := errors.Join(os.MkdirAll(p.cfg.Dir, 0o711), os.MkdirAll(filepath.Join(p.dir(dirDisks), v.UID), 0o711)); err != nil {
		return err
	}
	for _, a := range v.Attachments {
		s := diskserver.Serve{Program: p.cfg.Program, Dir: p.disk(v.UID, a.ClusterUID), Image: p.cfg.Images.Path(v.UID), ReadOnly: a.ReadOnly, BytesPerSecond: v.IOBytesPerSecond, UserIDs: a.UserIDs}
		if err := s.Ensure(ctx); err != nil {
			return fmt.Errorf("attaching it to cluster %s: %w", a.ClusterUID, err)
		}
		failpoint.Hit("imagepool.after-disk")
	}
	return ctx.Err()
}
