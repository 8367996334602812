package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// What may be submitted and not have ended. Each such job is kept in the memory of every server, so no tenant decides how many there are.
const (
	maxClusterJobs     = 1000
	maxProjectJobs     = 4000
	maxProjectJobBytes = 32 << 20
)

// jobLetters is the length of a job's ID: 50 random bits.
const jobLetters = 10

func noJob(id string) *failure {
	return fail(codeNoJob, "job %q does not exist; 'nearmetal job list' lists the jobs", id)
}

func (s *Server) createJob(ctx context.Context, in *namedBody) (*created[api.Job], error) {
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return nil, err
	}
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, err := manifest.DecodeJob(in.RawBody, format)
	if err != nil {
		return nil, failInvalid(err, codeInvalidJob)
	}
	joined, name := joinCluster(c, s.cfg.Live), shownName(who(ctx), c.Name())
	if err := canRun(name, joined); err != nil {
		return nil, err
	}
	if err := checkAgents(name, c, s.cfg.Reader.View()); err != nil {
		return nil, err
	}
	if c.Record != nil && c.Record.ExpiredAt != nil {
		return nil, fail(codeNotReady, "the time limit of cluster %q has passed, its members are being released; create another cluster", name)
	}
	if slots := slotsOf(c, joined); req.Ranks > slots {
		f := fail(codeTooManyRanks, "%d ranks are more than the %s of cluster %q; request at most %d, or create a larger cluster",
			req.Ranks, cores(slots), name, slots)
		return nil, f
	}
	if err := roomForJob(s.cfg.Reader.View().Jobs, c.Name(), name, req); err != nil {
		return nil, err
	}
	job := api.Job{
		ID: newID(jobLetters), Cluster: c.Name(), ClusterUID: c.UID(), JobRequest: req, Phase: api.JobPending,
		CreatedAt: s.cfg.Now().UTC(),
	}
	revision, err := s.cfg.Writer.CreateJob(ctx, job)
	if errors.Is(err, state.ErrNotFound) {
		return nil, fail(codeNotReady, "cluster %q was deleted meanwhile; the job was not stored", name)
	}
	if err != nil {
		return nil, err
	}
	return &created[api.Job]{Location: "/v1/jobs/" + job.ID, Body: s.jobAfter(ctx, job, revision)}, nil
}

// roomForJob refuses a job beyond what a cluster and its project may have. Requests at the same moment don't see each other: there may
// be as many jobs more as there are requests at once.
func roomForJob(jobs []*api.Job, cluster, shown string, req api.JobRequest) error {
	project, _ := tenancy.Split(cluster)
	ofCluster, ofProject, bytes := 0, 0, req.TextBytes()
	for _, job := range jobs {
		if owner, _ := tenancy.Split(job.Cluster); owner != project || job.Phase.Ended() {
			continue
		}
		ofProject++
		bytes += job.TextBytes()
		if job.Cluster == cluster {
			ofCluster++
		}
	}
	const remedy = "wait until some have ended, or cancel some: nearmetal job list"
	switch {
	case ofCluster >= maxClusterJobs:
		return fail(codeTooManyJobs, "cluster %q has %d unfinished jobs, the most it can have; %s", shown, ofCluster, remedy)
	case ofProject >= maxProjectJobs:
		return fail(codeTooManyJobs, "the project has %d unfinished jobs, the most it can have; %s", ofProject, remedy)
	case bytes > maxProjectJobBytes:
		return fail(codeTooManyJobs, "the commands and environments of the project's jobs would hold %d bytes; at most %d are possible; %s",
			bytes, maxProjectJobBytes, remedy)
	}
	return nil
}

// jobAfter is a job as who asks sees it after a write.
func (s *Server) jobAfter(ctx context.Context, job api.Job, revision int64) api.Job {
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Job(job.ID); now != nil {
			job = *now
		}
	}
	return shownJob(who(ctx), job)
}

// shownJob is a job with its cluster as a principal would write it.
func shownJob(p tenancy.Principal, job api.Job) api.Job {
	job.Cluster = shownName(p, job.Cluster)
	return job
}

