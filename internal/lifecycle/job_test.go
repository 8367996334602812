package lifecycle

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// jobScene is a cluster "a" of ranks 0 and 1, and what became of it.
type jobScene struct {
	// lost is the rank that was lost, -1 for none; replaced tells whether it has a replacement.
	lost     int
	replaced bool
	phase    api.ClusterPhase
	expired  bool
}

var (
	jobStart = time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
	jobLater = jobStart.Add(time.Minute)
)

// cluster is what decisions about the scene's cluster depend on; its members have what the others' files name.
func (sc jobScene) cluster() *ClusterInput {
	c := &ClusterInput{
		Record: &api.ClusterRecord{Name: "a", UID: "ua", Generation: 1, Phase: sc.phase}, Observed: map[string]Observation{},
		Nodes: map[string]NodeState{"n1": {Phase: api.NodeReady, Reported: true}},
	}
	if sc.expired {
		c.Record.ExpiredAt = &jobLater
	}
	for rank, member := range []string{"a-0", "a-1"} {
		a := &api.Assignment{ID: "ua." + member + ".1", ClusterUID: "ua", Member: member, Rank: rank, Node: "n1", TakenAt: jobStart.Add(-time.Hour)}
		if rank == sc.lost {
			if !sc.replaced {
				c.Record.Lost = append(c.Record.Lost, api.LostMember{Member: member, Rank: rank, Assignment: a.ID, Since: jobLater})
				continue
			}
			a.ID, a.Replaces, a.TakenAt = "ua."+member+".2", a.ID, jobLater
		}
		c.Assignments = append(c.Assignments, ClusterAssignment{Assignment: a})
		c.Observed[a.ID] = Observation{Phase: api.MemberReady, Current: true, Since: jobStart}
	}
	return c
}

