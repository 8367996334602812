package container

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// OutOfMemory returns how many processes of a member the kernel has ended for want of memory; it implements driver.MemoryAccountant.
func (d *Driver) OutOfMemory(id string) (int, error) {
	if !validName(id) {
		return 0, nil
	}
	h, err := d.host()
	if err != nil {
		return 0, err
	}
	return h.cgroups.OutOfMemory(id)
}

// memoryText is what people are told of a member that ran out of memory; empty when it did not.
func (s sight) memoryText() string {
	if s.oomKills == 0 || s.member == nil {
		return ""
	}
	return fmt.Sprintf("; it ran out of memory: its limit is %s, and the kernel killed some of its processes (%d)", api.Bytes(s.member.Assignment.MemoryBytes()), s.oomKills)
}
