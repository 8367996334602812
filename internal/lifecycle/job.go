package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// LogPatience is how long the end of a job waits for the rest of its output while none of it arrives. It is long enough for a node agent or a
// server to be started again.
const LogPatience = time.Minute

// logPause is the pause before the stored output of an ended run is checked again.
const logPause = 100 * time.Millisecond

// startPause is how long a run is heard to run before that is written: most short ones have ended by then, and cost one write less.
const startPause = 10 * time.Millisecond

// jobGraceSeconds is how long a job whose cluster's time limit has passed has to end: most of the cluster's grace, so that the rest of its
// output still arrives.
const jobGraceSeconds = 25

// lossesKept bounds the lost members that a job remembers; it is signalled no more than so often.
const lossesKept = 64

// limitPassed is why a job is ended with its cluster.
const limitPassed = "the time limit of its cluster has passed"

// JobSeen is what the member of a job last reported of one run, to this leader.
type JobSeen struct {
	Phase              api.JobPhase
	ExitCode           *int
	Message            string
	StartedAt, EndedAt *time.Time
	// LogBytes is how much output of the run there is to store, DiscardedBytes how much more was printed and discarded.
	LogBytes, DiscardedBytes int64
}

// JobInput is everything a decision about one job depends on.
type JobInput struct {
	Job api.Job
	// Cluster is what a decision about the job's cluster depends on; nil when that cluster is gone.
	Cluster *ClusterInput
	// Seen is what was last heard of the job's present run; nil for nothing.
	Seen *JobSeen
	// Crowded: the cluster's member has as many jobs as it may have at once, see JobRoom.
	Crowded bool
	// LogBytes is how much output of the run is stored. Quiet is how long none of it has arrived, counted by the leader from when it first
	// heard of the run's end: how much output there is, and when the run ended, are the word of the member, where the tenant is root.
	LogBytes int64
	Quiet    time.Duration
	// Running is how long the run has been heard to run, counted by the leader too.
	Running time.Duration
	Now     time.Time
}

// JobPlan is what a job comes to.
type JobPlan struct {
	// Next is the job as it should be stored. It equals the job of the input when there is nothing to do; LogBytes grows all the time.
	Next   api.Job
	Events []Emit
	// WakeAt asks to be planned again at a time, even if nothing changes until then; zero for no such time.
	WakeAt time.Time
}

// PlanJob returns what is to become of a job now.
func PlanJob(in JobInput) JobPlan {
	if in.awaitsOutput() {
		return JobPlan{Next: in.Job, WakeAt: in.Now.Add(logPause)}
	}
	if in.Cluster != nil && in.Cluster.Record != nil {
		in.Job.MemberID = in.Cluster.Heir(in.Job.MemberID)
	}
	job := in.Job
	job.LogBytes = in.LogBytes
	job.RemovedMembers = in.removed()
	if in.Seen != nil {
		job.DiscardedBytes = in.Seen.DiscardedBytes + in.missing()
	}
	switch {
	case in.ended():
		return in.planEnded(job)
	case in.Cluster == nil:
		return in.lose(job, "its cluster was deleted")
	case in.Cluster.Record == nil:
		return JobPlan{Next: job}
	case in.Cluster.Record.Phase == api.ClusterDeleting && (job.MemberID == "" || !in.holds(job.MemberID)):
		return in.lose(job, "its cluster is being deleted")
	case in.Cluster.Record.ExpiredAt != nil && !job.CancelRequested:
		job.CancelRequested, job.GraceSeconds, job.Message = true, jobGraceSeconds, limitPassed
		return JobPlan{Next: job}
	case in.undone():
		return in.planUndone(job)
	case job.MemberID == "":
		return in.planDispatch(job)
	case !in.holds(job.MemberID):
		return in.planMemberGone(job)
	}
	if in.Seen != nil {
		if job.Phase == api.JobPending && in.Seen.Phase == api.JobRunning && in.Running < startPause {
			return JobPlan{Next: in.Job, WakeAt: in.Now.Add(startPause - in.Running)}
		}
		job.Phase, job.Message, job.StartedAt = in.Seen.Phase, in.message(), in.Seen.StartedAt
	}
	return in.planLosses(job)
}

// ended reports whether the run was heard to have ended.
func (in JobInput) ended() bool { return in.Seen != nil && in.Seen.Phase.Ended() }

// missing is how much output of a run that has ended is not stored.
func (in JobInput) missing() int64 {
	if !in.ended() {
		return 0
	}
	return max(0, in.Seen.LogBytes-in.LogBytes)
}

// awaitsOutput reports whether the end of the run is kept back until the rest of its output has arrived: a follower of the output must see
// all of it before the end.
func (in JobInput) awaitsOutput() bool {
	return in.missing() > 0 && in.Cluster != nil && in.holds(in.Job.MemberID) && in.Quiet < LogPatience
}

