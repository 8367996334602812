package fake

import (
	"context"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// RunOutOfMemory makes the kernel end one process of a member, another than its first, for want of memory.
func (h *Host) RunOutOfMemory(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		m.oomKills++
	}
}

// OutOfMemory returns how many processes of a member memory ran out for; it implements driver.MemoryAccountant.
func (d *Driver) OutOfMemory(id string) (int, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	if m := d.host.members[id]; m != nil {
		return m.oomKills, nil
	}
	return 0, nil
}

// Hang makes a running member stand still as an ended kernel does.
func (h *Host) Hang(id, how string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[id]; m != nil {
		m.hung = how
	}
}

// Hung returns the running members that hang; it implements driver.Examiner.
func (d *Driver) Hung(context.Context) (map[string]string, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	hung := map[string]string{}
	for id, m := range d.host.members {
		if m.hung != "" && m.state == driver.StateRunning {
			hung[id] = m.hung
		}
	}
	return hung, nil
}

// Portless returns what was scripted; it implements driver.PortExaminer.
func (d *Driver) Portless(context.Context) (map[string]string, error) {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	portless := map[string]string{}
	for id, m := range d.host.members {
		if what := d.host.behaviour(id).Portless; what != "" && m.state == driver.StateRunning {
			portless[id] = what
		}
	}
	return portless, nil
}
