package monitor

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// homeLimits allow a few counts of homes at a time at one agent: each reads the home's disk.
func homeLimits() limits {
	return limits{patience: 5 * time.Second, most: 8, busy: "its agent is already measuring several homes"}
}

// HomeUsage asks a node's agent what the shared home of a member's cluster holds at this moment.
func (m *Monitor) HomeUsage(ctx context.Context, nodeName, memberID string) (api.HomeUsage, error) {
	counted, err := ask(ctx, m, nodeName, func(s *stream) *questions[agentstream.HomeCounted] { return &s.homes }, func(id int64) agentstream.Down {
		return agentstream.Down{CountHome: &agentstream.CountHome{ID: id, MemberID: memberID}}
	})
	if err != nil {
		return api.HomeUsage{}, err
	}
	return counted.Usage, nil
}
