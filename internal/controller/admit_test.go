package controller

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// wait lets a cluster wait for room.
func (l *led) wait(name string) {
	l.t.Helper()
	l.want(name)
	_, revision, err := l.repo.UpdateIntent(l.t.Context(), name, "", func(in *api.ClusterIntent) error {
		in.Spec.Queue = true
		return nil
	})
	l.view(revision, err)
}

func TestTwoClustersThatArePlacedTogetherGetTwoNetworks(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.want("a")
	l.want("b")
	view := l.mustPass()
	a, b := view.Cluster("a").Record, view.Cluster("b").Record
	if a == nil || b == nil || len(view.Networks) != 2 || view.Networks[0].Index == view.Networks[1].Index ||
		view.Networks[0].Prefix.Overlaps(view.Networks[1].Prefix) || a.UserIDs == b.UserIDs {
		t.Errorf("got a %+v\n and b %+v\n and networks %+v\n want both placed, with a network and user IDs each", a, b, view.Networks)
	}
}

func TestAClusterOfASiteWhoseNodesHaveNotJoinedYetIsNotRefused(t *testing.T) {
	l := newLed(t, memory.New())
	l.want("a")
	if view := l.mustPass(); view.Cluster("a").Record != nil {
		t.Errorf("at once: %+v, want no decision", view.Cluster("a").Record)
	}
	l.now = l.now.Add(lifecycle.DefaultDeathTimer)
	if view := l.mustPass(); view.Cluster("a").Record == nil || view.Cluster("a").Record.Phase != api.ClusterRefused {
		t.Errorf("after %s: %+v, want it refused", lifecycle.DefaultDeathTimer, view.Cluster("a").Record)
	}
}

func TestWhoWaitsIsPlacedWhenANodeIsBackOrNoLongerDrained(t *testing.T) {
	for name, away := range map[string]func(l *led) (back func()){
		"down": func(l *led) func() {
			l.agents.down["n1"] = true
			return func() { delete(l.agents.down, "n1") }
		},
		"drained": func(l *led) func() {
			_, revision, err := l.repo.SetDrain(l.t.Context(), "n1", "", "ann", l.now)
			l.view(revision, err)
			return func() { l.view(l.repo.Undrain(l.t.Context(), "n1")) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLed(t, memory.New())
			l.node("n1", 1)
			back := away(l)
			l.wait("a")
			view := l.mustPass()
			if record := view.Cluster("a").Record; record == nil || record.Phase != api.ClusterQueued {
				t.Fatalf("with its node %s: %+v, want it queued", name, record)
			}
			l.mustPass()
			back()
			if view = l.mustPass(); view.Cluster("a").Record.Phase != api.ClusterStarting {
				t.Errorf("no longer %s: %+v, want it starting", name, view.Cluster("a").Record)
			}
		})
	}
}

func TestAnAddressInQuarantineIsNotGivenToItsClusterAgain(t *testing.T) {
	l := newLed(t, memory.New())
	for _, name := range []string{"n1", "n2", "n3"} {
		l.node(name, 1)
	}
	l.want("a")
	first := only(t, l.mustPass().Cluster("a"))
	l.report(api.MemberReady)
	l.mustPass()
	// Its node stays away for longer than cleaning may take.
	l.agents.down[first.Node] = true
	for range 3 {
		l.mustPass()
	}
	l.report(api.MemberReady)
	l.now = l.now.Add(lifecycle.DefaultDeadlines().Clean)
	l.mustPass()
	view := l.mustPass()
	second := only(t, view.Cluster("a"))
	if len(view.Quarantines) != 1 || view.Quarantines[0].Assignment.ID != first.ID || len(view.Cluster("a").Record.Chunks) != 1 {
		t.Fatalf("quarantines %+v, record %+v; want %s quarantined and only its replacement left", view.Quarantines, view.Cluster("a").Record, first.ID)
	}
	l.agents.down[second.Node] = true
	for range 3 {
		view = l.mustPass()
	}
	third := only(t, view.Cluster("a"))
	if third.ID == second.ID || third.Address() == first.Address() || third.Address() == second.Address() {
		t.Errorf("%s has address %s, want another than %s of %s in quarantine and %s of %s, which is not clean", third.ID, third.Address(),
			first.Address(), first.ID, second.Address(), second.ID)
	}
}
