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
	// in is the member as it is now: a saved one goes on as another.
	in *hostMember
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
			h.jobs[run] = &jobRun{JobObserved: agentstream.JobObserved{ID: run, Phase: api.JobCancelled, EndedAt: &at}}
		case r != nil && !r.Phase.Ended() && job.CancelRequested && h.state == lifecycle.HostRunning:
			r.end(api.JobCancelled, nil)
		}
	}
	for id, h := range a.n.host {
		for run := range h.jobs {
			if _, wanted := a.jobs[run]; !wanted && a.current && h.jobs[run].Phase.Ended() && a.desired[id].Generation != 0 {
				delete(h.jobs, run) // the server has heard of its end
			}
		}
	}
}

func (a *agent) startJob(id string, h *hostMember, run string) {
	w, began := a.n.w, time.Now()
	r := &jobRun{JobObserved: agentstream.JobObserved{ID: run, Phase: api.JobRunning, StartedAt: &began}, in: h}
	h.jobs[run] = r
	w.happened("job started")
	if first, begun := w.checks.runs[run]; begun && first != id {
		w.fail("jobs", "run %s was started by %s and by %s", run, first, id)
	}
	w.checks.runs[run] = id
	lasts := time.Second + time.Duration(w.drawnFor(run, 120))*time.Second
	var end func()
	end = func() {
		still := r.in.state == lifecycle.HostPaused || r.in.state == lifecycle.HostSaved
		if still && !r.Phase.Ended() {
			w.after(time.Second, end) // a frozen process gets no time: it ends after its member was woken
			return
		}
		if r.in.state != lifecycle.HostRunning || r.Phase.Ended() {
			return
		}
		code := w.drawnFor(run+" code", 3) / 2
		phase := api.JobSucceeded
		if code != 0 {
			phase = api.JobFailed
		}
		r.end(phase, &code)
		if agent := a.n.agent; agent != nil {
			agent.wake(0)
		}
	}
	if w.drawnFor(run+" ends at once", 8) == 0 {
		end() // before anybody hears that it began
		return
	}
	w.after(lasts, end)
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

// jobsObserved is what the agent says of runs.
func (a *agent) jobsObserved() []agentstream.JobObserved {
	var all []agentstream.JobObserved
	for _, id := range slices.Sorted(maps.Keys(a.n.host)) {
		h := a.n.host[id]
		for _, run := range slices.Sorted(maps.Keys(h.jobs)) {
			all = append(all, h.jobs[run].JobObserved)
		}
	}
	return all
}
