package monitor

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// usePoints is how many readings of a member's use are kept: five minutes of them.
const usePoints = 60

// memberUses is what a member used of late.
type memberUses struct {
	last     api.MemberUse
	network  *api.PortCounters
	at       time.Time
	readings []api.UsePoint
}

// takeUses takes what the members of a node have used. Only those are taken that the agent has said it carries: an agent can't fill the server's
// memory with others, and what it says is kept for its own node.
func (m *Monitor) takeUses(name string, s *stream, uses map[string]api.MemberUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(name)
	if n.stream != s {
		return
	}
	kept := make(map[string]*memberUses, len(n.observed.Members))
	now := m.cfg.Now()
	for _, seen := range n.observed.Members {
		known := n.uses[seen.ID]
		use, told := uses[seen.ID]
		if told && sensible(use) {
			if known == nil {
				known = &memberUses{}
			}
			known.take(use, portsOf(n.counts, seen.ID), now)
		}
		if known != nil {
			kept[seen.ID] = known
		}
	}
	n.uses = kept
}

// sensible refuses numbers that nothing can have counted.
func sensible(u api.MemberUse) bool {
	positive := func(n *int64) bool { return n == nil || *n >= 0 }
	return u.CPUSeconds >= 0 && !math.IsInf(u.CPUSeconds, 0) && u.MemoryBytes >= 0 && positive(u.DiskReadBytes) && positive(u.DiskWrittenBytes)
}

// portsOf sums the counters of a member's ports; nil where none is counted. A port has its assignment's ID, with a number from the second on.
func portsOf(counts map[string]api.PortCounters, id string) *api.PortCounters {
	var sum api.PortCounters
	found := false
	for port, c := range counts {
		if of, _, _ := strings.Cut(port, "+"); of == id {
			sum.SentBytes, sum.ReceivedBytes, found = sum.SentBytes+c.SentBytes, sum.ReceivedBytes+c.ReceivedBytes, true
		}
	}
	if !found {
		return nil
	}
	return &sum
}

// take makes a point of a reading and the one before it. Counters that went back are of a member that started anew: nothing is known of the time
// between.
func (u *memberUses) take(use api.MemberUse, network *api.PortCounters, now time.Time) {
	point := api.UsePoint{At: now.UTC(), MemoryBytes: use.MemoryBytes}
	if seconds := now.Sub(u.at).Seconds(); !u.at.IsZero() && seconds > 0 {
		rate := func(before, after float64) *float64 {
			if after < before {
				return nil
			}
			r := (after - before) / seconds
			return &r
		}
		count := func(before, after *int64) *float64 {
			if before == nil || after == nil {
				return nil
			}
			return rate(float64(*before), float64(*after))
		}
		point.CPUCores = rate(u.last.CPUSeconds, use.CPUSeconds)
		point.DiskReadRate, point.DiskWrittenRate = count(u.last.DiskReadBytes, use.DiskReadBytes), count(u.last.DiskWrittenBytes, use.DiskWrittenBytes)
		if u.network != nil && network != nil {
			point.SentRate, point.ReceivedRate = count(&u.network.SentBytes, &network.SentBytes), count(&u.network.ReceivedBytes, &network.ReceivedBytes)
		}
	}
	u.last, u.network, u.at = use, network, now
	u.readings = append(u.readings, point)
	if surplus := len(u.readings) - usePoints; surplus > 0 {
		u.readings = slices.Clone(u.readings[surplus:])
	}
}

// UsesOf returns what a node's agent has said of a member's use, the oldest first.
func (m *Monitor) UsesOf(nodeName, assignmentID string) []api.UsePoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.nodes[nodeName]; n != nil && n.uses[assignmentID] != nil {
		return slices.Clone(n.uses[assignmentID].readings)
	}
	return nil
}
