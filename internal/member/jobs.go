package member

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/children"
)

// jobs are the runs of jobs this member knows. Each is started at most once in the life of the member agent: what has ended is
// remembered, and what was begun by an earlier member agent is lost. No two attempts of a job run at once.
type jobs struct {
	cfg      Config
	children *children.Children

	mu sync.Mutex
	// known has every run ever seen, by its ID; latest the highest attempt of every job.
	known   map[string]*job
	latest  map[string]*job
	running sync.WaitGroup
	ending  bool
	// wake has an element when states or output changed.
	wake chan struct{}
}

// job is one run of a job. Its fields are guarded by jobs.mu.
type job struct {
	attempt   int
	state     JobState
	changed   bool // state was not sent on the present connection
	forgotten bool // no longer in the node agent's list
	spool     *spool
	cancel    chan struct{} // closed when it is to be ended
	cancelled bool
	why       string        // it was cancelled, for people
	ended     chan struct{} // closed when nothing of it runs any more
	grace     time.Duration // after SIGTERM; 0: it is interrupted first

	failures int       // lost members that it was told of
	told     time.Time // when it last was, by a signal of its user's choice
	pid      int       // of its session's leader; 0 unless it runs
}

// end has the run ended; jobs.mu is held.
func (j *job) end(why string) {
	if !j.cancelled {
		j.cancelled, j.why = true, why
		close(j.cancel)
	}
}

func newJobs(cfg Config, children *children.Children) *jobs {
	return &jobs{cfg: cfg, children: children, known: map[string]*job{}, latest: map[string]*job{}, wake: make(chan struct{}, 1)}
}

// signal reports that there is something to send.
func (j *jobs) signal() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// set brings the jobs to what the list asks for.
func (j *jobs) set(list []api.Job) {
	j.mu.Lock()
	defer j.mu.Unlock()
	listed := map[string]bool{}
	for _, wanted := range list {
		id := wanted.RunID()
		listed[id] = true
		known, ok := j.known[id]
		if !ok {
			if wanted.Phase.Ended() {
				continue
			}
			known = j.admit(wanted)
		}
		j.noteFailures(known, wanted)
		if wanted.CancelRequested {
			if !known.cancelled {
				known.grace = time.Duration(wanted.GraceSeconds * float64(time.Second))
			}
			j.cancel(known, "ended at a user's request")
		}
	}
	for id, known := range j.known {
		known.forgotten = !listed[id]
		if known.forgotten && known.state.Phase.Ended() && known.spool != nil {
			known.spool.ack(known.state.LogBytes)
			known.spool = nil
		}
	}
	j.signal()
}

// cancel has a run ended, once it has had time to act on the failure signal it was told by; j.mu is held. One that is to be run again is
// told and ended in one list.
func (j *jobs) cancel(known *job, why string) {
	left := j.cfg.InterruptGrace - time.Since(known.told)
	if known.told.IsZero() || left <= 0 {
		known.end(why)
		return
	}
	time.AfterFunc(left, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		known.end(why)
	})
}

// noteFailures tells a run of members that were lost under it: once, however many they are and however often it is said; j.mu is held.
// One that has not begun is not told, since its program could not expect the signal yet.
func (j *jobs) noteFailures(known *job, wanted api.Job) {
	if wanted.Failures <= known.failures || known.state.Phase.Ended() {
		return
	}
	known.failures = wanted.Failures
	if known.pid == 0 {
		return
	}
	signal, err := failureSignal(wanted)
	if err != nil {
		known.state.Message, known.changed = err.Error(), true
		return
	}
	if wanted.FailureSignal != "" {
		known.told = time.Now()
	}
	_ = syscall.Kill(-known.pid, signal)
}

