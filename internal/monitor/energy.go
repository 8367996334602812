package monitor

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
)

// takeEnergy takes what a node's agent read of its energy. Nobody is woken: nothing is decided by it. A machine that a member has whole is the
// member's, who could say anything: its agent is not believed.
func (m *Monitor) takeEnergy(name string, s *stream, sample *api.EnergySample) {
	if !energy.Sensible(sample) || m.cfg.IsMember != nil && m.cfg.IsMember(name) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.node(name); n.stream == s {
		n.energy, n.energyAt = sample, m.cfg.Now()
	}
}

// EnergySample returns what a node's agent read last of its energy, and when that came; nil: it is not connected, or has not said. The result must not
// be changed.
func (m *Monitor) EnergySample(nodeName string) (*api.EnergySample, time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil {
		return n.energy, n.energyAt
	}
	return nil, time.Time{}
}