func TestAJobFollowsWhatBecomesOfItsMembers(t *testing.T) {
	whole := jobScene{lost: -1, phase: api.ClusterReady}
	running := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", StartedAt: &jobStart}
	requeue := running
	requeue.Requeue = true
	ending := requeue
	ending.Requeueing, ending.Failures, ending.LostMembers = true, 1, []string{"ua.a-1.1"}
	waiting := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending}
	second := waiting
	second.Attempt = 1
	cancelled := second
	cancelled.CancelRequested = true
	limited, stopped := running, running
	limited.CancelRequested, limited.Message = true, limitPassed
	stopped.CancelRequested = true
	dispatched, ahead, behind := jobStart.Add(30*time.Second), jobLater.Add(time.Hour), jobStart.Add(-time.Hour)
	aheadOfUs, behindUs := running, requeue
	aheadOfUs.DispatchedAt, aheadOfUs.StartedAt = &dispatched, &ahead
	afterwards := jobLater.Add(time.Second)
	behindUs.DispatchedAt, behindUs.StartedAt = &afterwards, &behind
	told := running
	told.Failures, told.LostMembers = 1, []string{"ua.a-1.1"}

	for _, tc := range []struct {
		name  string
		scene jobScene
		job   api.Job
		seen  api.JobPhase
		want  func(api.Job) bool
		event string
	}{
		{"a new one is given to rank 0", whole, waiting, "", func(j api.Job) bool {
			return j.MemberID == "ua.a-0.1" && j.Phase == api.JobPending && j.DispatchedAt != nil
		}, ""},
		{"nothing changes while it runs", whole, running, api.JobRunning, func(j api.Job) bool { return j.Phase == api.JobRunning && j.Failures == 0 }, ""},
		{
			"a lost member is signaled to it",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			running, api.JobRunning,
			func(j api.Job) bool { return j.Failures == 1 && !j.Requeueing && j.Phase == api.JobRunning }, EventJobTold,
		},
		{
			"a lost member that was replaced between two plans is signaled to it",
			jobScene{lost: 1, replaced: true, phase: api.ClusterReady},
			running,
			api.JobRunning, func(j api.Job) bool { return j.Failures == 1 }, EventJobTold,
		},
		{
			"a lost member is signaled to it though its machine's clock is ahead",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			aheadOfUs, api.JobRunning,
			func(j api.Job) bool { return j.Failures == 1 }, EventJobTold,
		},
		{
			"it is not ended for a loss from before it though its machine's clock is behind",
			jobScene{lost: 1, replaced: true, phase: api.ClusterReady},
			behindUs, api.JobRunning, func(j api.Job) bool { return !j.Requeueing && len(j.LostMembers) == 0 }, "",
		},
		{"a lost member is signaled to it once", jobScene{lost: 1, phase: api.ClusterDegraded}, told, api.JobRunning, func(j api.Job) bool { return j.Failures == 1 }, ""},
		{
			"it is ended to run again when it asked to",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			requeue, api.JobRunning,
			func(j api.Job) bool { return j.Requeueing && j.Failures == 0 && j.Attempt == 0 && j.MemberID != "" }, EventJobTold,
		},
		{
			"the next attempt waits once the first has ended",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			ending, api.JobCancelled,
			func(j api.Job) bool {
				return j.Attempt == 1 && j.MemberID == "" && j.Phase == api.JobPending && !j.Requeueing && j.Failures == 0
			}, EventJobRequeued,
		},
		{
			"one that was to run again and succeeded is done",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			ending, api.JobSucceeded,
			func(j api.Job) bool { return j.Phase == api.JobSucceeded && j.Attempt == 0 }, "",
		},
		{"the next attempt waits for the cluster", jobScene{lost: 1, phase: api.ClusterDegraded}, second, "", func(j api.Job) bool { return j.MemberID == "" }, ""},
		{"the next attempt runs when the cluster is ready", whole, second, "", func(j api.Job) bool { return j.MemberID == "ua.a-0.1" }, ""},
		{"a cancelled one does not run again", whole, cancelled, "", func(j api.Job) bool { return j.Phase == api.JobCancelled && j.EndedAt != nil }, ""},
		{
			"it is lost with its own member",
			jobScene{lost: 0, phase: api.ClusterDegraded},
			running, "",
			func(j api.Job) bool { return j.Phase == api.JobLost && j.EndedAt != nil }, EventJobLost,
		},
		{
			"it is lost with its own member though that was replaced",
			jobScene{lost: 0, replaced: true, phase: api.ClusterReady},
			running, "",
			func(j api.Job) bool { return j.Phase == api.JobLost }, EventJobLost,
		},
		{
			"it runs again after its own member was lost when it asked to",
			jobScene{lost: 0, phase: api.ClusterDegraded},
			requeue, "",
			func(j api.Job) bool { return j.Phase == api.JobPending && j.Attempt == 1 && j.MemberID == "" }, EventJobRequeued,
		},
		{
			"it is asked to end when the time limit has passed",
			jobScene{lost: -1, phase: api.ClusterReady, expired: true},
			running, api.JobRunning,
			func(j api.Job) bool {
				return j.CancelRequested && j.GraceSeconds == jobGraceSeconds && strings.Contains(j.Message, "time limit")
			}, "",
		},
		{
			"it was ended by the time limit, whatever its member takes that for",
			jobScene{lost: -1, phase: api.ClusterReady, expired: true},
			limited, api.JobCancelled,
			func(j api.Job) bool { return j.Phase == api.JobCancelled && j.Message == limitPassed }, "",
		},
		{
			"it is known why it is to end until it has ended",
			jobScene{lost: -1, phase: api.ClusterReady, expired: true},
			limited, api.JobRunning,
			func(j api.Job) bool { return j.Phase == api.JobRunning && j.Message == limitPassed }, "",
		},
		{
			"one that failed by itself while it was to end keeps its own message",
			jobScene{lost: -1, phase: api.ClusterReady, expired: true},
			limited, api.JobFailed,
			func(j api.Job) bool { return j.Phase == api.JobFailed && j.Message == "said by the member" }, "",
		},
		{
			"it was ended by its user before the time limit passed",
			jobScene{lost: -1, phase: api.ClusterReady, expired: true},
			stopped, api.JobCancelled,
			func(j api.Job) bool { return j.Phase == api.JobCancelled && j.Message == "said by the member" }, "",
		},
		{
			"it runs on while a deleted cluster still holds its member",
			jobScene{lost: -1, phase: api.ClusterDeleting},
			running, api.JobRunning,
			func(j api.Job) bool { return j.Phase == api.JobRunning }, "",
		},
		{
			"a waiting one is lost with its cluster",
			jobScene{lost: -1, phase: api.ClusterDeleting},
			waiting, "",
			func(j api.Job) bool { return j.Phase == api.JobLost }, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := JobInput{Job: tc.job, Cluster: tc.scene.cluster(), Now: jobLater.Add(time.Second)}
			if tc.seen != "" {
				in.Seen = &JobSeen{Phase: tc.seen, StartedAt: cmp.Or(tc.job.StartedAt, &jobStart)}
				if tc.seen.Ended() {
					in.Seen.Message = "said by the member"
				}
			}
			plan := PlanJob(in)
			if !tc.want(plan.Next) {
				t.Errorf("scene %+v, seen %q:\n got %+v", tc.scene, tc.seen, plan.Next)
			}
			if err := Jobs().CheckChange(tc.job.Phase, plan.Next.Phase); err != nil {
				t.Error(err)
			}
			event := ""
			if len(plan.Events) > 0 {
				event = plan.Events[0].Reason
			}
			if event != tc.event {
				t.Errorf("event: got %q, want %q", event, tc.event)
			}
			again := PlanJob(JobInput{Job: plan.Next, Cluster: in.Cluster, Now: in.Now})
			if tc.event == EventJobTold && (len(again.Events) > 0 || again.Next.Failures != plan.Next.Failures) {
				t.Errorf("planned again it is signaled again: %+v", again.Events)
			}
		})
	}
}