// message is what the job's member reports of the run, except of why it is ended with its cluster: to the member every end that is asked
// for is a user's.
func (in JobInput) message() string {
	if in.Job.CancelRequested && in.Job.Message == limitPassed && (in.Seen.Phase == api.JobCancelled || in.Seen.Message == "") {
		return limitPassed
	}
	return in.Seen.Message
}

// planEnded takes over how a run ended, or lets the next one follow.
func (in JobInput) planEnded(job api.Job) JobPlan {
	if job.Requeueing && !job.CancelRequested && in.Seen.Phase != api.JobSucceeded && in.Cluster != nil {
		return in.again(job)
	}
	job.Phase, job.ExitCode, job.Message = in.Seen.Phase, in.Seen.ExitCode, cmp.Or(in.message(), in.removedText(job), job.Message)
	job.StartedAt, job.EndedAt = in.Seen.StartedAt, in.Seen.EndedAt
	if job.Phase == api.JobLost && job.Requeue && !job.CancelRequested && in.Cluster != nil {
		return in.again(job)
	}
	if job.EndedAt == nil {
		job.EndedAt = &in.Now
	}
	return JobPlan{Next: job}
}

// planDispatch names the member that carries out the attempt: the held one of the lowest rank. A run after a loss waits until the cluster
// is whole again.
func (in JobInput) planDispatch(job api.Job) JobPlan {
	if job.CancelRequested {
		job.Phase, job.EndedAt = api.JobCancelled, &in.Now
		return JobPlan{Next: job}
	}
	phase := in.Cluster.Record.Phase
	if Shelving(phase) || phase == api.ClusterSnapshotting {
		return JobPlan{Next: job}
	}
	if job.Attempt > 0 && phase != api.ClusterReady && (phase != api.ClusterScaling || !in.whole()) {
		return JobPlan{Next: job} // the room that the cluster is to grow by may never come
	}
	if until := in.arriving(); in.Now.Before(until) {
		return JobPlan{Next: job, WakeAt: until}
	}
	var first *api.Assignment
	for _, a := range in.Cluster.Assignments {
		if !a.Releasing && a.IsMember() && (first == nil || a.Rank < first.Rank) {
			first = a.Assignment
		}
	}
	switch {
	case first == nil:
	case in.Crowded:
		job.Message = waitsForOthers
	default:
		job.MemberID, job.DispatchedAt = first.ID, &in.Now
		if job.Message == waitsForOthers {
			job.Message = ""
		}
	}
	return JobPlan{Next: job}
}

// whole reports whether no member is lost, and each is ready and has the files that name all others. The cluster may still wait for more.
func (in JobInput) whole() bool {
	if len(in.Cluster.Record.Lost) > 0 {
		return false
	}
	for _, a := range in.Cluster.Assignments {
		if a.Releasing || !a.IsMember() {
			continue
		}
		seen := in.Cluster.Observed[a.ID]
		if seen.Phase != api.MemberReady || !seen.Current || in.Cluster.Nodes[a.Node].Phase != api.NodeReady {
			return false
		}
	}
	return true
}

// arriving returns until when a run waits for a member that has just gone on from another assignment: its identity is new, and a run that logs in
// before all members have the files that name it can fail. Zero: no run waits.
func (in JobInput) arriving() (until time.Time) {
	for _, a := range in.Cluster.Assignments {
		if !a.Releasing && a.IsMember() && a.From != "" {
			until = latest(until, a.TakenAt.Add(arrivalGrace))
		}
	}
	if in.Now.Before(until) && in.whole() {
		return time.Time{}
	}
	return until
}

// holds reports whether the cluster holds an assignment, by its ID.
func (in JobInput) holds(id string) bool {
	return slices.ContainsFunc(in.Cluster.Assignments, func(a ClusterAssignment) bool { return !a.Releasing && a.ID == id })
}

// planMemberGone is of a run whose member is no longer one: what the run did since is unknown and not waited for.
func (in JobInput) planMemberGone(job api.Job) JobPlan {
	if job.Requeue && !job.CancelRequested {
		return in.again(job)
	}
	return in.loseAloud(job, "the member that ran it was lost or released")
}

func (in JobInput) loseAloud(job api.Job, why string) JobPlan {
	plan := in.lose(job, why)
	plan.Events = []Emit{{Reason: EventJobLost, Message: fmt.Sprintf("job %s is lost: %s", job.ID, why)}}
	return plan
}

// undone reports whether a run began after the moment of the snapshot that its cluster has gone back to.
func (in JobInput) undone() bool {
	r, began := in.Cluster.Record.SnapshotRestore, in.Job.DispatchedAt
	return r != nil && r.Failed == "" && began != nil && began.After(r.MadeAt) && began.Before(r.DecidedAt)
}

// planUndone is of a run that the members know nothing of any more.
func (in JobInput) planUndone(job api.Job) JobPlan {
	if job.Requeue && !job.CancelRequested {
		return in.again(job)
	}
	return in.loseAloud(job, fmt.Sprintf("its cluster was restored to snapshot %s, from before the job started", in.Cluster.Record.SnapshotRestore.Name))
}

