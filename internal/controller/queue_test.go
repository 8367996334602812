package controller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func TestWhatCannotBePlacedYetIsPlacedWhenThereIsRoom(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.mustPass()
	l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
		Name: "b", UID: "ub", CreatedAt: l.now, Spec: api.ClusterSpec{Queue: true, Groups: []api.Group{{
			Name: "b", Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	}))
	view := l.mustPass()
	if phase := view.Cluster("b").Record.Phase; phase != api.ClusterQueued {
		t.Fatalf("b is %s, want queued", phase)
	}
	written := func() int64 { // also what no view has yet
		all, err := l.repo.Store().List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		return all.Revision
	}
	before := written()
	view = l.mustPass()
	if after := written(); after != before {
		t.Errorf("a pass in which nothing changed wrote revisions %d to %d", before+1, after)
	}
	a := only(t, view.Cluster("a"))
	_, revision, err := l.repo.RequestDelete(t.Context(), "a", l.now)
	l.view(revision, err)
	l.mustPass()
	l.agents.clean["n1"] = []string{a.ID}
	for range 3 {
		view = l.mustPass()
	}
	if phase := view.Cluster("b").Record.Phase; phase != api.ClusterStarting {
		t.Errorf("b is %s once a is gone, want starting", phase)
	}
}

func TestWhoComesToTheFrontOfTheQueueAsUseGrowsIsPlacedThoughNothingElseChanges(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.view(l.repo.CreateProject(t.Context(), api.Project{Name: "lab", Shares: 1}))
	ask := func(project, name string, size int) {
		l.now = l.now.Add(time.Second)
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: tenancy.FullName(project, name), UID: "u" + name, Project: project, CreatedAt: l.now, Spec: api.ClusterSpec{
				Queue: true, Groups: []api.Group{{
					Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
				}},
			},
		}))
	}
	ask("lab", "past", 1)
	past := only(t, l.mustPass().Cluster("lab.past"))
	l.now = l.now.Add(time.Hour)
	_, revision, err := l.repo.RequestDelete(t.Context(), "lab.past", l.now)
	l.view(revision, err)
	l.mustPass()
	l.agents.clean["n1"] = []string{past.ID}
	ask("", "runs", 1)
	ask("", "large", 2)
	ask("lab", "small", 1)
	var view *state.View
	for range 3 {
		view = l.mustPass()
	}
	if phase := view.Cluster("lab.small").Record.Phase; phase != api.ClusterQueued {
		t.Fatalf("behind one that waits for both cores it is %s, want queued", phase)
	}
	// By now the other project has used more than its own.
	l.now = l.now.Add(3 * time.Hour)
	if view = l.mustPass(); view.Cluster("lab.small").Record.Phase != api.ClusterStarting {
		t.Errorf("first in the queue, with room, it is %+v; want it starting", view.Cluster("lab.small").Record)
	}
	if l.lead.wakeAt.IsZero() || l.lead.wakeAt.After(l.now.Add(answerHolds)) {
		t.Errorf("while others wait the next look is at %s, want one within %s", l.lead.wakeAt, answerHolds)
	}
}

func TestOnlyTheFrontOfTheQueueIsWrittenAnewWhenWhatBindsChanges(t *testing.T) {
	const behind = 3 * front
	l := newLed(t, memory.New())
	l.node("n1", 4)
	ask := func(name string, size int) {
		l.now = l.now.Add(time.Second)
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Queue: true, Groups: []api.Group{{
				Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
			}}},
		}))
	}
	ask("x", 1)
	x := only(t, l.mustPass().Cluster("x"))
	ask("y", 3)
	l.mustPass()
	ask("large", 4)
	for i := range behind {
		ask(fmt.Sprintf("small%03d", i), 1)
	}
	view := l.mustPass()
	_, revision, err := l.repo.RequestDelete(t.Context(), "x", l.now)
	before := l.view(revision, err)
	l.mustPass()
	l.agents.clean["n1"] = []string{x.ID}
	for range 3 {
		view = l.mustPass()
	}
	written, waits := 0, 0
	for _, c := range view.Clusters {
		was := before.Cluster(c.Name())
		if strings.HasPrefix(c.Name(), "small") && c.Revision != was.Revision {
			written++
		}
		if c.Record.Phase == api.ClusterQueued {
			waits++
		}
	}
	if waits != behind+1 {
		t.Fatalf("%d wait, want %d", waits, behind+1)
	}
	if written == 0 || written > front {
		t.Errorf("now that there is a core which would delay the first in the queue, %d records are written anew; want some, at most %d", written, front)
	}
}

func TestWhoDoesNotWaitInTheQueueIsRefusedWhenAllNetworksAreInUse(t *testing.T) {
	for queue, want := range map[bool]api.ClusterPhase{false: api.ClusterRefused, true: api.ClusterQueued} {
		l := newLed(t, memory.New())
		pool, err := placement.NewPool(netip.MustParsePrefix("10.0.0.0/19"))
		if err != nil {
			t.Fatal(err)
		}
		l.lead.cfg.Pool = pool
		const room = 4 // three small subnets and a large one
		l.node("n1", room+1)
		for i := range room {
			l.want(fmt.Sprint("a", i))
		}
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: "b", UID: "ub", CreatedAt: l.now.Add(time.Second), Spec: api.ClusterSpec{Queue: queue, Groups: []api.Group{{
				Name: "b", Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
			}}},
		}))
		if b := l.mustPass().Cluster("b").Record; b == nil || b.Phase != want || !strings.Contains(b.Message, "network") {
			t.Errorf("queue %t: got %+v, want it %s", queue, b, want)
		}
	}
}
