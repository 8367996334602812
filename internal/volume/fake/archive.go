package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// archived is what an archive of a pretended volume has before its trailer.
type archived struct {
	UsedBytes int64 `json:"used_bytes"`
	UsedFiles int64 `json:"used_files"`
}

// Export implements volume.Exporter.
func (p *Pool) Export(ctx context.Context, uid, snapshot string, out io.Writer) error {
	if err := errors.Join(ctx.Err(), volume.CheckUID(uid)); err != nil {
		return err
	}
	c, err := p.disk.beginExport(uid, snapshot)
	if err != nil {
		return fmt.Errorf("volume %s: %w", uid, err)
	}
	defer p.disk.endExport(uid)
	if err := json.NewEncoder(out).Encode(archived{c.usedBytes, c.usedFiles}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return archive.Trailer{Files: c.usedFiles, Bytes: c.usedBytes, VolumeBytes: c.size, VolumeFiles: c.files}.Write(out)
}

func (d *Disk) beginExport(uid, snapshot string) (content, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.volumes[uid]
	switch {
	case !ok || !s.ready:
		return content{}, errors.New("it does not exist here")
	case s.exporting:
		return content{}, fmt.Errorf("%w: a backup of it is being written", volume.ErrInUse)
	}
	c := s.content
	if snapshot != "" {
		if c, ok = s.snapshots[snapshot]; !ok {
			return content{}, fmt.Errorf("it has no snapshot %s", snapshot)
		}
	}
	s.exporting = true
	d.did("export %s %s", uid, snapshot)
	return c, nil
}

func (d *Disk) endExport(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.volumes[uid]; ok {
		s.exporting = false
	}
}

// Import implements volume.Importer.
func (p *Pool) Import(ctx context.Context, v volume.Volume, in io.Reader) error {
	if err := errors.Join(ctx.Err(), v.Check()); err != nil {
		return err
	}
	var tail archive.Tail
	text, err := io.ReadAll(io.TeeReader(in, &tail))
	if err != nil {
		return err
	}
	var from archived
	if _, err := tail.Trailer(); err != nil {
		return fmt.Errorf("volume %s: %w", v.UID, err)
	}
	if err := json.Unmarshal(text[:len(text)-archive.TrailerBytes], &from); err != nil {
		return fmt.Errorf("volume %s: %w: %w", v.UID, archive.ErrDamaged, err)
	}
	d := p.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failure(v.UID); err != nil {
		return err
	}
	s, ok := d.volumes[v.UID]
	switch {
	case ok && v.Generation < s.generation:
		return stale(v.UID, v.Generation, s.generation)
	case ok && s.ready:
		return fmt.Errorf("volume %s is there already", v.UID)
	case from.UsedBytes > v.SizeBytes || from.UsedFiles > v.MaxFiles:
		return fmt.Errorf("volume %s: %w: %d bytes and %d files", v.UID, volume.ErrTooSmall, from.UsedBytes, from.UsedFiles)
	case v.Made:
		return fmt.Errorf("volume %s: %w", v.UID, volume.ErrLost)
	}
	v.Origin = nil
	if err := d.makeOne(&v); err != nil {
		return err
	}
	c := &d.volumes[v.UID].content
	c.usedBytes, c.usedFiles = from.UsedBytes, from.UsedFiles
	d.did("import %s", v.UID)
	return nil
}