// admit makes a run that was not known and starts it if it is to be started; j.mu is held. An earlier attempt of the same job is
// ended, and has ended before this one starts.
func (j *jobs) admit(wanted api.Job) *job {
	created := &job{
		attempt: wanted.Attempt, state: JobState{ID: wanted.RunID(), Phase: api.JobPending}, changed: true,
		cancel: make(chan struct{}), ended: make(chan struct{}),
	}
	j.known[wanted.RunID()] = created
	before := j.latest[wanted.ID]
	switch {
	case before != nil && before.attempt > wanted.Attempt:
		created.state.Phase, created.state.EndedAt = api.JobCancelled, now()
		created.state.Message = "a later attempt of the job has started"
		close(created.ended)
		return created
	case wanted.Phase != api.JobPending || wanted.StartedAt != nil:
		created.state.Phase = api.JobLost
		created.state.Message = "the job ended when its member was restarted"
		created.state.StartedAt = wanted.StartedAt
	case wanted.CancelRequested || j.ending:
		created.state.Phase, created.state.EndedAt = api.JobCancelled, now()
		created.state.Message = cancelledEarly
	default:
		output, err := newSpool(j.cfg.SpoolBytes, j.cfg.OutputPatience, j.signal)
		if err != nil {
			created.state.Phase, created.state.Message = api.JobFailed, err.Error()
		}
		created.spool = output
	}
	j.latest[wanted.ID] = created
	if before != nil {
		before.end("ended to be run again from the start")
	}
	begin := created.spool != nil
	j.running.Go(func() {
		defer close(created.ended)
		if before != nil {
			<-before.ended
		}
		if begin {
			j.supervise(wanted, created)
		}
	})
	return created
}

const cancelledEarly = "cancelled before it was started"

// supervise runs a job to its end.
func (j *jobs) supervise(wanted api.Job, job *job) {
	select {
	case <-job.cancel:
		job.spool.seal()
		j.update(job, func(s *JobState) { s.Phase, s.Message, s.EndedAt = api.JobCancelled, cancelledEarly, now() })
		return
	default:
	}
	run, err := j.launch(wanted, job.spool)
	if err != nil {
		job.spool.seal()
		j.update(job, func(s *JobState) {
			s.Phase, s.Message, s.EndedAt = api.JobFailed, err.Error(), now()
			if code := err.exitCode; code != 0 {
				s.ExitCode = &code
			}
		})
		return
	}
	j.update(job, func(s *JobState) {
		s.Phase, s.StartedAt = api.JobRunning, now()
		job.pid = run.pid
	})
	status, cancelled := run.wait(job.cancel, func() syscall.WaitStatus {
		job.spool.hurry()
		j.mu.Lock()
		grace := job.grace
		j.mu.Unlock()
		if grace > 0 {
			return run.terminate(grace)
		}
		return run.interrupt(j.cfg)
	})
	job.spool.release()
	run.collect()
	job.spool.seal()
	j.update(job, func(s *JobState) {
		job.pid = 0
		s.EndedAt = now()
		switch code := exitCode(status); {
		case cancelled:
			s.Phase, s.Message = api.JobCancelled, job.why
		case code == 0:
			s.Phase, s.ExitCode = api.JobSucceeded, &code
		default:
			s.Phase, s.ExitCode = api.JobFailed, &code
			if status.Signaled() {
				s.Message = "ended by signal " + unix.SignalName(status.Signal())
			}
		}
	})
}

// update changes a job's state and has it sent.
func (j *jobs) update(job *job, change func(*JobState)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&job.state)
	job.state.LogBytes, job.state.DiscardedBytes = job.spool.counts()
	job.changed = true
	if job.forgotten && job.state.Phase.Ended() {
		job.spool.ack(job.state.LogBytes)
		job.spool = nil
	}
	j.signal()
}

// end ends all jobs and returns when they have ended, or grace after it asked them.
func (j *jobs) end(grace time.Duration) {
	j.mu.Lock()
	j.ending = true
	for _, job := range j.known {
		job.end("ended with its member")
	}
	j.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		j.running.Wait()
		close(ended)
	}()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
}

// noteDiscarded takes over how much output is discarded, when that is much more than was reported or the last word about it; jobs.mu is held.
func (j *job) noteDiscarded() {
	if j.spool == nil {
		return
	}
	size, discarded := j.spool.counts()
	if discarded == j.state.DiscardedBytes || !j.state.Phase.Ended() && discarded < 2*j.state.DiscardedBytes {
		return
	}
	j.state.LogBytes, j.state.DiscardedBytes, j.changed = size, discarded, true
}

// states returns the states that were not sent yet, or all, and notes them as sent.
func (j *jobs) states(all bool) []JobState {
	j.mu.Lock()
	defer j.mu.Unlock()
	var states []JobState
	for _, job := range j.known {
		job.noteDiscarded()
		if (all || job.changed) && !job.forgotten {
			states = append(states, job.state)
			job.changed = false
		}
	}
	sortStates(states)
	return states
}

// output returns a job's spool, or nil when there is none.
func (j *jobs) output(id string) *spool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if job := j.known[id]; job != nil {
		return job.spool
	}
	return nil
}

func now() *time.Time {
	t := time.Now().UTC()
	return &t
}
