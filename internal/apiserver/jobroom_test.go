package apiserver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatAProjectMaySubmitIsBounded(t *testing.T) {
	of := func(cluster string, count int, phase api.JobPhase, text int) []*api.Job {
		var jobs []*api.Job
		for range count {
			jobs = append(jobs, &api.Job{Cluster: cluster, Phase: phase, JobRequest: api.JobRequest{Command: []string{strings.Repeat("x", text)}}})
		}
		return jobs
	}
	clusters := func(count int) []*api.Job {
		var jobs []*api.Job
		for i := range 8 {
			jobs = append(jobs, of(fmt.Sprintf("lab.c%d", 2+i), count/8, api.JobPending, 1)...)
		}
		return jobs
	}
	small := api.JobRequest{Command: []string{"true"}}
	large := api.JobRequest{Command: []string{"true"}, Env: map[string]string{"X": strings.Repeat("x", 60_000)}}
	for _, tc := range []struct {
		name string
		jobs []*api.Job
		req  api.JobRequest
		want string // empty: the job is taken
	}{
		{"one job less than a cluster may have", of("lab.c1", maxClusterJobs-1, api.JobRunning, 1), small, ""},
		{"as many jobs as a cluster may have", of("lab.c1", maxClusterJobs, api.JobRunning, 1), small, `cluster "c1" has 1000 unfinished jobs`},
		{"jobs that have ended", of("lab.c1", 2*maxClusterJobs, api.JobFailed, 1), small, ""},
		{"jobs of another project", of("other.c1", 2*maxProjectJobs, api.JobPending, 1), small, ""},
		{"one job less than a project may have", clusters(maxProjectJobs)[1:], small, ""},
		{"as many jobs as a project may have", clusters(maxProjectJobs), small, "the project has 4000 unfinished jobs"},
		{"little text beside much", of("lab.c2", 500, api.JobPending, 67_000), small, ""},
		{"much text beside much", of("lab.c2", 500, api.JobPending, 67_000), large, "would hold 33560"},
	} {
		err := roomForJob(tc.jobs, "lab.c1", "c1", tc.req)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}
