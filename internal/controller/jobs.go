package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/state"
)

// keptJobs is how many ended jobs, and their output, are kept; the oldest go first.
const keptJobs = 1000

// logPatience is how long the end of a job waits for the rest of its output to arrive.
const logPatience = 5 * time.Second

// jobs brings stored jobs up to what agents say of them.
func (p *pass) jobs(ctx context.Context) error {
	var errs []error
	seen := p.cfg.Agents.Jobs()
	var ended []*api.Job
	for _, job := range p.view.Jobs {
		if job.Phase.Ended() {
			ended = append(ended, job)
			continue
		}
		observed, heard := seen[job.ID]
		next, changed := p.nextJob(*job, observed, heard)
		if !changed {
			continue
		}
		_, revision, err := p.cfg.Repo.UpdateJob(ctx, job.ID, func(stored *api.Job) error {
			if stored.Phase.Ended() {
				return nil // another leader has seen its end
			}
			cancel := stored.CancelRequested
			*stored = next
			stored.CancelRequested = cancel
			return nil
		})
		p.committed = max(p.committed, revision)
		if err == nil && next.Phase.Ended() {
			p.cfg.Agents.ForgetJob(job.ID)
			delete(p.endings, job.ID)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, p.prune(ctx, ended))...)
}

// nextJob is a job as it stands now, and whether that differs from what is stored.
func (p *pass) nextJob(job api.Job, seen agentstream.JobObserved, heard bool) (api.Job, bool) {
	next := job
	next.LogBytes = p.cfg.Agents.LogBytes(job.ID)
	c := p.view.Cluster(job.Cluster)
	switch {
	case heard && seen.Phase.Ended():
		if seen.LogBytes > next.LogBytes && p.patient(job.ID) {
			p.sooner(p.now.Add(100 * time.Millisecond))
			return job, false // who follows the output must see all of it before the end
		}
		next.Phase, next.ExitCode, next.Message = seen.Phase, seen.ExitCode, seen.Message
		next.StartedAt, next.EndedAt = seen.StartedAt, seen.EndedAt
		if next.EndedAt == nil {
			next.EndedAt = &p.now
		}
	case c == nil || c.UID() != job.ClusterUID:
		next.Phase, next.Message, next.EndedAt = api.JobLost, "its cluster was deleted", &p.now
	case c.Record != nil && c.Record.Phase == api.ClusterDeleting:
		next.Phase, next.Message, next.EndedAt = api.JobLost, "its cluster is being deleted", &p.now
	case heard:
		next.Phase, next.Message, next.StartedAt = seen.Phase, seen.Message, seen.StartedAt
	}
	return next, next.Phase != job.Phase || next.Message != job.Message
}

// patient tells whether the rest of an ended job's output is still waited for. It counts from when the end was heard of: when it
// was, and how much output there is, are the word of the member, where the tenant is root.
func (p *pass) patient(jobID string) bool {
	heard, ok := p.endings[jobID]
	if !ok {
		heard = p.now
		p.endings[jobID] = heard
	}
	return p.now.Sub(heard) < logPatience
}

// prune removes the oldest ended jobs beyond what is kept.
func (p *pass) prune(ctx context.Context, ended []*api.Job) error {
	if len(ended) <= keptJobs {
		return nil
	}
	slices.SortFunc(ended, func(a, b *api.Job) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	var errs []error
	for _, job := range ended[:len(ended)-keptJobs] {
		if err := p.cfg.Repo.DeleteJob(ctx, job.ID); err != nil && !errors.Is(err, state.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, p.cfg.Agents.DropLog(job.ID))
	}
	return errors.Join(errs...)
}
