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

const (
	// homePatience bounds the wait for an agent that counts a home; the agent gives itself a little less.
	homePatience = 5 * time.Second
	// maxHomeCounts bounds how many counts are under way at one agent: each reads the home's disk.
	maxHomeCounts = 8
)

// HomeUsage asks a node's agent what the shared home of a member's cluster holds at this moment.
func (m *Monitor) HomeUsage(ctx context.Context, nodeName, memberID string) (api.HomeUsage, error) {
	m.mu.Lock()
	var s *stream
	if n := m.nodes[nodeName]; n != nil {
		s = n.stream
	}
	m.mu.Unlock()
	if s == nil {
		return api.HomeUsage{}, fmt.Errorf("the agent of node %q is not connected to this server", nodeName)
	}
	id, answer, err := s.askHome(memberID)
	if err != nil {
		return api.HomeUsage{}, fmt.Errorf("node %q: %w", nodeName, err)
	}
	defer s.forgetHome(id)
	ctx, cancel := context.WithTimeout(ctx, homePatience)
	defer cancel()
	select {
	case counted := <-answer:
		if counted.Failure != "" {
			return api.HomeUsage{}, fmt.Errorf("node %q: %s", nodeName, manifest.Text(counted.Failure))
		}
		return counted.Usage, nil
	case <-ctx.Done():
		return api.HomeUsage{}, fmt.Errorf("the agent of node %q did not answer in time: %w", nodeName, ctx.Err())
	}
}

// askHome sends the question down the stream. Exactly one answer is taken for its ID.
func (s *stream) askHome(memberID string) (int64, <-chan agentstream.HomeCounted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.homes) >= maxHomeCounts {
		return 0, nil, errors.New("its agent is already measuring several homes; try again in a few seconds")
	}
	s.lastHome++
	answer := make(chan agentstream.HomeCounted, 1)
	if s.homes == nil {
		s.homes = map[int64]chan agentstream.HomeCounted{}
	}
	s.homes[s.lastHome] = answer
	s.counts = append(s.counts, agentstream.CountHome{ID: s.lastHome, MemberID: memberID})
	s.wake()
	return s.lastHome, answer, nil
}

func (s *stream) forgetHome(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.homes, id)
}

// homeCounted hands an agent's answer to the request that waits for it; an answer to no question is dropped.
func (s *stream) homeCounted(counted agentstream.HomeCounted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer := s.homes[counted.ID]; answer != nil {
		delete(s.homes, counted.ID)
		answer <- counted // it has room for one
	}
}