func TestAJobWhoseClusterIsGoneIsLost(t *testing.T) {
	got := PlanJob(JobInput{Job: api.Job{ID: "j", Phase: api.JobRunning, JobRequest: api.JobRequest{Requeue: true}}, Now: jobLater}).Next
	if got.Phase != api.JobLost || got.EndedAt == nil {
		t.Errorf("got %+v, want it lost", got)
	}
}

func TestASpareCarriesOutNoJob(t *testing.T) {
	c := jobScene{lost: -1, phase: api.ClusterReady}.cluster()
	spare := ClusterAssignment{Assignment: &api.Assignment{ID: "ua.a-spare-0.1", ClusterUID: "ua", Member: "a-spare-0", Rank: NoRank, Node: "n1", Spare: true}}
	c.Assignments = []ClusterAssignment{spare, c.Assignments[1], c.Assignments[0]}
	plan := PlanJob(JobInput{Job: api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending}, Cluster: c, Now: jobLater})
	if plan.Next.MemberID != "ua.a-0.1" {
		t.Errorf("given to %q, want the member of rank 0", plan.Next.MemberID)
	}
}

func TestTheNextAttemptWaitsUntilAClusterThatGrowsIsWhole(t *testing.T) {
	job := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, Attempt: 1}
	for name, test := range map[string]struct {
		given func(*ClusterInput)
		want  string
	}{
		"every member is ready":        {func(*ClusterInput) {}, "ua.a-0.1"},
		"a member has stale files":     {func(c *ClusterInput) { c.Observed["ua.a-1.1"] = Observation{Phase: api.MemberReady} }, ""},
		"a member is starting":         {func(c *ClusterInput) { c.Observed["ua.a-1.1"] = Observation{Phase: api.MemberStarting, Current: true} }, ""},
		"a member is not heard of":     {func(c *ClusterInput) { delete(c.Observed, "ua.a-1.1") }, ""},
		"a node is not reporting":      {func(c *ClusterInput) { c.Nodes["n1"] = NodeState{Phase: api.NodeUnknown} }, ""},
		"a member is lost":             {func(c *ClusterInput) { c.Record.Lost = []api.LostMember{{Member: "a-2"}} }, ""},
		"a member is released":         {func(c *ClusterInput) { c.Assignments[1].Releasing = true; delete(c.Observed, "ua.a-1.1") }, "ua.a-0.1"},
		"a spare is not heard of":      {func(c *ClusterInput) { c.Assignments[1].Spare = true; delete(c.Observed, "ua.a-1.1") }, "ua.a-0.1"},
		"the cluster is degraded":      {func(c *ClusterInput) { c.Record.Phase = api.ClusterDegraded }, ""},
		"the member has too many jobs": {func(*ClusterInput) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := jobScene{lost: -1, phase: api.ClusterScaling}.cluster()
			test.given(c)
			plan := PlanJob(JobInput{Job: job, Cluster: c, Crowded: strings.Contains(name, "too many jobs"), Now: jobLater})
			if plan.Next.MemberID != test.want || plan.Next.Phase != api.JobPending {
				t.Errorf("given to %q as %s, want %q", plan.Next.MemberID, plan.Next.Phase, test.want)
			}
		})
	}
}

