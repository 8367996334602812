package monitor

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// Bounds of what an agent reports of its hardware.
const (
	maxControllers = 64
	maxDisks       = 256
)

// takeFaults takes the errors that a node's hardware has counted.
func (m *Monitor) takeFaults(name string, s *stream, faults api.HardwareFaults) {
	faults.Boot = manifest.Text(faults.Boot)
	faults.Memory = slices.Clone(faults.Memory[:min(len(faults.Memory), maxControllers)])
	for i := range faults.Memory {
		one := &faults.Memory[i]
		one.Controller, one.Corrected, one.Uncorrected = manifest.Text(one.Controller), max(one.Corrected, 0), max(one.Uncorrected, 0)
	}
	faults.Disks = slices.Clone(faults.Disks[:min(len(faults.Disks), maxDisks)])
	for i := range faults.Disks {
		one := &faults.Disks[i]
		one.Name, one.Model, one.Serial, one.Failing = manifest.Text(one.Name), manifest.Text(one.Model), manifest.Text(one.Serial), manifest.Text(one.Failing)
		one.MediaErrors = max(one.MediaErrors, 0)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.node(name); n.stream == s {
		n.faults = &faults
		m.notify(n)
	}
}

// Faults returns the errors that a node's hardware has counted, as its agent said last; false while it is not connected, or has not said.
func (m *Monitor) Faults(nodeName string) (api.HardwareFaults, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil && n.faults != nil {
		return *n.faults, true
	}
	return api.HardwareFaults{}, false
}
