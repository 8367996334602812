package controller

import (
	"cmp"

	"github.com/nearmetal/nearmetal/api"
)

// A cluster has this many jobs, with this much text, at its member at once. All others wait at the server: what a node is sent, and keeps,
// must not grow with what a tenant submits.
const (
	jobsAtOnce    = 128
	jobTextAtOnce = 1 << 20
)

// waitsForOthers is why a job that could be started is not.
const waitsForOthers = "waiting for other jobs of its cluster to end"

// jobRoom counts the jobs that members have, by their cluster's UID.
type jobRoom struct {
	clusters map[string]*jobsThere
}

type jobsThere struct {
	runs, text int
	// full: a job had to wait, and no later one goes before it.
	full bool
}

// newJobRoom counts the jobs that members have already.
func newJobRoom(open []*api.Job) *jobRoom {
	r := &jobRoom{clusters: map[string]*jobsThere{}}
	for _, job := range open {
		if job.MemberID != "" {
			r.of(job).add(job)
		}
	}
	return r
}

func (r *jobRoom) of(job *api.Job) *jobsThere {
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

// fits reports whether a job's cluster has room for it. A cluster without jobs has room for any one.
func (r *jobRoom) fits(job *api.Job) bool {
	there := r.of(job)
	return !there.full && there.runs < jobsAtOnce && (there.runs == 0 || there.text+job.TextBytes() <= jobTextAtOnce)
}

// note counts what was planned for a job.
func (r *jobRoom) note(job, next *api.Job) {
	switch there := r.of(job); {
	case job.MemberID == "" && next.MemberID != "":
		there.add(job)
	case next.MemberID == "" && next.Message == waitsForOthers && !next.Phase.Ended():
		there.full = true
	}
}

// olderJob orders jobs by when they were submitted.
func olderJob(a, b *api.Job) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
}
