package metal

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
)

// SaveFiles implements driver.FileSaver. The member's programs go on meanwhile.
func (d *Driver) SaveFiles(ctx context.Context, id string, use changedfiles.Use, out io.Writer) error {
	if _, err := d.known(id); err != nil {
		return err
	}
	if !d.saving.TryLock() {
		return errors.New("its files are being saved already; wait for the end of that")
	}
	defer d.saving.Unlock()
	dir, err := os.Open(d.cfg.Changes)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	_, err = archive.Pack(ctx, archive.Source{
		Dir: dir, VolumeBytes: changedfiles.DefaultMaxBytes, Scratch: filepath.Dir(d.cfg.Changes), Layer: true, Omit: use.Omitted,
	}, out)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return errors.Join(errors.New("a file became shorter while it was read; end what writes it, and save again"), err)
	}
	return err
}
