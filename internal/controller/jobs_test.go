package controller

import (
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

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

func TestAJobThatEndsSoonIsWrittenOnlyAtItsEnd(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.cluster("a", 1, "n1")
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, MemberID: "ua.a-0.1"}))
	heard := func(phase api.JobPhase) api.JobPhase {
		l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: phase}}
		return l.mustPass().Job("j1").Phase
	}
	if phase := heard(api.JobRunning); phase != api.JobPending || l.lead.wakeAt.IsZero() || l.lead.wakeAt.Sub(l.now) > time.Second {
		t.Errorf("just heard to run: %s, planned again at %s; want it pending, and planned again soon after %s", phase, l.lead.wakeAt, l.now)
	}
	l.now = l.now.Add(time.Millisecond)
	if phase := heard(api.JobSucceeded); phase != api.JobSucceeded {
		t.Errorf("heard to have succeeded: %s", phase)
	}
	if len(l.lead.starts) > 0 {
		t.Errorf("left in memory: %v", l.lead.starts)
	}
}

func TestAJobThatGoesOnIsWrittenToRun(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	c := l.mustPass().Cluster("a")
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: c.UID(), Phase: api.JobPending, MemberID: only(t, c).ID}))
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: api.JobRunning}}
	l.mustPass()
	l.now = l.lead.wakeAt
	if phase := l.mustPass().Job("j1").Phase; phase != api.JobRunning || len(l.lead.starts) > 0 {
		t.Errorf("at the time that was asked for: %s, with %v left in memory; want it running", phase, l.lead.starts)
	}
}

func TestAPhaseOfAJobThatItsTableDoesNotHaveIsNotStored(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.cluster("a", 1, "n1")
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobPending, MemberID: "ua.a-0.1"}))
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: "resting"}}
	var illegal *lifecycle.IllegalTransition
	if _, err := l.pass(); !errors.As(err, &illegal) || illegal.To != "resting" {
		t.Errorf("the pass returns %v, want an IllegalTransition to \"resting\"", err)
	}
	if job, err := l.repo.Job(t.Context(), "j1"); err != nil || job.Phase != api.JobPending {
		t.Errorf("stored as %q (%v), want it left pending", job.Phase, err)
	}
}

func TestOnlyTheNodeOfTheMemberThatTookOverSpeaksOfItsJobs(t *testing.T) {
	old, next := &api.Assignment{ID: "a0", Node: "n1"}, &api.Assignment{ID: "a1", Node: "n2", From: "a0", Of: "a0"}
	c := &lifecycle.ClusterInput{Assignments: []lifecycle.ClusterAssignment{{Assignment: old}, {Assignment: next}}}
	if node := nodeOf(c, "a0"); node != "n1" {
		t.Errorf("while member a0 moves from n1 to n2, node %q speaks of its jobs, want n1", node)
	}
	next.Of, c.Assignments[0].Releasing = "", true
	if node := nodeOf(c, "a0"); node != "n2" {
		t.Errorf("after a1 on n2 took over from a0 on n1, node %q speaks of its jobs, want n2", node)
	}
}
