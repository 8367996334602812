package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/state"
)

// keptJobs is how many ended jobs, and their output, are kept; the oldest go first.
const keptJobs = 1000

// logPatience is how long the end of a job waits for the rest of its output while none of it arrives. It is long enough for a node agent or a
// server to be started again.
const logPatience = time.Minute

// jobGraceSeconds is how long a job whose cluster's time limit has passed has to end: most of the cluster's grace, so that the rest of its
// output still arrives.
const jobGraceSeconds = 25

// lossesKept bounds the lost members a job remembers; it is signalled no more than so often.
const lossesKept = 64

// The reasons of jobs' events.
const (
	eventJobTold     = "JobTold"
	eventJobRequeued = "JobRequeued"
	eventJobLost     = "JobLost"
)

// jobs brings stored jobs up to what agents say of them and what became of their clusters.
func (p *pass) jobs(ctx context.Context) error {
	var errs []error
	seen := p.cfg.Agents.Jobs()
	var open, ended []*api.Job
	for _, job := range p.view.Jobs {
		if job.Phase.Ended() {
			ended = append(ended, job)
		} else {
			open = append(open, job)
		}
	}
	slices.SortFunc(open, olderJob)
	room := newJobRoom(open)
	for _, job := range open {
		observed, heard := seen[job.RunID()]
		errs = append(errs, p.job(ctx, job, room, observed, heard))
	}
	return errors.Join(append(errs, p.pruneJobs(ctx, ended))...)
}

// job plans one job and stores what becomes of it.
func (p *pass) job(ctx context.Context, job *api.Job, room *jobRoom, seen agentstream.JobObserved, heard bool) error {
	in := jobInput{job: *job, now: p.now, heard: heard, seen: seen, crowded: !room.fits(job), logBytes: p.cfg.Agents.LogBytes(job.RunID())}
	if c := p.view.Cluster(job.Cluster); c != nil && c.UID() == job.ClusterUID {
		in.cluster, in.whole = c, job.Attempt > 0 && job.MemberID == "" && p.whole(c)
	}
	if in.missing() > 0 && in.cluster != nil && in.holds(job.MemberID) && p.patient(job.RunID(), in.logBytes) {
		p.soonerRaw(p.raw.Add(100 * time.Millisecond))
		return nil // a follower of the output must see all of it before the end
	}
	next, events := planJob(in)
	room.note(job, &next)
	if reflect.DeepEqual(worthAWrite(next), worthAWrite(*job)) {
		return nil
	}
	written := false
	_, revision, err := p.cfg.Repo.UpdateJob(ctx, job.ID, func(at *api.Job) error {
		if written = sameButForCancel(*at, *job); !written {
			return nil // another leader has gone on with it: no second member may be told to start it
		}
		cancel := at.CancelRequested || next.CancelRequested
		*at = next
		at.CancelRequested = cancel
		return nil
	})
	if err != nil || !written {
		return err
	}
	p.committed = max(p.committed, revision)
	failpoint.Hit("controller.after-job")
	if next.Phase.Ended() || next.RunID() != job.RunID() {
		p.cfg.Agents.ForgetJob(job.RunID())
		delete(p.endings, job.RunID())
	}
	return p.emit(ctx, events)
}

// worthAWrite is what of a job is worth a write: its output grows all the time.
func worthAWrite(job api.Job) api.Job {
	job.LogBytes = 0
	return job
}

// sameButForCancel tells whether a job still is what was decided on. Its user may ask for its end at any time.
func sameButForCancel(now, was api.Job) bool {
	now.CancelRequested = was.CancelRequested
	return reflect.DeepEqual(worthAWrite(now), worthAWrite(was))
}

// jobInput is everything the next state of a job depends on.
type jobInput struct {
	job     api.Job
	cluster *state.Cluster // nil when it is gone
	whole   bool           // each of its members is ready and has current files; it may still wait for more of them
	seen    agentstream.JobObserved
	heard   bool
	// crowded: its cluster's member has as many jobs as it may have at once.
	crowded  bool
	logBytes int64
	now      time.Time
}

// planJob returns a job as it should stand now, and what is to be told of it. It is pure.
func planJob(in jobInput) (api.Job, []api.Event) {
	job := in.job
	job.LogBytes = in.logBytes
	job.RemovedMembers = in.removed()
	if in.heard {
		job.DiscardedBytes = in.seen.DiscardedBytes + in.missing()
	}
	switch {
	case in.heard && in.seen.Phase.Ended():
		return in.ended(job)
	case in.cluster == nil:
		return in.lose(job, "its cluster was deleted"), nil
	case in.cluster.Record == nil:
		return job, nil
	case in.cluster.Record.Phase == api.ClusterDeleting && (job.MemberID == "" || !in.holds(job.MemberID)):
		return in.lose(job, "its cluster is being deleted"), nil
	case in.cluster.Record.ExpiredAt != nil && !job.CancelRequested:
		job.CancelRequested, job.GraceSeconds, job.Message = true, jobGraceSeconds, limitPassed
		return job, nil
	case job.MemberID == "":
		return in.dispatch(job), nil
	case !in.holds(job.MemberID):
		return in.memberGone(job)
	}
	if in.heard {
		job.Phase, job.Message, job.StartedAt = in.seen.Phase, in.message(), in.seen.StartedAt
	}
	return in.tell(job)
}

