package monitor

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// checkLimits allow one check of a host at a time: a check starts programs.
func checkLimits() limits {
	return limits{patience: 30 * time.Second, most: 1, busy: "its agent is already checking its host"}
}

// CheckHost asks a node's agent what its host lacks at this moment.
func (m *Monitor) CheckHost(ctx context.Context, nodeName string) (api.HostCheck, error) {
	checked, err := ask(ctx, m, nodeName, func(s *stream) *questions[agentstream.HostChecked] { return &s.checks }, func(id int64) agentstream.Down {
		return agentstream.Down{CheckHost: &agentstream.CheckHost{ID: id}}
	})
	if err != nil {
		return api.HostCheck{}, err
	}
	return api.HostCheck{Findings: fit(checked.Findings)}, nil
}

// fit bounds what an agent has found, and makes it fit for terminals.
func fit(findings []api.HostFinding) []api.HostFinding {
	all := make([]api.HostFinding, 0, min(len(findings), agentstream.MaxFindings))
	for _, f := range findings[:min(len(findings), agentstream.MaxFindings)] {
		all = append(all, api.HostFinding{
			Area: manifest.Text(f.Area), Name: manifest.Text(f.Name), Status: manifest.Text(f.Status), Detail: manifest.Text(f.Detail), Fix: manifest.Text(f.Fix),
		})
	}
	return all
}
