package vm

import (
	"context"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// ServeHome serves a member's home without a machine, until the member is cleaned, and returns its socket.
func (d *Driver) ServeHome(m driver.Member) (string, error) {
	dir := d.path(m.Assignment.ID, dirLink)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", err
	}
	if err := d.confine(&m.Assignment); err != nil {
		return "", err
	}
	return filepath.Join(dir, fileHome), d.keepHome(context.Background(), m)
}

// EndHome ends that, and ReplaceHome has another server do it. FindHome is what Observe does.
var (
	EndHome     = (*Driver).endHome
	ReplaceHome = (*Driver).replaceHome
	FindHome    = (*Driver).findHome
	KeepHome    = (*Driver).keepHome
)

// OverlaySize reads the size of the disk in a private disk's file.
var OverlaySize = overlaySize