// missing is how much output of a run that has ended is not stored.
func (in jobInput) missing() int64 {
	if !in.heard || !in.seen.Phase.Ended() {
		return 0
	}
	return max(0, in.seen.LogBytes-in.logBytes)
}

// limitPassed is why a job is ended with its cluster.
const limitPassed = "the time limit of its cluster has passed"

// message is what the job's member says of the run, except of why it is ended with its cluster: to the member every end that is asked for
// is a user's.
func (in jobInput) message() string {
	if in.job.CancelRequested && in.job.Message == limitPassed && (in.seen.Phase == api.JobCancelled || in.seen.Message == "") {
		return limitPassed
	}
	return in.seen.Message
}

// ended takes over how a run ended, or lets the next one follow.
func (in jobInput) ended(job api.Job) (api.Job, []api.Event) {
	if job.Requeueing && !job.CancelRequested && in.seen.Phase != api.JobSucceeded && in.cluster != nil {
		return in.again(job)
	}
	job.Phase, job.ExitCode, job.Message = in.seen.Phase, in.seen.ExitCode, cmp.Or(in.message(), removedText(job, in.seen), job.Message)
	job.StartedAt, job.EndedAt = in.seen.StartedAt, in.seen.EndedAt
	if job.Phase == api.JobLost && job.Requeue && !job.CancelRequested && in.cluster != nil {
		return in.again(job)
	}
	if job.EndedAt == nil {
		job.EndedAt = &in.now
	}
	return job, nil
}

// whole tells whether nobody is lost, and each member is ready and has the files that name all others.
func (p *pass) whole(c *state.Cluster) bool {
	if c.Record == nil || len(c.Record.Lost) > 0 {
		return false
	}
	for a := range c.Held() {
		if a.Spare {
			continue
		}
		seen, ok := p.cfg.Agents.MemberState(a.ID)
		if !ok || seen.Phase != api.MemberReady || !seen.Current || p.Nodes[a.Node].Phase != api.NodeReady {
			return false
		}
	}
	return true
}

// dispatch names the member that carries out the attempt: the held one of the lowest rank. A run after a loss waits until the cluster
// is whole again.
func (in jobInput) dispatch(job api.Job) api.Job {
	if job.CancelRequested {
		job.Phase, job.EndedAt = api.JobCancelled, &in.now
		return job
	}
	phase := in.cluster.Record.Phase
	if job.Attempt > 0 && phase != api.ClusterReady && (phase != api.ClusterScaling || !in.whole) {
		return job // what the cluster is to grow by may wait for room for ever
	}
	var first *api.Assignment
	for a := range in.cluster.Held() {
		if !a.Spare && (first == nil || a.Rank < first.Rank) {
			first = a
		}
	}
	switch {
	case first == nil:
	case in.crowded:
		job.Message = waitsForOthers
	default:
		job.MemberID, job.DispatchedAt = first.ID, &in.now
		if job.Message == waitsForOthers {
			job.Message = ""
		}
	}
	return job
}

func (in jobInput) holds(id string) bool {
	for a := range in.cluster.Held() {
		if a.ID == id {
			return true
		}
	}
	return false
}

// memberGone is a run whose member is no longer one: what it did since is not known and not waited for.
func (in jobInput) memberGone(job api.Job) (api.Job, []api.Event) {
	if job.Requeue && !job.CancelRequested {
		return in.again(job)
	}
	job = in.lose(job, "the member that ran it was lost or released")
	return job, in.event(eventJobLost, fmt.Sprintf("job %s is lost: %s", job.ID, job.Message))
}

// removed returns the names of the members that scaling down took from under a run. A program that loses a peer, as mpirun does, ends with
// an exit code that says nothing of it.
func (in jobInput) removed() []string {
	names := in.job.RemovedMembers
	c := in.cluster
	if c == nil || c.Record == nil || in.job.DispatchedAt == nil || c.Record.Phase == api.ClusterDeleting {
		return names
	}
	died := slices.Clone(in.job.LostMembers)
	for _, lost := range c.Record.Lost {
		died = append(died, lost.Assignment)
	}
	for a := range c.Held() {
		died = append(died, a.Replaces)
	}
	for a, ref := range c.AllWithRef() {
		under := ref.Releasing && ref.ReleasedAt != nil && !ref.ReleasedAt.Before(*in.job.DispatchedAt)
		if under && !a.Spare && !slices.Contains(died, a.ID) && !slices.Contains(names, a.Member) && len(names) < lossesKept {
			names = append(slices.Clip(names), a.Member)
		}
	}
	return names
}

