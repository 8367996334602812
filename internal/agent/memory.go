package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// A job that the kernel ended as its member ran out of memory ends like any other by SIGKILL, and its member can't see why: it has no
// control groups. The agent counts from outside, when a job of the cluster is first heard of and when it has failed.

// kills are how many processes of members, by ID, the kernel has ended for want of memory.
type kills map[string]int

// mostShort is how many members a job's message names that ran out of memory.
const mostShort = 3

// hearJob takes over what a member says of a job, and adds that memory ran out while it ran.
func (a *Agent) hearJob(m *memberState, s agentstream.JobObserved) {
	before, known := m.kills[s.ID]
	if !known {
		before = a.lastKills(m)
		if !s.Phase.Ended() {
			before = a.countKills(m)
		}
		if m.kills == nil {
			m.kills = map[string]kills{}
		}
		m.kills[s.ID] = before
	}
	if s.Phase.Ended() {
		delete(m.kills, s.ID)
	}
	if s.Phase == api.JobFailed {
		s.Message = joined(s.Message, a.ranShort(before, a.countKills(m)))
	}
	m.jobs[s.ID] = s
}

// ranShort names the members of which there are more kills now.
func (a *Agent) ranShort(before, now kills) string {
	var texts []string
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if n := now[id] - before[id]; n > 0 && len(texts) < mostShort {
			w := a.members[id].want.Assignment
			texts = append(texts, fmt.Sprintf("%s ran out of memory: its limit is %s, and the kernel killed some of its processes (%d)", w.Member, api.Bytes(w.NodeMemoryBytes()), n))
		}
	}
	return strings.Join(texts, "; ")
}

// cluster are the members of this node that belong to the cluster of one of them.
func (a *Agent) cluster(m *memberState) []*memberState {
	var all []*memberState
	for _, other := range a.members {
		if other.want != nil && m.want != nil && other.want.Assignment.ClusterUID == m.want.Assignment.ClusterUID {
			all = append(all, other)
		}
	}
	return all
}

// lastKills is what was counted last.
func (a *Agent) lastKills(m *memberState) kills {
	last := kills{}
	for _, other := range a.cluster(m) {
		last[other.id] = other.oomKills
	}
	return last
}

// countKills counts now.
func (a *Agent) countKills(m *memberState) kills {
	for _, other := range a.cluster(m) {
		accountant, ok := other.driver.(driver.MemoryAccountant)
		if !ok {
			continue
		}
		if n, err := accountant.OutOfMemory(other.id); err == nil {
			other.oomKills = n
		}
	}
	return a.lastKills(m)
}

// memoryText is what is said of a member that ran out of memory and runs on.
func (m *memberState) memoryText() string {
	if m.oomKills == 0 || m.want == nil {
		return ""
	}
	return fmt.Sprintf("ran out of memory: its limit is %s, and the kernel killed some of its processes (%d)", api.Bytes(m.want.Assignment.NodeMemoryBytes()), m.oomKills)
}