func TestTheEndOfAJobWaitsForItsOutputWhileItsMemberIsThere(t *testing.T) {
	running := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", StartedAt: &jobStart}
	in := JobInput{
		Job: running, Cluster: jobScene{lost: -1, phase: api.ClusterReady}.cluster(), LogBytes: 20, Now: jobLater,
		Seen: &JobSeen{Phase: api.JobSucceeded, StartedAt: &jobStart, LogBytes: 50, DiscardedBytes: 7},
	}
	in.Quiet = LogPatience - 1
	if plan := PlanJob(in); plan.Next.Phase != api.JobRunning || !plan.WakeAt.Equal(jobLater.Add(logPause)) {
		t.Errorf("just before %s without output: %s, planned again at %s; want it running, and planned again after %s", LogPatience, plan.Next.Phase, plan.WakeAt, logPause)
	}
	in.Quiet = LogPatience
	if plan := PlanJob(in); plan.Next.Phase != api.JobSucceeded || plan.Next.DiscardedBytes != 37 || plan.Next.LogBytes != 20 || !plan.WakeAt.IsZero() {
		t.Errorf("after %s without output: %+v; want it succeeded, and what never arrived counted", LogPatience, plan.Next)
	}
	in.Quiet, in.LogBytes = 0, 50
	if plan := PlanJob(in); plan.Next.Phase != api.JobSucceeded || plan.Next.DiscardedBytes != 7 {
		t.Errorf("with all of its output: %+v; want it succeeded", plan.Next)
	}
	in.LogBytes, in.Cluster = 20, jobScene{lost: 0, phase: api.ClusterDegraded}.cluster()
	if plan := PlanJob(in); plan.Next.Phase != api.JobSucceeded {
		t.Errorf("its member is gone: %s; want its end", plan.Next.Phase)
	}
}

func TestTheStartOfAJobIsWrittenOnceItHasRunForAWhile(t *testing.T) {
	in := JobInput{
		Job:     api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, MemberID: "ua.a-0.1"},
		Cluster: jobScene{lost: -1, phase: api.ClusterReady}.cluster(), Now: jobLater,
		Seen: &JobSeen{Phase: api.JobRunning, StartedAt: &jobStart}, Running: startPause - 1,
	}
	if plan := PlanJob(in); plan.Next.Phase != api.JobPending || !plan.WakeAt.Equal(jobLater.Add(1)) {
		t.Errorf("heard to run for %s: %s, planned again at %s; want it pending, and planned again 1 ns later", in.Running, plan.Next.Phase, plan.WakeAt)
	}
	in.Running = startPause
	if plan := PlanJob(in); plan.Next.Phase != api.JobRunning || !plan.WakeAt.IsZero() {
		t.Errorf("heard to run for %s: %s, planned again at %s; want it running", in.Running, plan.Next.Phase, plan.WakeAt)
	}
}