// removedText says of a run that failed which members were removed under it, "" when none were.
func removedText(job api.Job, seen agentstream.JobObserved) string {
	if len(job.RemovedMembers) == 0 || seen.ExitCode == nil || *seen.ExitCode == 0 {
		return ""
	}
	return "scaling down removed members while it ran: " + strings.Join(job.RemovedMembers, ", ")
}

// tell counts the members that were lost under a run; its member signals each to it.
func (in jobInput) tell(job api.Job) (api.Job, []api.Event) {
	if job.StartedAt == nil || job.Phase != api.JobRunning {
		return job, nil
	}
	// Both times are the leader's. When it started is the word of another machine, whose clock may be ahead, and nothing be told, or
	// behind, and each attempt be ended for a loss from before it.
	since := *cmp.Or(job.DispatchedAt, job.StartedAt)
	var fresh []string
	note := func(id string, at time.Time) {
		if !at.Before(since) && !slices.Contains(job.LostMembers, id) && len(job.LostMembers)+len(fresh) < lossesKept {
			fresh = append(fresh, id)
		}
	}
	for _, lost := range in.cluster.Record.Lost {
		note(lost.Assignment, lost.Since)
	}
	// One that was replaced before anybody looked is told of by its replacement.
	for a := range in.cluster.Held() {
		if a.Replaces != "" {
			note(a.Replaces, a.TakenAt)
		}
	}
	if len(fresh) == 0 {
		return job, nil
	}
	job.LostMembers = append(slices.Clone(job.LostMembers), fresh...)
	died := fmt.Sprintf("%d of its cluster's members were lost", len(fresh))
	job.Requeueing = job.Requeue
	if job.Requeue && job.FailureSignal == "" {
		// It is ended in any case, by SIGTERM: another signal beside it only confuses (mpirun, for one, forwards it while it aborts).
		return job, in.event(eventJobTold, fmt.Sprintf("job %s is being stopped and will run again: %s", job.ID, died))
	}
	job.Failures += len(fresh)
	text := fmt.Sprintf("job %s was signaled because %s (signal %s)", job.ID, died, cmp.Or(job.FailureSignal, "URG"))
	if job.Requeue {
		text += "; it is being stopped and will run again"
	}
	return job, in.event(eventJobTold, text)
}

// again makes the next attempt of a job.
func (in jobInput) again(job api.Job) (api.Job, []api.Event) {
	job.Attempt++
	job.Phase, job.MemberID, job.DispatchedAt, job.ExitCode, job.StartedAt, job.EndedAt = api.JobPending, "", nil, nil, nil, nil
	text := fmt.Sprintf("job %s will run again (attempt %d) when the cluster is ready", job.ID, job.Attempt+1)
	if job.DiscardedBytes > 0 {
		text += fmt.Sprintf("; %d bytes of the output of attempt %d were discarded", job.DiscardedBytes, job.Attempt)
	}
	job.Failures, job.LostMembers, job.RemovedMembers, job.Requeueing, job.LogBytes, job.DiscardedBytes = 0, nil, nil, false, 0, 0
	job.Message = "a member of its cluster was lost; the job will run again when the cluster is ready"
	return job, in.event(eventJobRequeued, text)
}

func (in jobInput) lose(job api.Job, why string) api.Job {
	job.Phase, job.Message, job.EndedAt = api.JobLost, why, &in.now
	return job
}

func (in jobInput) event(reason, message string) []api.Event {
	return []api.Event{{Time: in.now, Cluster: in.job.Cluster, Reason: reason, Message: message}}
}

// ending is how much output of an ended job had arrived when, the last time that it was more than before.
type ending struct {
	logBytes int64
	at       time.Time
}

// patient reports whether the rest of an ended job's output is still awaited: until none of it has arrived for the patience. The times are this
// leader's own. When the job ended, and how much output there is, are the word of the member, where the tenant is root.
func (p *pass) patient(runID string, logBytes int64) bool {
	last, ok := p.endings[runID]
	if !ok || logBytes > last.logBytes {
		last = ending{logBytes, p.raw}
		p.endings[runID] = last
	}
	return p.raw.Sub(last.at) < logPatience
}

// pruneJobs removes the oldest ended jobs beyond what is kept.
func (p *pass) pruneJobs(ctx context.Context, ended []*api.Job) error {
	if len(ended) <= keptJobs {
		return nil
	}
	slices.SortFunc(ended, olderJob)
	var errs []error
	for _, job := range ended[:len(ended)-keptJobs] {
		if err := p.cfg.Repo.DeleteJob(ctx, job.ID); err != nil && !errors.Is(err, state.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		for run := *job; run.Attempt >= 0; run.Attempt-- {
			errs = append(errs, p.cfg.Agents.DropLog(run.RunID()))
		}
	}
	return errors.Join(errs...)
}
