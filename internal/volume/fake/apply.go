package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Apply implements volume.Pool.
func (p *Pool) Apply(ctx context.Context, v volume.Volume) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := v.Check(); err != nil {
		return err
	}
	d := p.disk
	d.mu.Lock()
	if err := d.failure(v.UID); err != nil {
		d.mu.Unlock()
		return err
	}
	if s, ok := d.volumes[v.UID]; ok && v.Generation < s.generation {
		d.mu.Unlock()
		return stale(v.UID, v.Generation, s.generation)
	}
	if v.Purge {
		d.detach(&v)
		d.mu.Unlock()
		return p.Purge(ctx, v.UID, v.Generation)
	}
	defer d.mu.Unlock()
	for _, step := range []func(*volume.Volume) error{d.makeOne, d.detach, d.restore} {
		if err := step(&v); err != nil {
			return err
		}
	}
	return errors.Join(d.resize(&v), d.snapshot(&v), d.attach(&v))
}

// makeOne makes the volume unless it is there.
func (d *Disk) makeOne(v *volume.Volume) error {
	s, ok := d.volumes[v.UID]
	if ok && s.ready {
		s.generation = v.Generation
		return nil
	}
	if err := v.MayMake(); err != nil {
		return fmt.Errorf("volume %s: %w", v.UID, err)
	}
	if ok {
		delete(d.volumes, v.UID)
	}
	c := content{size: v.SizeBytes, files: v.MaxFiles}
	if v.Origin.IsSnapshot() {
		from, err := d.snapshotOf(*v.Origin)
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.UID, err)
		}
		c = from
	}
	if err := d.room(c.size); err != nil {
		return fmt.Errorf("volume %s: %w", v.UID, err)
	}
	d.volumes[v.UID] = &stored{
		ready: true, generation: v.Generation, content: c, snapshots: map[string]content{}, attached: map[string]volume.Attachment{},
	}
	d.did("make %s", v.UID)
	return nil
}

func (d *Disk) snapshotOf(o api.VolumeOrigin) (content, error) {
	s, ok := d.volumes[o.VolumeUID]
	if !ok {
		return content{}, fmt.Errorf("volume %s, whose snapshot it begins as, does not exist here", o.VolumeUID)
	}
	c, ok := s.snapshots[o.SnapshotUID]
	if !ok {
		return content{}, fmt.Errorf("volume %s has no snapshot %s", o.VolumeUID, o.SnapshotUID)
	}
	return c, nil
}

// detach removes attachments that are not wanted, or wanted otherwise.
func (d *Disk) detach(v *volume.Volume) error {
	s, ok := d.volumes[v.UID]
	if !ok {
		return nil
	}
	for cluster, a := range s.attached {
		if v.Purge || !slices.Contains(v.Attachments, a) {
			delete(s.attached, cluster)
			d.did("detach %s %s", v.UID, cluster)
		}
	}
	return nil
}

func (d *Disk) restore(v *volume.Volume) error {
	s := d.volumes[v.UID]
	if v.Restore == nil || v.Restore.Number <= s.restored {
		return nil
	}
	if len(s.attached) > 0 {
		return inUse(v.UID, s)
	}
	c, ok := s.snapshots[v.Restore.SnapshotUID]
	if !ok {
		return fmt.Errorf("volume %s has no snapshot %s to go back to", v.UID, v.Restore.SnapshotUID)
	}
	if err := d.room(c.size - s.content.size); err != nil && c.size > s.content.size {
		return fmt.Errorf("volume %s: %w", v.UID, err)
	}
	s.content, s.restored = c, v.Restore.Number
	d.did("restore %s %s", v.UID, v.Restore.SnapshotUID)
	return nil
}

func (d *Disk) resize(v *volume.Volume) error {
	s := d.volumes[v.UID]
	c := &s.content
	switch {
	case c.size == v.SizeBytes && c.files == v.MaxFiles:
		return nil
	case v.SizeBytes > c.size:
		if err := d.room(v.SizeBytes - c.size); err != nil {
			return fmt.Errorf("volume %s: %w", v.UID, err)
		}
	case v.SizeBytes < c.size && len(s.attached) > 0:
		return inUse(v.UID, s)
	}
	if c.usedBytes > v.SizeBytes || c.usedFiles > v.MaxFiles {
		return fmt.Errorf("volume %s: %w: %d bytes and %d files", v.UID, volume.ErrTooSmall, c.usedBytes, c.usedFiles)
	}
	c.size, c.files = v.SizeBytes, v.MaxFiles
	d.did("resize %s %d", v.UID, v.SizeBytes)
	return nil
}

// snapshot removes snapshots that are not wanted, then makes those that are.
func (d *Disk) snapshot(v *volume.Volume) error {
	s := d.volumes[v.UID]
	for id := range s.snapshots {
		if !slices.Contains(v.Snapshots, id) {
			delete(s.snapshots, id)
			d.did("unsnapshot %s %s", v.UID, id)
		}
	}
	for _, id := range v.Snapshots {
		if _, ok := s.snapshots[id]; ok {
			continue
		}
		if err := d.room(s.content.usedBytes); err != nil {
			return fmt.Errorf("snapshot %s of volume %s: %w", id, v.UID, err)
		}
		s.snapshots[id] = s.content
		d.did("snapshot %s %s", v.UID, id)
	}
	return nil
}

func (d *Disk) attach(v *volume.Volume) error {
	s := d.volumes[v.UID]
	for _, a := range v.Attachments {
		if _, ok := s.attached[a.ClusterUID]; !ok {
			s.attached[a.ClusterUID] = a
			d.did("attach %s %s", v.UID, a.ClusterUID)
		}
	}
	return nil
}
