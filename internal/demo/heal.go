package demo

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// The job that a member is lost under: so many steps, of which each takes so long; the member dies after the third.
const (
	jobSteps      = 8
	jobStepMillis = "400"
	killAfter     = "step 3 of"
)

// heal kills a member under a job, and shows how the cluster gets whole again and the job goes on.
func (v *visit) heal(ctx context.Context) error {
	program, err := v.install(v.programs.Steps)
	if err != nil {
		return err
	}
	events, err := v.api.Events(ctx, clusterName, 0)
	if err != nil {
		return err
	}
	seq := int64(0)
	for _, e := range events {
		seq = max(seq, e.Seq)
	}
	ctx, cancel := context.WithTimeout(ctx, healWindow)
	defer cancel()
	v.say("starting a job of %d ranks that saves its state after each step and is rerun when a member is lost (--requeue)", grown)
	job, err := v.api.CreateJob(ctx, clusterName, api.JobRequest{
		Command: []string{program, fmt.Sprint(jobSteps), jobStepMillis}, Ranks: grown, Requeue: true,
	})
	if err != nil {
		return err
	}
	first := &attempt{narrator: v.narrator, until: killAfter, reached: make(chan struct{})}
	over := make(chan error, 1)
	go func() {
		_, err := v.api.JobAttemptLog(ctx, job.ID, 0, 0, true, first)
		over <- err
	}()
	select {
	case <-first.reached:
	case err := <-over:
		return fmt.Errorf("job %s ended or its output broke off before its third step (%w)", job.ID, orEnded(err))
	}
	victim := v.last()
	first.hush()
	killed := time.Now()
	pid, err := v.opts.kill(v.cluster.UID, victim.Name)
	if err != nil {
		return err
	}
	v.say("killed the first process of %s on node %s (process %d of this machine, SIGKILL)", victim.Name, victim.Node, pid)
	took, err := v.healed(ctx, seq, victim.Name, killed)
	if err != nil {
		return err
	}
	if err := v.clusterReady(ctx, grown); err != nil {
		return err
	}
	v.say("the cluster is whole again: %.2f s from the kill to ready; %s has the same name and rank, on node %s with address %s",
		took.Seconds(), victim.Name, v.last().Node, v.last().Address)
	if err := <-over; err != nil {
		return fmt.Errorf("the output of the first attempt of job %s: %w", job.ID, err)
	}
	return v.secondAttempt(ctx, job.ID)
}

func orEnded(err error) error {
	if err == nil {
		return fmt.Errorf("the job ended")
	}
	return err
}

// healed shows the events that follow a kill until the cluster is ready and the job is on its way again, and returns how long it took
// to be ready.
func (v *visit) healed(ctx context.Context, seq int64, member string, killed time.Time) (time.Duration, error) {
	var ready time.Duration
	lost, replaced, requeued := false, false, false
	for event, err := range v.api.FollowEvents(ctx, clusterName, seq) {
		if err != nil {
			return 0, fmt.Errorf("%s was killed, and the cluster did not heal in %s (lost %v, replaced %v, ready %v, job requeued %v): %w",
				member, healWindow, lost, replaced, ready > 0, requeued, err)
		}
		since := event.Time.Sub(killed)
		v.show(fmt.Sprintf("%+6.2f s  %-14s  %s", since.Seconds(), event.Reason, event.Message))
		switch {
		case event.Reason == lifecycle.EventMemberLost && event.Member == member:
			lost = true
		case event.Reason == lifecycle.EventMemberReplaced && event.Member == member:
			replaced = lost
		case event.Reason == lifecycle.EventReady && replaced && ready == 0:
			ready = since
		case event.Reason == "JobRequeued":
			requeued = true
		}
		if ready > 0 && requeued {
			return ready, nil
		}
	}
	return 0, fmt.Errorf("the events of cluster %q ended before it was whole again", clusterName)
}

// secondAttempt shows how the job goes on, and insists that it succeeds.
func (v *visit) secondAttempt(ctx context.Context, id string) error {
	return v.step("the job's second attempt", func() error {
		if _, err := v.api.JobAttemptLog(ctx, id, 1, 0, true, v.narrator); err != nil {
			return fmt.Errorf("the output of job %s: %w", id, err)
		}
		job, err := v.api.Job(ctx, id)
		if err != nil {
			return err
		}
		if job.Phase != api.JobSucceeded || job.Attempt != 1 {
			return fmt.Errorf("job %s should have succeeded with its second attempt, and is %s after attempt %d %s", id, job.Phase, job.Attempt+1, job.Message)
		}
		return nil
	})
}

// attempt shows the output of a job's attempt until it is hushed, and tells when a line begins with some words.
type attempt struct {
	*narrator
	until   string
	reached chan struct{}

	mu      sync.Mutex
	silent  bool
	told    bool
	pending []byte
}

// hush keeps the rest of the output to itself: mpirun writes pages about a member it has lost.
func (a *attempt) hush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = true
}

// Write takes output as it comes.
func (a *attempt) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending = append(a.pending, p...)
	for {
		line, rest, found := bytes.Cut(a.pending, []byte("\n"))
		if !found {
			return len(p), nil
		}
		a.pending = rest
		if !a.silent {
			a.show(string(line))
		}
		if strings.HasPrefix(string(line), a.until) && !a.told {
			a.told = true
			close(a.reached)
		}
	}
}
