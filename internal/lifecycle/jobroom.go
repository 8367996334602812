package lifecycle

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// A cluster has this many jobs, with this much text, at its member at once. All others wait at the server: what a node is sent, and keeps,
// must not grow with what a tenant submits.
const (
	JobsAtOnce    = 128
	JobTextAtOnce = 1 << 20
)

// waitsForOthers is why a job that could be started is not.
const waitsForOthers = "waiting for other jobs of its cluster to end"

// jobsKept is how many ended jobs, and their output, are kept; the oldest go first.
const jobsKept = 1000

// SortJobs returns the jobs that have not ended, in the order in which they get room, and the ended ones that are no longer kept.
func SortJobs(jobs []*api.Job) (open, surplus []*api.Job) {
	var ended []*api.Job
	for _, job := range jobs {
		if job.Phase.Ended() {
			ended = append(ended, job)
		} else {
			open = append(open, job)
		}
	}
	slices.SortFunc(open, olderJob)
	if len(ended) <= jobsKept {
		return open, nil
	}
	slices.SortFunc(ended, olderJob)
	return open, ended[:len(ended)-jobsKept]
}

// olderJob orders jobs by when they were submitted.
func olderJob(a, b *api.Job) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// JobRoom counts the jobs that members have, by their cluster's UID, while one job after the other is planned.
type JobRoom struct {
	clusters map[string]*jobsThere
}

type jobsThere struct {
	runs, text int
	// full: a job had to wait, and no later one goes before it.
	full bool
}

// NewJobRoom counts the jobs that members have already.
func NewJobRoom(open []*api.Job) *JobRoom {
	r := &JobRoom{clusters: map[string]*jobsThere{}}
	for _, job := range open {
		if job.MemberID != "" {
			r.of(job).add(job)
		}
	}
	return r
}

func (r *JobRoom) of(job *api.Job) *jobsThere {
	there := r.clusters[job.ClusterUID]
	if there == nil {
		there = &jobsThere{}
		r.clusters[job.ClusterUID] = there
	}
	return there
}

func (t *jobsThere) add(job *api.Job) {
	t.runs++
	t.text += job.TextBytes()
}

// Fits reports whether a job's cluster has room for it. A cluster without jobs has room for any one.
func (r *JobRoom) Fits(job *api.Job) bool {
	there := r.of(job)
	return !there.full && there.runs < JobsAtOnce && (there.runs == 0 || there.text+job.TextBytes() <= JobTextAtOnce)
}

// Note counts what was planned for a job.
func (r *JobRoom) Note(job, next *api.Job) {
	switch there := r.of(job); {
	case job.MemberID == "" && next.MemberID != "":
		there.add(job)
	case next.MemberID == "" && next.Message == waitsForOthers && !next.Phase.Ended():
		there.full = true
	}
}
