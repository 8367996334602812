package member

import (
	"testing"
	"testing/synctest"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/children"
)

// attempt is a run of job "j" of which nothing can be executed.
func attempt(n int) api.Job {
	return api.Job{ID: "j", Attempt: n, Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"/does/not/exist"}}}
}

func runID(n int) string {
	run := attempt(n)
	return run.RunID()
}

// earlier is jobs with an attempt of "j" that runs until the test closes its ended.
func earlier(t *testing.T, n int) (*jobs, *job) {
	t.Helper()
	cfg := Config{SpoolBytes: 1 << 10}
	cfg.User.Home = t.TempDir()
	j := newJobs(cfg, children.New())
	before := &job{attempt: n, state: JobState{ID: runID(n), Phase: api.JobRunning}, cancel: make(chan struct{}), ended: make(chan struct{})}
	j.known[before.state.ID], j.latest["j"] = before, before
	return j, before
}

func TestAnAttemptIsMadeOnceNothingOfTheEarlierOneRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, before := earlier(t, 0)
		j.set([]api.Job{attempt(1)})
		synctest.Wait()
		if !before.cancelled {
			t.Error("the earlier attempt is not asked to end")
		}
		if got := j.known[runID(1)].state.Phase; got != api.JobPending {
			t.Errorf("while the earlier attempt runs: %s, want pending", got)
		}
		close(before.ended)
		synctest.Wait()
		if got := j.known[runID(1)].state.Phase; got != api.JobFailed {
			t.Errorf("once it has ended: %s, want it tried, and failed", got)
		}
	})
}

func TestAnEarlierAttemptThatIsHeardOfLateIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, later := earlier(t, 1)
		j.set([]api.Job{attempt(0), attempt(1)})
		synctest.Wait()
		if got := j.known[runID(0)].state; got.Phase != api.JobCancelled || later.cancelled || j.latest["j"] != later {
			t.Errorf("the earlier attempt is %+v, the later one cancelled: %t; want the earlier one cancelled alone", got, later.cancelled)
		}
		close(later.ended)
	})
}

func TestALossIsToldToARunOncePerCount(t *testing.T) {
	j, run := earlier(t, 0)
	run.pid = 1 << 30 // nobody has it; that a signal is to be sent is seen by what is said of an unknown one
	wanted := attempt(0)
	wanted.FailureSignal = "NOPE"
	for _, step := range []struct {
		failures int
		told     bool
	}{{0, false}, {1, true}, {1, false}, {3, true}, {3, false}, {2, false}} {
		wanted.Failures, run.state.Message = step.failures, ""
		j.set([]api.Job{wanted})
		if told := run.state.Message != ""; told != step.told {
			t.Errorf("failures %d: told %t, want %t", step.failures, told, step.told)
		}
	}
}

func TestWhatAMemberSaysOfJobsThatAreNotItsOwnIsNotKept(t *testing.T) {
	s := &Server{jobs: map[string]api.Job{"j1": {ID: "j1"}}, reported: map[string]JobState{}}
	for _, id := range []string{"j1", "j2", "j3"} {
		s.note(JobState{ID: id, Phase: api.JobRunning})
	}
	if _, own := s.reported["j1"]; !own || len(s.reported) != 1 {
		t.Errorf("kept %+v, want j1 alone", s.reported)
	}
	s.note(JobState{ID: "j1", Phase: api.JobSucceeded})
	s.note(JobState{ID: "j1", Phase: api.JobRunning})
	if got := s.reported["j1"].Phase; got != api.JobSucceeded {
		t.Errorf("after its end j1 is %s, want succeeded", got)
	}
}
