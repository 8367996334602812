package member

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// jobs are the jobs this member knows. Each is started at most once in the life of the member agent: what has ended is
// remembered, and what was begun by an earlier member agent is lost.
type jobs struct {
	cfg      Config
	children *children

	mu sync.Mutex
	// known has every job ever seen.
	known   map[string]*job
	running sync.WaitGroup
	ending  bool
	// wake has an element when states or output changed.
	wake chan struct{}
}

// job is one job. Its fields are guarded by jobs.mu.
type job struct {
	state     JobState
	changed   bool // state was not sent on the present connection
	forgotten bool // no longer in the node agent's list
	spool     *spool
	cancel    chan struct{} // closed when the user asks to end it
	cancelled bool
}

func newJobs(cfg Config, children *children) *jobs {
	return &jobs{cfg: cfg, children: children, known: map[string]*job{}, wake: make(chan struct{}, 1)}
}

// signal tells that there is something to send.
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
		listed[wanted.ID] = true
		known, ok := j.known[wanted.ID]
		if !ok {
			if wanted.Phase.Ended() {
				continue
			}
			known = j.admit(wanted)
		}
		if wanted.CancelRequested && !known.cancelled {
			known.cancelled = true
			close(known.cancel)
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

// admit makes a job that was not known and starts it if it is to be started; j.mu is held.
func (j *jobs) admit(wanted api.Job) *job {
	created := &job{state: JobState{ID: wanted.ID, Phase: api.JobPending}, changed: true, cancel: make(chan struct{})}
	j.known[wanted.ID] = created
	switch {
	case wanted.Phase != api.JobPending || wanted.StartedAt != nil:
		created.state.Phase = api.JobLost
		created.state.Message = "the member was started again and its jobs ended with it"
		created.state.StartedAt = wanted.StartedAt
	case wanted.CancelRequested || j.ending:
		created.state.Phase = api.JobCancelled
		created.state.Message = "ended before it was started"
		created.state.EndedAt = now()
	default:
		output, err := newSpool(j.cfg.SpoolBytes, j.signal)
		if err != nil {
			created.state.Phase, created.state.Message = api.JobFailed, err.Error()
			return created
		}
		created.spool = output
		j.running.Go(func() { j.supervise(wanted, created) })
	}
	return created
}

// supervise runs a job to its end.
func (j *jobs) supervise(wanted api.Job, job *job) {
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
	j.update(job, func(s *JobState) { s.Phase, s.StartedAt = api.JobRunning, now() })
	status, cancelled := run.wait(job.cancel, j.cfg)
	job.spool.seal()
	j.update(job, func(s *JobState) {
		s.EndedAt = now()
		switch code := exitCode(status); {
		case cancelled:
			s.Phase, s.Message = api.JobCancelled, "ended at a user's request"
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
	job.state.LogBytes = job.spool.size()
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
		if !job.cancelled {
			job.cancelled = true
			close(job.cancel)
		}
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

// states returns the states that were not sent yet, or all, and notes them as sent.
func (j *jobs) states(all bool) []JobState {
	j.mu.Lock()
	defer j.mu.Unlock()
	var states []JobState
	for _, job := range j.known {
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
