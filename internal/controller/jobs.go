package controller

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// jobs plans every job that has not ended and makes the plans true, together.
func (p *pass) jobs(ctx context.Context) error {
	var planned []plannedJob
	open, surplus := lifecycle.SortJobs(p.view.Jobs)
	inputs := jobInputs{pass: p, clusters: map[string]*lifecycle.ClusterInput{}}
	room := lifecycle.NewJobRoom(open)
	for _, job := range open {
		in := inputs.of(job)
		in.Crowded = !room.Fits(job)
		plan := lifecycle.PlanJob(in)
		room.Note(job, &plan.Next)
		p.sooner(plan.WakeAt)
		if !reflect.DeepEqual(worthAWrite(plan.Next), worthAWrite(*job)) {
			planned = append(planned, plannedJob{job: job, node: nodeOf(in.Cluster, job.MemberID), plan: plan})
		}
	}
	// Two commits about different jobs, which one sync of the disk may serve.
	var forgetting sync.WaitGroup
	var forgotten error
	forgetting.Go(func() { forgotten = p.forgetJobs(ctx, surplus) })
	err := p.commitJobs(ctx, planned)
	forgetting.Wait()
	return errors.Join(err, forgotten)
}

// plannedJob is a job that runs on a node, and what is to become of it.
type plannedJob struct {
	job     *api.Job
	node    string
	plan    lifecycle.JobPlan
	written bool
}

// jobInputs gathers what decisions about jobs depend on in one pass.
type jobInputs struct {
	*pass
	// clusters are those of the jobs so far, by UID.
	clusters map[string]*lifecycle.ClusterInput
}

// of is what a decision about one job depends on, but for the room at its member.
func (p jobInputs) of(job *api.Job) lifecycle.JobInput {
	in := lifecycle.JobInput{Job: *job, Cluster: p.clusterOf(job), Now: p.now}
	if job.MemberID == "" {
		return in // it is nowhere, and has no output: a thousand may wait, and to look for that of each is a system call
	}
	run := job.RunID()
	in.LogBytes = p.cfg.Agents.LogBytes(run)
	seen, heard := p.cfg.Agents.Job(nodeOf(in.Cluster, job.MemberID), run)
	if !heard {
		return in
	}
	in.Seen = &lifecycle.JobSeen{
		Phase: seen.Phase, ExitCode: seen.ExitCode, Message: seen.Message, StartedAt: seen.StartedAt, EndedAt: seen.EndedAt,
		LogBytes: seen.LogBytes, DiscardedBytes: seen.DiscardedBytes,
	}
	switch {
	case seen.Phase.Ended():
		in.Quiet = p.quiet(run, in.LogBytes)
	case seen.Phase == api.JobRunning && job.Phase == api.JobPending:
		in.Running = p.running(run)
	}
	return in
}

// nodeOf returns the node of a member of a cluster, or of the member that took over from it. Only that node's word counts on the member's jobs.
// It is "" when the cluster has no such member.
func nodeOf(c *lifecycle.ClusterInput, memberID string) string {
	if c == nil {
		return ""
	}
	memberID = c.Heir(memberID)
	for i := range c.Assignments {
		if c.Assignments[i].ID == memberID {
			return c.Assignments[i].Node
		}
	}
	return ""
}

// clusterOf is what a decision about a job's cluster depends on, nil when that cluster is gone. Jobs of one cluster share it.
func (p jobInputs) clusterOf(job *api.Job) *lifecycle.ClusterInput {
	if in, ok := p.clusters[job.ClusterUID]; ok {
		return in
	}
	c := p.view.Cluster(job.Cluster)
	if c == nil || c.UID() != job.ClusterUID {
		return nil
	}
	in := p.Cluster(c)
	p.clusters[job.ClusterUID] = &in
	return &in
}

// commitJobs stores what becomes of jobs, then records their events. A change of phase that the table of jobs does not have is refused.
func (p *pass) commitJobs(ctx context.Context, planned []plannedJob) error {
	if len(planned) == 0 {
		return nil
	}
	updates := make([]state.JobUpdate, len(planned))
	for i := range planned {
		updates[i] = state.JobUpdate{ID: planned[i].job.ID, Change: planned[i].change}
	}
	var errs []error
	var events []api.Event
	for i, outcome := range p.writer.UpdateJobs(ctx, updates) {
		done := &planned[i]
		if outcome.Err != nil || !done.written {
			errs = append(errs, outcome.Err)
			continue
		}
		p.committed = max(p.committed, outcome.Revision)
		failpoint.Hit("controller.after-job")
		if next := &done.plan.Next; next.Phase.Ended() || next.RunID() != done.job.RunID() {
			p.cfg.Agents.ForgetJob(done.node, done.job.RunID())
			delete(p.endings, done.job.RunID())
		}
		if next := &done.plan.Next; next.Phase != api.JobPending || next.RunID() != done.job.RunID() {
			delete(p.starts, done.job.RunID())
		}
		for _, e := range done.plan.Events {
			events = append(events, api.Event{Time: p.now, Cluster: done.job.Cluster, Reason: e.Reason, Message: e.Message, Member: e.Member, Node: e.Node})
		}
	}
	return errors.Join(append(errs, p.emit(ctx, events))...)
}

// change makes the plan true of the job as it is stored.
func (d *plannedJob) change(at *api.Job) error {
	if d.written = sameButForCancel(*at, *d.job); !d.written {
		return nil // another leader has gone on with it: no second member may be ordered to start it
	}
	next := d.plan.Next
	if err := lifecycle.Jobs().CheckChange(at.Phase, next.Phase); err != nil {
		return err
	}
	next.CancelRequested = at.CancelRequested || next.CancelRequested
	*at = next
	return nil
}

// worthAWrite is what of a job is worth a write: its output grows all the time.
func worthAWrite(job api.Job) api.Job {
	job.LogBytes = 0
	return job
}

// sameButForCancel reports whether a job still is what was decided on. Its user may ask for its end at any time.
func sameButForCancel(now, was api.Job) bool {
	now.CancelRequested = was.CancelRequested
	return reflect.DeepEqual(worthAWrite(now), worthAWrite(was))
}

// ending is how much output of an ended job had arrived when, the last time that it was more than before.
type ending struct {
	logBytes int64
	at       time.Time
}

// quiet returns how long none of the output of a run that has ended has arrived, since this leader first heard of the end. The times are this
// leader's own.
func (p *pass) quiet(runID string, logBytes int64) time.Duration {
	last, ok := p.endings[runID]
	if !ok || logBytes > last.logBytes {
		last = ending{logBytes, p.raw}
		p.endings[runID] = last
	}
	return p.raw.Sub(last.at)
}

// running returns how long this leader has heard that a run runs.
func (p *pass) running(runID string) time.Duration {
	since, ok := p.starts[runID]
	if !ok {
		since = p.raw
		p.starts[runID] = since
	}
	return p.raw.Sub(since)
}

// forgetJobs removes jobs that have ended, and their output.
func (p *pass) forgetJobs(ctx context.Context, surplus []*api.Job) error {
	if len(surplus) == 0 {
		return nil
	}
	ids := make([]string, len(surplus))
	for i, job := range surplus {
		ids[i] = job.ID
	}
	if err := p.writer.DeleteJobs(ctx, ids); err != nil {
		return err
	}
	var errs []error
	for _, job := range surplus {
		for run := *job; run.Attempt >= 0; run.Attempt-- {
			errs = append(errs, p.cfg.Agents.DropLog(run.RunID()))
		}
	}
	return errors.Join(errs...)
}
