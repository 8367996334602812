package controller

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// silent are agents that only tell of what a test says there is news of.
type silent struct {
	*scripted
	news []string
}

func (s *silent) ChangedNodes(uint64) ([]string, uint64) {
	news := s.news
	s.news = nil
	return news, 1
}

// rested is a leader of one ready cluster of one member, for which nothing is to be done.
func rested(t *testing.T) (*led, *silent, api.Assignment) {
	t.Helper()
	l := newLed(t, memory.New())
	agents := &silent{scripted: l.agents}
	l.lead.cfg.Agents = agents
	l.node("n1", 4)
	l.node("n2", 4)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	member := only(t, l.cache.View().Cluster("a"))
	agents.news = []string{member.Node}
	var view *state.View
	for range 5 {
		view = l.mustPass()
	}
	if c := view.Cluster("a"); c.Record.Phase != api.ClusterReady || l.lead.resting[c.UID()].cluster != c {
		t.Fatalf("the cluster is %s and rests %+v; the test shows nothing", c.Record.Phase, l.lead.resting)
	}
	return l, agents, member
}

func TestAClusterIsPlannedAgainWhenThereIsNewsOfItsNodesOnly(t *testing.T) {
	failed := func(l *led, id string) {
		l.agents.members[id] = monitor.MemberState{Phase: api.MemberFailed, Message: "it ended", Current: true, Since: l.now}
	}
	for name, c := range map[string]struct {
		happens func(l *led, agents *silent, member api.Assignment)
		planned bool
	}{
		"its node says something": {func(l *led, agents *silent, member api.Assignment) {
			failed(l, member.ID)
			agents.news = []string{member.Node}
		}, true},
		"another node says something": {func(l *led, agents *silent, member api.Assignment) {
			failed(l, member.ID)
			agents.news = []string{"n3"}
		}, false},
		"its node falls silent": {func(l *led, agents *silent, member api.Assignment) { agents.down[member.Node] = true }, true},
		"its node gets something new": {func(l *led, agents *silent, member api.Assignment) {
			failed(l, member.ID)
			delete(l.lead.desired.told, member.Node)
		}, true},
		"its user wants another size": {func(l *led, agents *silent, member api.Assignment) {
			l.resize("a", 2)
		}, true},
	} {
		l, agents, member := rested(t)
		before := l.cache.View().Cluster("a").Record
		c.happens(l, agents, member)
		view := l.mustPass()
		if planned := view.Cluster("a").Record != before; planned != c.planned {
			t.Errorf("%s: planned again %t, want %t", name, planned, c.planned)
		}
	}
}

// resize asks for another size of a cluster of one group.
func (l *led) resize(name string, size int) {
	l.t.Helper()
	_, revision, err := l.repo.UpdateIntent(l.t.Context(), name, "", func(in *api.ClusterIntent) error {
		in.Spec.Groups[0].Size = size
		return nil
	})
	l.view(revision, err)
}

func TestAClusterIsPlannedAgainWhenTheClockSaysSo(t *testing.T) {
	l, agents, member := rested(t)
	l.agents.members[member.ID] = monitor.MemberState{Phase: api.MemberUnhealthy, Current: true, Since: l.now}
	agents.news = []string{member.Node}
	l.mustPass()
	if view := l.mustPass(); len(view.Cluster("a").Record.Lost) > 0 {
		t.Fatal("the member is lost already; the test shows nothing")
	}
	l.now = l.now.Add(lifecycle.DefaultDeadlines().Unhealthy + time.Second)
	if view := l.mustPass(); len(view.Cluster("a").Record.Lost) != 1 {
		t.Error("a member that stayed unhealthy is not lost, since nobody looked again")
	}
}

func TestAClusterThatReleasesDoesNotRest(t *testing.T) {
	l, _, member := rested(t)
	_, revision, err := l.repo.RequestDelete(t.Context(), "a", l.now)
	l.view(revision, err)
	for range 3 {
		l.mustPass()
	}
	l.agents.clean[member.Node] = []string{member.ID} // and nobody says that there is news
	for range 3 {
		l.mustPass()
	}
	if c := l.cache.View().Cluster("a"); c != nil {
		t.Errorf("the cluster is still %s, though all of it is clean", c.Record.Phase)
	}
}
