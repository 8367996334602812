package lifecycle

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// scaledDown is the cluster "a" of rank 0, whose rank 1 was released at a time; lost: it had died.
func scaledDown(at time.Time, lost bool) *ClusterInput {
	c := jobScene{lost: -1, phase: api.ClusterScaling}.cluster()
	c.Assignments[1].Releasing, c.Assignments[1].ReleasedAt = true, at
	if lost {
		c.Record.Lost = []api.LostMember{{Member: "a-1", Rank: 1, Assignment: "ua.a-1.1", Since: at}}
	}
	return c
}

func TestAJobThatFailsAfterItsClusterWasScaledDownSaysSo(t *testing.T) {
	code := func(n int) *int { return &n }
	running := api.Job{
		ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", StartedAt: &jobStart, DispatchedAt: &jobStart,
	}
	const because = "scaling down removed members while it ran: a-1"
	for _, tc := range []struct {
		name    string
		at      time.Time
		lost    bool
		code    int
		said    string
		message string
	}{
		{"a member was removed", jobLater, false, 205, "", because},
		{"a member was removed, and its own member gives another reason", jobLater, false, 137, "killed for its memory", "killed for its memory"},
		{"a member was removed, and it succeeded", jobLater, false, 0, "", ""},
		{"a member was removed before it began", jobStart.Add(-time.Second), false, 205, "", ""},
		{"a member died and was released", jobLater, true, 205, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := JobInput{Job: running, Cluster: scaledDown(tc.at, tc.lost), Now: jobLater.Add(time.Second)}
			in.Seen = &JobSeen{Phase: api.JobRunning, StartedAt: &jobStart}
			meanwhile := PlanJob(in).Next
			// The removed member is clean by the time the job's end is heard.
			in.Job, in.Cluster = meanwhile, jobScene{lost: -1, phase: api.ClusterReady}.cluster()
			in.Seen = &JobSeen{Phase: api.JobFailed, StartedAt: &jobStart, ExitCode: code(tc.code), Message: tc.said}
			if ended := PlanJob(in).Next; ended.Message != tc.message {
				t.Errorf("message %q, want %q; members removed: %q", ended.Message, tc.message, ended.RemovedMembers)
			}
		})
	}
}

func TestAMemberThatIsCleanOrOfADeletedClusterIsNotSaidToBeRemovedUnderAJob(t *testing.T) {
	job := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", DispatchedAt: &jobStart}
	clean, deleting := scaledDown(jobLater, false), scaledDown(jobLater, false)
	clean.Assignments[1].Clean = true
	deleting.Record.Phase = api.ClusterDeleting
	for name, c := range map[string]*ClusterInput{"clean": clean, "of a deleted cluster": deleting} {
		if got := PlanJob(JobInput{Job: job, Cluster: c, Now: jobLater}).Next.RemovedMembers; len(got) > 0 {
			t.Errorf("%s: %q are said to be removed, want none", name, got)
		}
	}
}
