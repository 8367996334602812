package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// jobLetters is the length of a job's ID: 50 random bits.
const jobLetters = 10

func noJob(id string) *failure {
	return fail(codeNoJob, "there is no job %q; 'nearmetal job list' shows those there are", id)
}

// jobInput is documented as an api.JobRequest.
type jobInput struct {
	Name        string `path:"name" doc:"Name of the cluster"`
	ContentType string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (s *Server) createJob(ctx context.Context, in *jobInput) (*created[api.Job], error) {
	format, err := bodyFormat(in.ContentType)
	if err != nil {
		return nil, err
	}
	c := s.cfg.Reader.View().Cluster(in.Name)
	if c == nil {
		return nil, noCluster(in.Name)
	}
	req, err := manifest.DecodeJob(in.RawBody, format)
	if err != nil {
		return nil, failInvalid(err, codeInvalidJob)
	}
	if err := canRun(joinCluster(c, s.cfg.Live)); err != nil {
		return nil, err
	}
	if slots := slotsOf(c); req.Ranks > slots {
		f := fail(codeTooManyRanks, "%d ranks are more than the %d cores of cluster %q; ask for at most %d, or make a larger cluster",
			req.Ranks, slots, in.Name, slots)
		return nil, f
	}
	job := api.Job{
		ID: newID(jobLetters), Cluster: c.Name(), ClusterUID: c.UID(), JobRequest: req, Phase: api.JobPending,
		CreatedAt: s.cfg.Now().UTC(),
	}
	revision, err := s.cfg.Writer.CreateJob(ctx, job)
	if errors.Is(err, state.ErrNotFound) {
		return nil, fail(codeNotReady, "cluster %q was deleted meanwhile; the job was not stored", in.Name)
	}
	if err != nil {
		return nil, err
	}
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Job(job.ID); now != nil {
			job = *now
		}
	}
	return &created[api.Job]{Location: "/v1/jobs/" + job.ID, Body: job}, nil
}

// canRun refuses jobs on a cluster that is not ready, with the phase and what to do.
func canRun(c api.Cluster) error {
	what := ""
	switch c.Status.Phase {
	case api.ClusterReady:
		return nil
	case api.ClusterPending, api.ClusterStarting:
		what = "wait until it is ready: nearmetal cluster show " + c.Name
	case api.ClusterDegraded, api.ClusterFailed, api.ClusterRefused:
		what = "see why: nearmetal cluster events " + c.Name
	case api.ClusterDeleting:
		what = "create another cluster"
	default:
		what = "see nearmetal cluster show " + c.Name
	}
	text := fmt.Sprintf("cluster %q is %s", c.Name, c.Status.Phase)
	if phase := c.Status.Phase; phase == api.ClusterPending || phase == api.ClusterStarting || phase == api.ClusterDegraded {
		text += fmt.Sprintf(", %d of %d members are ready", c.Status.ReadyMembers, c.Status.TotalMembers)
	}
	return fail(codeNotReady, "%s; jobs run on ready clusters: %s", text, what)
}

// slotsOf is how many ranks fit a cluster: the cores of its members.
func slotsOf(c *state.Cluster) int {
	slots := 0
	for a := range c.Held() {
		slots += len(a.Slots)
	}
	return slots
}

// jobsInput limits a list of jobs.
type jobsInput struct {
	Cluster string `query:"cluster" doc:"Only jobs of this cluster"`
}

func (s *Server) listJobs(_ context.Context, in *jobsInput) (*body[api.List[api.Job]], error) {
	list := api.List[api.Job]{Items: []api.Job{}}
	for _, j := range s.cfg.Reader.View().Jobs {
		if in.Cluster == "" || j.Cluster == in.Cluster {
			list.Items = append(list.Items, *j)
		}
	}
	slices.SortStableFunc(list.Items, func(a, b api.Job) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return &body[api.List[api.Job]]{list}, nil
}

func (s *Server) getJob(_ context.Context, in *byID) (*body[api.Job], error) {
	j := s.cfg.Reader.View().Job(in.ID)
	if j == nil {
		return nil, noJob(in.ID)
	}
	return &body[api.Job]{*j}, nil
}

func (s *Server) cancelJob(ctx context.Context, in *byID) (*body[api.Job], error) {
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
	if view, ok := s.readOwnWrite(ctx, revision); ok {
		if now := view.Job(job.ID); now != nil {
			job = *now
		}
	}
	return &body[api.Job]{job}, nil
}
