package monitor

import (
	"maps"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// count takes the counters of a node's ports. Nobody is woken: nothing is decided by them.
func (m *Monitor) count(name string, s *stream, counts *agentstream.PortCounts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.node(name); n.stream == s {
		n.counts = counts.Apply(n.counts)
	}
}

// PortCounters returns the counters of a node's ports as its agent last sent them, by port ID. Those of a node whose agent is not connected are
// none: they may be long past.
func (m *Monitor) PortCounters(nodeName string) map[string]api.PortCounters {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.stream != nil {
		return maps.Clone(n.counts)
	}
	return nil
}
