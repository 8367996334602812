package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// jobRun is a run of a job in a member: it is the member's, and survives the node's agent.
type jobRun struct {
	agentstream.JobObserved
	// in is the member as it is now, on its node: a saved one goes on as another, perhaps elsewhere.
	in *hostMember
	on *node
}

// runJobs starts the runs that are wanted, and ends those that are to end.
func (a *agent) runJobs() {
	for _, run := range slices.Sorted(maps.Keys(a.jobs)) {
		job := a.jobs[run]
		h := a.n.host[job.MemberID]
		if h == nil || h.jobs == nil {
			continue
		}
		r := h.jobs[run]
		switch {
		case r == nil && h.state == lifecycle.HostRunning && a.member(job.MemberID).ready && !job.CancelRequested:
			a.startJob(job.MemberID, h, run)
		case r == nil && job.CancelRequested:
			at := time.Now()
			h.jobs[run] = &jobRun{JobObserved: agentstream.JobObserved{ID: run, Phase: api.JobCancelled, EndedAt: &at}, in: h, on: a.n}
		case r != nil && !r.Phase.Ended() && job.CancelRequested && h.state == lifecycle.HostRunning:
			r.end(api.JobCancelled, nil)
		}
	}
	for id, h := range a.n.host {
		for run := range h.jobs {
			if _, wanted := a.jobs[run]; !wanted && a.current && h.jobs[run].Phase.Ended() && a.desired[id].Generation != 0 && !a.desired[id].Restore {
				delete(h.jobs, run) // the server has heard of its end; of a successor's runs the node that it comes from still speaks
			}
		}
	}
}

func (a *agent) startJob(id string, h *hostMember, run string) {
	w, began := a.n.w, time.Now()
	r := &jobRun{JobObserved: agentstream.JobObserved{ID: run, Phase: api.JobRunning, StartedAt: &began}, in: h, on: a.n}
	h.jobs[run] = r
	w.happened("job started")
	if first, begun := w.checks.runs[run]; begun && first != id {
		w.fail("jobs", "run %s was started by %s and by %s", run, first, id)
	}
	w.checks.runs[run] = id
	if w.drawnFor(run+" ends at once", 8) == 0 {
		r.expire() // before anybody hears that it began
		return
	}
	w.after(time.Second+time.Duration(w.drawnFor(run, 120))*time.Second, r.expire)
}

// expire ends a run that has come to its own end. A frozen process gets no time: it ends after its member was woken.
func (r *jobRun) expire() {
	w := r.on.w
	still := slices.Contains([]lifecycle.HostState{lifecycle.HostPaused, lifecycle.HostSaved, lifecycle.HostHandedOver}, r.in.state)
	if still && !r.Phase.Ended() {
		w.after(time.Second, r.expire)
		return
	}
	if r.in.state != lifecycle.HostRunning || r.Phase.Ended() {
		return
	}
	code := w.drawnFor(r.ID+" code", 3) / 2
	phase := api.JobSucceeded
	if code != 0 {
		phase = api.JobFailed
	}
	r.end(phase, &code)
	if agent := r.on.agent; agent != nil {
		agent.wake(0)
	}
}

// takeJobs takes over the runs of a restored member. Copies, which came from another node, go on from here.
func (h *hostMember) takeJobs(on *node) {
	for _, run := range slices.Sorted(maps.Keys(h.jobs)) {
		r := h.jobs[run]
		copied := r.in == nil
		r.in, r.on = h, on
		if copied && !r.Phase.Ended() {
			on.w.after(time.Second+time.Duration(on.w.drawnFor(run, 30))*time.Second, r.expire)
		}
	}
}

func (r *jobRun) end(phase api.JobPhase, code *int) {
	at := time.Now()
	r.Phase, r.ExitCode, r.EndedAt = phase, code, &at
}

// endJobs ends the runs of a member with it.
func (h *hostMember) endJobs() {
	for _, run := range slices.Sorted(maps.Keys(h.jobs)) {
		if r := h.jobs[run]; !r.Phase.Ended() {
			r.end(api.JobLost, nil)
		}
	}
}

// jobsObserved is what the agent says of runs in members. Those of a state on a disk, such as a snapshot's, are in none.
func (a *agent) jobsObserved() []agentstream.JobObserved {
	var all []agentstream.JobObserved
	for _, id := range slices.Sorted(maps.Keys(a.n.host)) {
		h := a.n.host[id]
		for _, run := range slices.Sorted(maps.Keys(h.jobs)) {
			if r := h.jobs[run]; r.in != nil {
				all = append(all, r.JobObserved)
			}
		}
	}
	return all
}
