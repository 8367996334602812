package sim

import (
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// falseExit is an exit code with which no job of the simulator ends.
const falseExit = 3

// lie lets what a node tells speak of what is on other nodes as well: their members are as it pleases, or clean, and their jobs are over. Nobody
// may believe a word of that.
func (a *agent) lie(told agentstream.Observed) agentstream.Observed {
	w := a.n.w
	if !w.chanceOf(w.rogueRandom, Lies, 40) {
		return told
	}
	told.Members, told.Clean, told.Jobs = slices.Clone(told.Members), slices.Clone(told.Clean), slices.Clone(told.Jobs)
	phases := []api.MemberPhase{api.MemberPreparing, api.MemberReady, api.MemberUnhealthy, api.MemberPaused, api.MemberFailed}
	for _, n := range w.nodes {
		for _, id := range slices.Sorted(maps.Keys(n.host)) {
			_, wanted := a.desired[id]
			phase, clean, ends := phases[w.rogueRandom.IntN(len(phases))], w.rogueRandom.IntN(2) == 0, w.rogueRandom.IntN(2) == 0
			if n == a.n || wanted || a.n.host[id] != nil || a.members[id] != nil || n.host[id].forNext != "" { // a copy is of what another node has
				continue
			}
			if clean {
				told.Clean = append(told.Clean, id)
			} else {
				told.Members = append(told.Members, agentstream.MemberObserved{ID: id, Phase: phase, FilesDigest: n.host[id].files})
			}
			for _, run := range slices.Sorted(maps.Keys(n.host[id].jobs)) {
				if job := n.host[id].jobs[run].JobObserved; ends && !job.Phase.Ended() && !a.n.carriesJob(run) {
					code := falseExit
					job.Phase, job.ExitCode = api.JobFailed, &code
					told.Jobs = append(told.Jobs, job)
				}
			}
		}
	}
	slices.Sort(told.Clean)
	told.Clean = slices.Compact(told.Clean)
	w.trace("%s lies: %d members, %v clean, %d jobs", a.n.record.Name, len(told.Members), told.Clean, len(told.Jobs))
	return told
}

// carriesJob reports whether a job runs in a member on the node. A member that has just gone on here left a copy of it on its old node.
func (n *node) carriesJob(run string) bool {
	for _, h := range n.host {
		if h.jobs[run] != nil {
			return true
		}
	}
	return false
}