// removed returns the names of the members that scaling down took from under a run. A program that loses a peer, as mpirun does, ends with
// an exit code that says nothing of it.
func (in JobInput) removed() []string {
	names := in.Job.RemovedMembers
	c := in.Cluster
	if c == nil || c.Record == nil || in.Job.DispatchedAt == nil || c.Record.Phase == api.ClusterDeleting {
		return names
	}
	others := slices.Clone(in.Job.LostMembers) // assignments that ended for another reason: the member died or moved
	for _, lost := range c.Record.Lost {
		others = append(others, lost.Assignment)
	}
	for _, a := range c.Assignments {
		if !a.Releasing {
			others = append(others, a.Replaces)
		}
		if a.From != "" {
			others = append(others, a.From)
		}
	}
	for _, a := range c.Assignments {
		under := a.Releasing && !a.Clean && !a.ReleasedAt.Before(*in.Job.DispatchedAt)
		if under && a.IsMember() && !slices.Contains(others, a.ID) && !slices.Contains(names, a.Member) && len(names) < lossesKept {
			names = append(slices.Clip(names), a.Member)
		}
	}
	return names
}

// removedText names the members that were removed under a run that failed, "" when none were.
func (in JobInput) removedText(job api.Job) string {
	if len(job.RemovedMembers) == 0 || in.Seen.ExitCode == nil || *in.Seen.ExitCode == 0 {
		return ""
	}
	return "scaling down removed members while it ran: " + strings.Join(job.RemovedMembers, ", ")
}

// planLosses counts the members that were lost under a run; its member signals each to the run.
func (in JobInput) planLosses(job api.Job) JobPlan {
	if job.StartedAt == nil || job.Phase != api.JobRunning {
		return JobPlan{Next: job}
	}
	fresh := in.freshLosses(job)
	if len(fresh) == 0 {
		return JobPlan{Next: job}
	}
	job.LostMembers = append(slices.Clone(job.LostMembers), fresh...)
	died := fmt.Sprintf("%d of its cluster's members were lost", len(fresh))
	job.Requeueing = job.Requeue
	if job.Requeue && job.FailureSignal == "" {
		// It is ended in any case, by SIGTERM: another signal beside it only confuses (mpirun, for one, forwards it while it aborts).
		text := fmt.Sprintf("job %s is being stopped and will run again: %s", job.ID, died)
		return JobPlan{Next: job, Events: []Emit{{Reason: EventJobTold, Message: text}}}
	}
	job.Failures += len(fresh)
	text := fmt.Sprintf("job %s was signaled because %s (signal %s)", job.ID, died, cmp.Or(job.FailureSignal, "URG"))
	if job.Requeue {
		text += "; it is being stopped and will run again"
	}
	return JobPlan{Next: job, Events: []Emit{{Reason: EventJobTold, Message: text}}}
}

// freshLosses returns the assignments of members that were lost under a run and are not in it yet.
func (in JobInput) freshLosses(job api.Job) []string {
	// Both times are the leader's. When the run started is the word of another machine. With a clock that is ahead, no loss would count;
	// with one that is behind, each attempt would be ended for a loss from before it.
	since := *cmp.Or(job.DispatchedAt, job.StartedAt)
	var fresh []string
	note := func(id string, at time.Time) {
		if !at.Before(since) && !slices.Contains(job.LostMembers, id) && len(job.LostMembers)+len(fresh) < lossesKept {
			fresh = append(fresh, id)
		}
	}
	for _, lost := range in.Cluster.Record.Lost {
		note(lost.Assignment, lost.Since)
	}
	// A member that was replaced between two plans is known by its replacement.
	for _, a := range in.Cluster.Assignments {
		if !a.Releasing && a.Replaces != "" && a.From == "" && !a.Saved { // those were there before, and were given another time
			note(a.Replaces, a.TakenAt)
		}
	}
	return fresh
}

// again makes the next attempt of a job.
func (in JobInput) again(job api.Job) JobPlan {
	job.Attempt++
	job.Phase, job.MemberID, job.DispatchedAt, job.ExitCode, job.StartedAt, job.EndedAt = api.JobPending, "", nil, nil, nil, nil
	text := fmt.Sprintf("job %s will run again (attempt %d) when the cluster is ready", job.ID, job.Attempt+1)
	if job.DiscardedBytes > 0 {
		text += fmt.Sprintf("; %d bytes of the output of attempt %d were discarded", job.DiscardedBytes, job.Attempt)
	}
	job.Failures, job.LostMembers, job.RemovedMembers, job.Requeueing, job.LogBytes, job.DiscardedBytes = 0, nil, nil, false, 0, 0
	job.Message = "a member of its cluster was lost; the job will run again when the cluster is ready"
	return JobPlan{Next: job, Events: []Emit{{Reason: EventJobRequeued, Message: text}}}
}

func (in JobInput) lose(job api.Job, why string) JobPlan {
	job.Phase, job.Message, job.EndedAt = api.JobLost, why, &in.Now
	return JobPlan{Next: job}
}
