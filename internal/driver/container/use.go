package container

import (
	"errors"
	"io/fs"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// Use implements driver.Meter by the member's control groups.
func (d *Driver) Use(id string) (api.MemberUse, error) {
	if !validName(id) {
		return api.MemberUse{}, driver.ErrNotFound
	}
	h, err := d.host()
	if err != nil {
		return api.MemberUse{}, err
	}
	u, err := h.cgroups.Use(id)
	if errors.Is(err, fs.ErrNotExist) {
		return api.MemberUse{}, driver.ErrNotFound
	}
	return api.MemberUse{CPUSeconds: u.CPUSeconds, MemoryBytes: u.MemoryBytes, DiskReadBytes: u.ReadBytes, DiskWrittenBytes: u.WrittenBytes}, err
}
