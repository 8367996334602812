package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAClusterThatWaitsToGrowIsNotPassedByThoseWhoCameLater(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 3)
	l.want("grows")
	grows := only(t, l.mustPass().Cluster("grows"))
	l.want("x") // holds what it waits for
	l.agents.members[grows.ID] = monitor.MemberState{Phase: api.MemberReady, Current: true, Since: l.now}
	l.mustPass()
	l.mustPass()
	_, revision, err := l.repo.UpdateIntent(t.Context(), "grows", "ugrows", func(in *api.ClusterIntent) error {
		in.Spec.Groups[0].Size, in.ScaledAt = 3, &l.now
		return nil
	})
	l.view(revision, err)
	l.mustPass()
	l.mustPass()
	l.now = l.now.Add(time.Second)
	l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
		Name: "later", UID: "ulater", CreatedAt: l.now, Spec: api.ClusterSpec{Queue: true, Groups: []api.Group{{
			Name: "later", Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	}))
	for range 3 {
		l.mustPass()
	}
	view := l.mustPass()
	if phase := view.Cluster("grows").Record.Phase; phase != api.ClusterScaling {
		t.Fatalf("the one that grows is %s, want scaling", phase)
	}
	if later := view.Cluster("later").Record; later == nil || later.Phase != api.ClusterQueued {
		t.Errorf("the later one: got %+v, want it queued: it would take what the one before waits for", later)
	}
}

func TestThoseWhoGetRoomFirstAreNotHeldUpByThoseWhoGetItLast(t *testing.T) {
	l := newLed(t, memory.New())
	const clusters = 6 * answersTogether
	l.node("n1", clusters)
	var view *state.View
	for i := range clusters {
		view = l.want(fmt.Sprint("c", i))
	}
	l.lead.cfg.Now = func() time.Time { l.now = l.now.Add(admitFor / 3); return l.now } // each commit takes a while
	placed := 0
	for passes := 1; placed < clusters; passes++ {
		view = l.mustPass()
		before := placed
		placed = 0
		for _, c := range view.Clusters {
			if c.Record != nil {
				placed++
			}
		}
		if placed-before > 4*answersTogether || placed == before {
			t.Fatalf("pass %d placed %d, want some, and not those who would take more than %s", passes, placed-before, admitFor)
		}
	}
	for _, c := range view.Clusters {
		if c.Record.Phase != api.ClusterStarting {
			t.Errorf("%s is %s, want starting", c.Name(), c.Record.Phase)
		}
	}
}
