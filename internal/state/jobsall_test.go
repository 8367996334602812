package state_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestJobsAreChangedTogetherAndEachForItself(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		w := newWorld(t, s)
		const jobs = 150 // some of whose IDs begin with others
		for i := range jobs {
			_, err := w.repo.CreateJob(ctx, api.Job{ID: fmt.Sprint("j", i), Cluster: "c1", ClusterUID: "uid-c1", Phase: api.JobPending})
			must(t, err)
		}
		refused, disturbed := errors.New("no"), false
		var updates []state.JobUpdate
		for i := range jobs {
			change := func(j *api.Job) error { j.Phase, j.Message = api.JobRunning, fmt.Sprint(i); return nil }
			switch i {
			case 3: // somebody asks for its end meanwhile
				change = func(j *api.Job) error {
					if !disturbed {
						disturbed = true
						_, _, err := w.repo.UpdateJob(ctx, "j3", func(j *api.Job) error { j.CancelRequested = true; return nil })
						must(t, err)
					}
					j.Phase = api.JobRunning
					return nil
				}
			case 5:
				change = func(*api.Job) error { return refused }
			case 7:
				change = func(*api.Job) error { return nil }
			}
			updates = append(updates, state.JobUpdate{ID: fmt.Sprint("j", i), Change: change})
		}
		updates = append(updates, state.JobUpdate{ID: "gone", Change: func(*api.Job) error { t.Error("a job that is not there is changed"); return nil }})
		seventh, _, err := s.Get(ctx, "job/j7")
		must(t, err)
		outcomes := w.leader.UpdateJobs(ctx, updates)
		revisions := map[int64]bool{}
		for i, o := range outcomes {
			switch i {
			case 5:
				if !errors.Is(o.Err, refused) {
					t.Errorf("a change that refuses: %v", o.Err)
				}
			case 7:
				equal(t, o, state.Outcome{Revision: seventh.Revision})
			case jobs:
				if !errors.Is(o.Err, state.ErrNotFound) {
					t.Errorf("a job that is not there: %v", o.Err)
				}
			default:
				must(t, o.Err)
				revisions[o.Revision] = true
				job, err := w.repo.Job(ctx, updates[i].ID)
				must(t, err)
				if job.Phase != api.JobRunning || i != 3 && job.Message != fmt.Sprint(i) || job.CancelRequested != (i == 3) {
					t.Errorf("job %d is %+v", i, job)
				}
			}
		}
		// The first commit has failed for job 3, so each of its jobs was tried by itself; the others went together.
		if len(revisions) > 64+3 {
			t.Errorf("%d jobs were changed in %d commits", jobs, len(revisions))
		}
	})
}

func TestJobsTooLargeForOneCommitTakeSeveral(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		ctx := t.Context()
		w := newWorld(t, s)
		var updates []state.JobUpdate
		for i := range 20 {
			id := fmt.Sprint("j", i)
			_, err := w.repo.CreateJob(ctx, api.Job{ID: id, Cluster: "c1", ClusterUID: "uid-c1", Message: strings.Repeat("x", 100<<10)})
			must(t, err)
			updates = append(updates, state.JobUpdate{ID: id, Change: func(j *api.Job) error { j.Phase = api.JobRunning; return nil }})
		}
		for i, o := range w.leader.UpdateJobs(ctx, updates) {
			if o.Err != nil {
				t.Errorf("job %d: %v", i, o.Err)
			}
		}
	})
}
