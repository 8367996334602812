package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheOldestEndedJobsBeyondTheLimitAreSurplus(t *testing.T) {
	var jobs []*api.Job
	for i := range jobsKept + 2 {
		jobs = append(jobs, &api.Job{ID: fmt.Sprintf("ended%d", i), Phase: api.JobSucceeded, CreatedAt: jobStart.Add(-time.Duration(i) * time.Second)})
	}
	jobs = append(jobs, &api.Job{ID: "new", Phase: api.JobRunning, CreatedAt: jobStart}, &api.Job{ID: "old", CreatedAt: jobStart.Add(-time.Hour)})
	open, surplus := SortJobs(jobs)
	if len(open) != 2 || open[0].ID != "old" || open[1].ID != "new" {
		t.Errorf("open: got %d jobs, want the old one and the new one", len(open))
	}
	if len(surplus) != 2 || surplus[0].ID != fmt.Sprintf("ended%d", jobsKept+1) || surplus[1].ID != fmt.Sprintf("ended%d", jobsKept) {
		t.Errorf("surplus: got %d jobs, want the two oldest", len(surplus))
	}
	if _, surplus := SortJobs(jobs[:jobsKept]); len(surplus) > 0 {
		t.Errorf("of %d ended jobs %d are surplus, want none", jobsKept, len(surplus))
	}
}
