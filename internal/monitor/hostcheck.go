package monitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// checkPatience bounds the wait for an agent that checks its host; the agent gives itself a little less.
const checkPatience = 30 * time.Second

// hostQuestion is a check of a host that an agent was asked for. There is one at a time: a check starts programs.
type hostQuestion struct {
	id     int64
	ask    bool // not sent yet
	answer chan agentstream.HostChecked
}

// CheckHost asks a node's agent what its host lacks at this moment.
func (m *Monitor) CheckHost(ctx context.Context, nodeName string) (api.HostCheck, error) {
	m.mu.Lock()
	var s *stream
	if n := m.nodes[nodeName]; n != nil {
		s = n.stream
	}
	m.mu.Unlock()
	if s == nil {
		return api.HostCheck{}, fmt.Errorf("the agent of node %q is not connected to this server", nodeName)
	}
	answer, err := s.askHost()
	if err != nil {
		return api.HostCheck{}, fmt.Errorf("node %q: %w", nodeName, err)
	}
	defer s.forgetHost(answer)
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	select {
	case checked := <-answer:
		if checked.Failure != "" {
			return api.HostCheck{}, fmt.Errorf("node %q: %s", nodeName, manifest.Text(checked.Failure))
		}
		return api.HostCheck{Findings: fit(checked.Findings)}, nil
	case <-ctx.Done():
		return api.HostCheck{}, fmt.Errorf("the agent of node %q did not answer in time: %w", nodeName, ctx.Err())
	}
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

func (s *stream) askHost() (chan agentstream.HostChecked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check.answer != nil {
		return nil, errors.New("its agent is already checking its host; try again in a few seconds")
	}
	s.check = hostQuestion{id: s.check.id + 1, ask: true, answer: make(chan agentstream.HostChecked, 1)}
	s.wake()
	return s.check.answer, nil
}

func (s *stream) forgetHost(answer chan agentstream.HostChecked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check.answer == answer {
		s.check.answer = nil
	}
}

// hostChecked hands an agent's answer to the request that waits for it; an answer to no question is dropped.
func (s *stream) hostChecked(checked agentstream.HostChecked) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check.answer != nil && checked.ID == s.check.id {
		s.check.answer <- checked // it has room for one
		s.check.answer = nil
	}
}