// findJob returns the job of an ID if who asks may know of it.
func (s *Server) findJob(ctx context.Context, id string) (*api.Job, error) {
	job := s.cfg.Reader.View().Job(id)
	if job == nil {
		return nil, noJob(id)
	}
	if !seesCluster(who(ctx), job.Cluster) {
		return nil, noJob(id)
	}
	return job, nil
}

// canRun refuses jobs on a cluster that is not ready, with the phase and what to do.
func canRun(name string, c api.Cluster) error {
	what := ""
	switch c.Status.Phase {
	case api.ClusterReady, api.ClusterScaling:
		if c.Status.Saved {
			return fail(codeNotReady, "cluster %q is about to be saved; jobs run on ready clusters: restore it first: nearmetal cluster restore %s", name, name)
		}
		if !c.Status.Paused {
			return nil
		}
		c.Status.Phase = api.ClusterPausing
		what = "resume it first: nearmetal cluster resume " + name
	case api.ClusterSaving, api.ClusterSaved:
		what = "restore it first: nearmetal cluster restore " + name
	case api.ClusterPending, api.ClusterStarting, api.ClusterResuming, api.ClusterRestoring:
		what = "wait until it is ready: nearmetal cluster show " + name
	case api.ClusterQueued:
		what = "it waits for room; see why: nearmetal cluster explain " + name
	case api.ClusterPausing, api.ClusterPaused:
		what = "resume it first: nearmetal cluster resume " + name
	case api.ClusterDegraded, api.ClusterFailed, api.ClusterRefused:
		what = "see why: nearmetal cluster events " + name
	case api.ClusterDeleting:
		what = "create another cluster"
	default:
		what = "see nearmetal cluster show " + name
	}
	text := fmt.Sprintf("cluster %q is %s", name, c.Status.Phase)
	if phase := c.Status.Phase; phase == api.ClusterPending || phase == api.ClusterStarting || phase == api.ClusterDegraded {
		text += fmt.Sprintf(", %d of %d members are ready", c.Status.ReadyMembers, c.Status.TotalMembers)
	}
	return fail(codeNotReady, "%s; jobs run on ready clusters: %s", text, what)
}

// slotsOf is how many ranks fit a cluster now: the cores of its members, while it grows those of the ready ones.
func slotsOf(c *state.Cluster, joined api.Cluster) int {
	ready := map[string]bool{}
	for _, m := range joined.Status.Members {
		ready[m.Name] = ready[m.Name] || m.Phase == api.MemberReady
	}
	slots := 0
	for a := range c.Held() {
		if a.IsMember() && (joined.Status.Phase != api.ClusterScaling || ready[a.Member]) {
			slots += len(a.Has().Slots)
		}
	}
	return slots
}

// jobsInput limits a list of jobs.
type jobsInput struct {
	Cluster string `query:"cluster" doc:"Only jobs of this cluster"`
}

func (s *Server) listJobs(ctx context.Context, in *jobsInput) (*body[api.List[api.Job]], error) {
	only, p := "", who(ctx)
	if in.Cluster != "" {
		var err error
		if only, err = resolve(ctx, in.Cluster); err != nil {
			return nil, err
		}
	}
	list := api.List[api.Job]{Items: []api.Job{}}
	for _, j := range s.cfg.Reader.View().Jobs {
		if (only == "" || j.Cluster == only) && seesCluster(p, j.Cluster) {
			list.Items = append(list.Items, shownJob(p, *j))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b api.Job) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return &body[api.List[api.Job]]{list}, nil
}

func (s *Server) getJob(ctx context.Context, in *byID) (*body[api.Job], error) {
	j, err := s.findJob(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &body[api.Job]{shownJob(who(ctx), *j)}, nil
}

func (s *Server) cancelJob(ctx context.Context, in *byID) (*body[api.Job], error) {
	if _, err := s.findJob(ctx, in.ID); err != nil {
		return nil, err
	}
	job, revision, err := s.cfg.Writer.UpdateJob(ctx, in.ID, func(j *api.Job) error {
		j.CancelRequested = j.CancelRequested || !j.Phase.Ended()
		return nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil, noJob(in.ID)
	}
	if err != nil {
		return nil, err
	}
	return &body[api.Job]{s.jobAfter(ctx, job, revision)}, nil
}