// Each row is one transition of the table; the test compares the rows with the table.
func TestEveryTransitionOfJobsIsPlanned(t *testing.T) {
	there := jobScene{lost: -1, phase: api.ClusterReady}
	at := func(phase api.JobPhase, change func(*api.Job)) api.Job {
		job := api.Job{ID: "j", Cluster: "a", ClusterUID: "ua", Phase: phase, MemberID: "ua.a-0.1"}
		if change != nil {
			change(&job)
		}
		return job
	}
	unsent := at(api.JobPending, func(j *api.Job) { j.MemberID, j.CancelRequested = "", true })
	requeue := at(api.JobRunning, func(j *api.Job) { j.Requeue = true })
	planned := map[[2]api.JobPhase]bool{}
	for _, tc := range []struct {
		name  string
		scene jobScene
		job   api.Job
		seen  api.JobPhase
		to    api.JobPhase
	}{
		{"its member reports that it runs", there, at(api.JobPending, nil), api.JobRunning, api.JobRunning},
		{"its member was lost, and it asked to run again", jobScene{lost: 0, phase: api.ClusterDegraded}, requeue, "", api.JobPending},
		{"it succeeded before its start was reported", there, at(api.JobPending, nil), api.JobSucceeded, api.JobSucceeded},
		{"it succeeded", there, at(api.JobRunning, nil), api.JobSucceeded, api.JobSucceeded},
		{"it could not be started", there, at(api.JobPending, nil), api.JobFailed, api.JobFailed},
		{"it failed", there, at(api.JobRunning, nil), api.JobFailed, api.JobFailed},
		{"it was cancelled before a member had it", there, unsent, "", api.JobCancelled},
		{"it was cancelled while it ran", there, at(api.JobRunning, nil), api.JobCancelled, api.JobCancelled},
		{"its member went before it ran", jobScene{lost: 0, phase: api.ClusterDegraded}, at(api.JobPending, nil), "", api.JobLost},
		{"its member went while it ran", jobScene{lost: 0, phase: api.ClusterDegraded}, at(api.JobRunning, nil), "", api.JobLost},
		{"its member reports that it lost the job", there, at(api.JobRunning, nil), api.JobLost, api.JobLost},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := JobInput{Job: tc.job, Cluster: tc.scene.cluster(), Running: startPause, Now: jobLater}
			if tc.seen != "" {
				in.Seen = &JobSeen{Phase: tc.seen, StartedAt: &jobStart}
			}
			if got := PlanJob(in).Next.Phase; got != tc.to {
				t.Errorf("from %s: got %s, want %s", tc.job.Phase, got, tc.to)
			}
			planned[[2]api.JobPhase{tc.job.Phase, tc.to}] = true
		})
	}
	sameTransitions(t, Jobs(), planned)
}

// sameTransitions checks that a table has the planned transitions and no others, but for those from "does not exist yet" and to "gone".
func sameTransitions[P ~string](t *testing.T, m Machine[P], planned map[[2]P]bool) {
	t.Helper()
	for _, tr := range m.Transitions {
		for _, from := range tr.From {
			if from != "" && tr.To != "" && !planned[[2]P{from, tr.To}] {
				t.Errorf("%s: %q -> %q is in the table, and no row plans it", m.Name, from, tr.To)
			}
		}
	}
	for change := range planned {
		if err := m.Check(change[0], change[1]); err != nil {
			t.Error(err)
		}
	}
}
