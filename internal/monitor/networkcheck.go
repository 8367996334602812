package monitor

import (
	"context"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// networkLimits allow several checks of networks at a time.
func networkLimits() limits {
	return limits{patience: 15 * time.Second, most: 8, busy: "its agent is already checking several networks"}
}

// CheckNetwork asks a node's agent whether a network is in force, and has it exchange probes with the other nodes of the network, which have to be
// asked at the same time and with the same mark.
func (m *Monitor) CheckNetwork(ctx context.Context, nodeName string, network int, mark uint64) (agentstream.NetworkReport, error) {
	checked, err := ask(ctx, m, nodeName, func(s *stream) *questions[agentstream.NetworkChecked] { return &s.networks }, func(id int64) agentstream.Down {
		return agentstream.Down{CheckNetwork: &agentstream.CheckNetwork{ID: id, Network: network, Mark: mark}}
	})
	if err != nil {
		return agentstream.NetworkReport{}, err
	}
	return fitReport(checked.NetworkReport), nil
}

// fitReport bounds what an agent has found, and makes it fit for terminals.
func fitReport(r agentstream.NetworkReport) agentstream.NetworkReport {
	fit := agentstream.NetworkReport{Pending: manifest.Text(r.Pending), Ports: r.Ports, Wrong: map[string]string{}}
	for _, d := range r.Drift[:min(len(r.Drift), agentstream.MaxReported)] {
		fit.Drift = append(fit.Drift, fabric.Drift{Network: d.Network, Object: manifest.Text(d.Object), Want: manifest.Text(d.Want), Got: manifest.Text(d.Got)})
	}
	for id, problem := range r.Wrong {
		if len(fit.Wrong) < agentstream.MaxReported {
			fit.Wrong[manifest.Text(id)] = manifest.Text(problem)
		}
	}
	for _, met := range r.Meetings[:min(len(r.Meetings), agentstream.MaxReported)] {
		met.Problem = manifest.Text(met.Problem)
		fit.Meetings = append(fit.Meetings, met)
	}
	return fit
}

// DesiredNetwork returns a network as a node should have it by the leader's newest decision, and false if the node should not have it, or
// if this server does not know.
func (m *Monitor) DesiredNetwork(nodeName string, network int) (fabric.Network, bool, error) {
	m.mu.Lock()
	var desired *agentstream.Desired
	if n := m.nodes[nodeName]; n != nil {
		desired = n.desired
	}
	m.mu.Unlock()
	if desired == nil {
		return fabric.Network{}, false, nil
	}
	all, err := desired.WholeNetworks()
	if err != nil {
		return fabric.Network{}, false, err
	}
	i := slices.IndexFunc(all, func(n fabric.Network) bool { return n.Index == network })
	if i < 0 {
		return fabric.Network{}, false, nil
	}
	return all[i], true, nil
}
