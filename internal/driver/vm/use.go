package vm

import (
	"errors"
	"io/fs"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Use implements driver.Meter by the control groups of the machine's processes: its memory is what QEMU has, which a guest seldom gives back.
func (d *Driver) Use(id string) (api.MemberUse, error) {
	if !validName(id) {
		return api.MemberUse{}, driver.ErrNotFound
	}
	groups, err := d.groups()
	if err != nil {
		return api.MemberUse{}, err
	}
	u, err := groups.Use(id)
	if errors.Is(err, fs.ErrNotExist) {
		return api.MemberUse{}, driver.ErrNotFound
	}
	return api.MemberUse{CPUSeconds: u.CPUSeconds, MemoryBytes: u.MemoryBytes, DiskReadBytes: u.ReadBytes, DiskWrittenBytes: u.WrittenBytes}, err
}
