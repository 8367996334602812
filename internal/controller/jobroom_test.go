package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// waitsForOthers is what a job's message is while its cluster's member has as many jobs as it may have.
const waitsForOthers = "waiting for other jobs of its cluster to end"

// submit stores so many jobs of cluster "a", each with this much text, one second after the other.
func (l *led) submit(first, count, text int) {
	l.t.Helper()
	for i := range count {
		l.view(l.repo.CreateJob(l.t.Context(), api.Job{
			ID: fmt.Sprintf("j%d", 9999-first-i), Cluster: "a", ClusterUID: "ua", Phase: api.JobPending,
			CreatedAt: l.now.Add(time.Duration(first+i) * time.Second), JobRequest: api.JobRequest{Command: []string{strings.Repeat("x", text)}},
		}))
	}
}

// given returns the jobs that a member has, by ID, and why the others wait.
func given(view *state.View) (atMember map[string]bool, why map[string]int) {
	atMember, why = map[string]bool{}, map[string]int{}
	for _, job := range view.Jobs {
		if job.Phase.Ended() {
			continue
		}
		if job.MemberID != "" {
			atMember[job.ID] = true
		} else {
			why[job.Message]++
		}
	}
	return atMember, why
}

func TestJobsBeyondWhatAMemberHasAtOnceWaitAndAreNotSent(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	l.mustPass()
	l.submit(0, lifecycle.JobsAtOnce+20, 10)
	l.mustPass()
	atMember, why := given(l.mustPass())
	if len(atMember) != lifecycle.JobsAtOnce || why[waitsForOthers] != 20 {
		t.Fatalf("%d jobs are at the member, and %v wait; want %d there and 20 waiting for them", len(atMember), why, lifecycle.JobsAtOnce)
	}
	if atMember[fmt.Sprintf("j%d", 9999-lifecycle.JobsAtOnce)] || !atMember["j9999"] {
		t.Error("a job went before one that was submitted earlier")
	}
	if sent := len(l.agents.desired["n1"].Jobs); sent != lifecycle.JobsAtOnce {
		t.Errorf("the node is sent %d jobs, want %d", sent, lifecycle.JobsAtOnce)
	}
	ended, _, err := l.repo.UpdateJob(l.t.Context(), "j9999", func(j *api.Job) error { j.Phase = api.JobSucceeded; return nil })
	if err != nil {
		t.Fatal(err)
	}
	l.until("the end of "+ended.ID, func(v *state.View) bool { return v.Job(ended.ID).Phase.Ended() })
	l.mustPass()
	view := l.mustPass()
	next := view.Job(fmt.Sprintf("j%d", 9999-lifecycle.JobsAtOnce))
	if next.MemberID == "" || next.Message != "" {
		t.Errorf("once one has ended, the next is %+v; want it at the member", next)
	}
	if sent := len(l.agents.desired["n1"].Jobs); sent != lifecycle.JobsAtOnce {
		t.Errorf("then the node is sent %d jobs, want %d", sent, lifecycle.JobsAtOnce)
	}
}

func TestTheTextOfJobsAtAMemberIsBounded(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	l.mustPass()
	const text = 64<<10 - 100 // some room is left beside as many as fit
	l.submit(0, lifecycle.JobTextAtOnce/text+2, text)
	l.submit(100, 1, 1)
	l.mustPass()
	atMember, why := given(l.mustPass())
	if len(atMember) != lifecycle.JobTextAtOnce/text || why[waitsForOthers] != 3 {
		t.Errorf("%d jobs are at the member, %v wait; want %d there, and a small one not before two large ones", len(atMember), why, lifecycle.JobTextAtOnce/text)
	}
}
