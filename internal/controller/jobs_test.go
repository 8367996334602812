package controller

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
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

func (sc jobScene) cluster(t *testing.T) *state.Cluster {
	t.Helper()
	s := newStored(t)
	view := s.view(s.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "a", UID: "ua"}))
	network, err := placement.DefaultPool.Network(1, false)
	if err != nil {
		t.Fatal(err)
	}
	record := api.ClusterRecord{Name: "a", UID: "ua", Generation: 1, Phase: sc.phase, Network: network}
	if sc.expired {
		record.ExpiredAt = &jobLater
	}
	var held []api.Assignment
	for rank, member := range []string{"a-0", "a-1"} {
		a := api.Assignment{ID: "ua." + member + ".1", ClusterUID: "ua", Member: member, Rank: rank, Node: "n1", TakenAt: jobStart.Add(-time.Hour)}
		if rank == sc.lost {
			if !sc.replaced {
				record.Lost = append(record.Lost, api.LostMember{Member: member, Rank: rank, Assignment: a.ID, Since: jobLater})
				continue
			}
			a.ID, a.Replaces, a.TakenAt = "ua."+member+".2", a.ID, jobLater
		}
		held = append(held, a)
	}
	return s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{
		Record: record, Add: []state.Batch{{Assignments: held}},
	})).Cluster("a")
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
			"it is told of a lost member",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			running, api.JobRunning,
			func(j api.Job) bool { return j.Failures == 1 && !j.Requeueing && j.Phase == api.JobRunning }, eventJobTold,
		},
		{
			"it is told of a lost member that was replaced before anybody looked",
			jobScene{lost: 1, replaced: true, phase: api.ClusterReady},
			running,
			api.JobRunning, func(j api.Job) bool { return j.Failures == 1 }, eventJobTold,
		},
		{
			"it is told of a lost member though its machine's clock is ahead",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			aheadOfUs, api.JobRunning,
			func(j api.Job) bool { return j.Failures == 1 }, eventJobTold,
		},
		{
			"it is not ended for a loss from before it though its machine's clock is behind",
			jobScene{lost: 1, replaced: true, phase: api.ClusterReady},
			behindUs, api.JobRunning, func(j api.Job) bool { return !j.Requeueing && len(j.LostMembers) == 0 }, "",
		},
		{"it is told once", jobScene{lost: 1, phase: api.ClusterDegraded}, told, api.JobRunning, func(j api.Job) bool { return j.Failures == 1 }, ""},
		{
			"it is ended to run again when it asked to",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			requeue, api.JobRunning,
			func(j api.Job) bool { return j.Requeueing && j.Failures == 0 && j.Attempt == 0 && j.MemberID != "" }, eventJobTold,
		},
		{
			"the next attempt waits once the first has ended",
			jobScene{lost: 1, phase: api.ClusterDegraded},
			ending, api.JobCancelled,
			func(j api.Job) bool {
				return j.Attempt == 1 && j.MemberID == "" && j.Phase == api.JobPending && !j.Requeueing && j.Failures == 0
			}, eventJobRequeued,
		},
		{
			"one that succeeded all the same is done",
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
			func(j api.Job) bool { return j.Phase == api.JobLost && j.EndedAt != nil }, eventJobLost,
		},
		{
			"it is lost with its own member though that was replaced",
			jobScene{lost: 0, replaced: true, phase: api.ClusterReady},
			running, "",
			func(j api.Job) bool { return j.Phase == api.JobLost }, eventJobLost,
		},
		{
			"it runs again after its own member was lost when it asked to",
			jobScene{lost: 0, phase: api.ClusterDegraded},
			requeue, "",
			func(j api.Job) bool { return j.Phase == api.JobPending && j.Attempt == 1 && j.MemberID == "" }, eventJobRequeued,
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
			"one that failed while it was to end tells of itself",
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
			in := jobInput{job: tc.job, cluster: tc.scene.cluster(t), now: jobLater.Add(time.Second)}
			if tc.seen != "" {
				in.heard, in.seen = true, agentstream.JobObserved{ID: tc.job.RunID(), Phase: tc.seen, StartedAt: cmp.Or(tc.job.StartedAt, &jobStart)}
				if tc.seen.Ended() {
					in.seen.Message = "said by the member"
				}
			}
			got, events := planJob(in)
			if !tc.want(got) {
				t.Errorf("scene %+v, seen %q:\n got %+v", tc.scene, tc.seen, got)
			}
			event := ""
			if len(events) > 0 {
				event = events[0].Reason
			}
			if event != tc.event {
				t.Errorf("event: got %q, want %q", event, tc.event)
			}
			again, more := planJob(jobInput{job: got, cluster: in.cluster, now: in.now})
			if tc.event == eventJobTold && (len(more) > 0 || again.Failures != got.Failures) {
				t.Errorf("planned again it is told again: %+v", more)
			}
		})
	}
}

func TestAJobWhoseClusterIsGoneIsLost(t *testing.T) {
	got, _ := planJob(jobInput{job: api.Job{ID: "j", Phase: api.JobRunning, JobRequest: api.JobRequest{Requeue: true}}, now: jobLater})
	if got.Phase != api.JobLost || got.EndedAt == nil {
		t.Errorf("got %+v, want it lost", got)
	}
}

func TestAJobThatAnotherLeaderGaveToAMemberIsGivenToNoSecondOne(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.cluster("a", 1, "n1")
	view := l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending}))
	_, revision, err := l.repo.UpdateJob(t.Context(), "j1", func(j *api.Job) error {
		j.MemberID, j.CancelRequested = "ua.a-0.7", true
		return nil
	})
	l.view(revision, err)
	// This leader looked before, and does not know yet that it is deposed.
	if err := l.lead.newPass(view).jobs(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := l.repo.Job(t.Context(), "j1"); err != nil || got.MemberID != "ua.a-0.7" {
		t.Errorf("it is given to %q (%v), want it left to ua.a-0.7", got.MemberID, err)
	}
}

func TestAJobRunsAgainWhenItsClusterIsWholeThoughItWaitsToGrow(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	a := only(t, l.mustPass().Cluster("a"))
	l.agents.members[a.ID] = monitor.MemberState{Phase: api.MemberReady, Current: true, Since: l.now}
	l.mustPass()
	_, revision, err := l.repo.UpdateIntent(t.Context(), "a", "ua", func(in *api.ClusterIntent) error {
		in.Spec.Groups[0].Size = 2
		return nil
	})
	l.view(revision, err)
	l.mustPass()
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, Attempt: 1}))
	l.agents.members[a.ID] = monitor.MemberState{Phase: api.MemberReady, Since: l.now}
	view := l.mustPass()
	if phase := view.Cluster("a").Record.Phase; phase != api.ClusterScaling || view.Job("j1").MemberID != "" {
		t.Fatalf("the cluster is %s, and the job with %q; want it scaling, and the job to wait for current files", phase, view.Job("j1").MemberID)
	}
	l.agents.members[a.ID] = monitor.MemberState{Phase: api.MemberReady, Current: true, Since: l.now}
	if view = l.mustPass(); view.Job("j1").MemberID != a.ID {
		t.Errorf("the job is with %q, want %s", view.Job("j1").MemberID, a.ID)
	}
}
