package lifecycle

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// movedAway is the cluster "a" whose rank 1 moved to another node at a time; current: all members have the files that name its new identity.
func movedAway(at time.Time, current bool) *ClusterInput {
	c := jobScene{lost: -1, phase: api.ClusterReady}.cluster()
	was := c.Assignments[1]
	next := *was.Assignment
	next.ID, next.From, next.Live, next.Node, next.TakenAt = "ua.a-1.2", was.ID, true, "n2", at
	c.Assignments[1].Releasing, c.Assignments[1].ReleasedAt = true, at
	c.Assignments = append(c.Assignments, ClusterAssignment{Assignment: &next})
	c.Nodes["n2"] = NodeState{Phase: api.NodeReady, Reported: true}
	c.Observed[next.ID] = Observation{Phase: api.MemberReady, Current: true, Since: at}
	c.Observed["ua.a-0.1"] = Observation{Phase: api.MemberReady, Current: current, Since: jobStart}
	return c
}

func TestAJobWaitsUntilTheFilesNameAMemberThatMoved(t *testing.T) {
	pending := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending}
	for _, tc := range []struct {
		name    string
		current bool
		after   time.Duration
		runs    bool
	}{
		{"rank 0 lacks the files that name the moved member", false, time.Second, false},
		{"all members have the files", true, time.Second, true},
		{"the grace of an arrival has passed without the files", false, arrivalGrace, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan := PlanJob(JobInput{Job: pending, Cluster: movedAway(jobLater, tc.current), Now: jobLater.Add(tc.after)})
			if runs := plan.Next.MemberID != ""; runs != tc.runs {
				t.Fatalf("the job is given to %q, want it given to a member: %v", plan.Next.MemberID, tc.runs)
			}
			if want := jobLater.Add(arrivalGrace); !tc.runs && !plan.WakeAt.Equal(want) {
				t.Errorf("the job is planned again at %s, want %s", plan.WakeAt, want)
			}
		})
	}
}

func TestAMemberThatMovedIsNotReportedAsRemovedByScalingDown(t *testing.T) {
	running := api.Job{
		ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", StartedAt: &jobStart, DispatchedAt: &jobStart,
	}
	once := movedAway(jobLater, true)
	twice := movedAway(jobLater, true)
	last := *twice.Assignments[2].Assignment
	last.ID, last.From, last.Node = "ua.a-1.3", "ua.a-1.2", "n1"
	twice.Assignments[2].Releasing, twice.Assignments[2].ReleasedAt = true, jobLater
	twice.Assignments = append(twice.Assignments, ClusterAssignment{Assignment: &last})
	for name, c := range map[string]*ClusterInput{"moved once": once, "moved twice": twice} {
		if got := PlanJob(JobInput{Job: running, Cluster: c, Now: jobLater.Add(time.Second)}).Next.RemovedMembers; len(got) > 0 {
			t.Errorf("%s: %q are reported as removed, want none", name, got)
		}
	}
}
