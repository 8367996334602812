package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// late is a store whose next commit of a record ends with a time-out and lands when the test says so.
type late struct {
	store.Store
	armed bool
	land  func() (int64, error)
}

func (s *late) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	if s.armed && strings.HasPrefix(ops[0].Key, "record") {
		s.armed = false
		s.land = func() (int64, error) { return s.Store.Commit(context.WithoutCancel(ctx), conds, ops) }
		return 0, errors.New("request timed out")
	}
	return s.Store.Commit(ctx, conds, ops)
}

func TestWhatACommitOfUnknownOutcomeHoldsIsGivenToNobodyElse(t *testing.T) {
	for _, lands := range []bool{true, false} {
		t.Run(fmt.Sprintf("lands: %v", lands), func(t *testing.T) {
			s := &late{Store: memory.New(), armed: true}
			l := newLed(t, s)
			l.node("n1", 1)
			l.want("a")
			l.want("b")
			view, err := l.pass()
			if !errors.Is(err, errDoubt) {
				t.Fatalf("the pass ends with %v, want the leadership to end", err)
			}
			if record := view.Cluster("b").Record; record != nil {
				t.Errorf("cluster b: got %+v, want no decision: the only core may be that of a", record)
			}
			if lands {
				if _, err := s.land(); err != nil {
					t.Fatal(err)
				}
			}
			l.campaign()
			view = l.mustPass()
			for name, want := range map[string]api.ClusterPhase{"a": api.ClusterStarting, "b": api.ClusterRefused} {
				if record := view.Cluster(name).Record; record == nil || record.Phase != want {
					t.Errorf("cluster %s under the next leader: got %+v, want it %s", name, record, want)
				}
			}
			if !lands {
				if _, err := s.land(); !errors.Is(err, store.ErrNotLeader) {
					t.Errorf("the commit lands under the next leader: got %v, want it refused", err)
				}
			}
		})
	}
}

func TestMoreMembersThanACommitHoldsArePassedIntoQuarantine(t *testing.T) {
	l := newLed(t, memory.New())
	nodes := make([]string, 120)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("n%d", i)
		if _, err := l.repo.PutNode(t.Context(), api.NodeRecord{Name: nodes[i], Underlay: fmt.Sprintf("198.18.0.%d", i+1)}); err != nil {
			t.Fatal(err)
		}
	}
	view := l.cluster("a", 1, nodes...)
	l.release(view.Cluster("a"))
	l.now = l.now.Add(time.Hour)
	for range 3 {
		view = l.mustPass()
	}
	if got := len(view.Quarantines); got != len(nodes) {
		t.Errorf("%d members are quarantined, want %d", got, len(nodes))
	}
	l.mustPass()
	told := map[string]int{}
	events, err := l.cache.Events(t.Context(), "a", 0, state.EventsKept)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Reason == lifecycle.EventQuarantined {
			told[e.Member]++
		}
		if e.Reason == lifecycle.EventDeleted && !strings.Contains(e.Message, "not confirmed clean") {
			t.Errorf("with members in quarantine the event says %q", e.Message)
		}
	}
	if view := l.cache.View(); view.Cluster("a") != nil {
		t.Errorf("the cluster is still %+v", view.Cluster("a").Record)
	}
	for member, n := range told {
		if n != 1 {
			t.Errorf("the quarantine of %s is told %d times, want once", member, n)
		}
	}
}

func TestOnlyTheAgentOfItsOwnNodeConfirmsAnAssignmentClean(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.node("n2", 2)
	view := l.cluster("a", 1, "n1")
	var id string
	for a := range view.Cluster("a").Held() {
		id = a.ID
	}
	l.release(view.Cluster("a"))
	l.agents.clean["n2"] = []string{id}
	if view = l.mustPass(); len(view.Cluster("a").Record.Chunks) != 1 {
		t.Error("the word of another node's agent was taken")
	}
	l.agents.clean["n1"] = []string{id}
	if view = l.mustPass(); view.Cluster("a") != nil && len(view.Cluster("a").Record.Chunks) > 0 {
		t.Error("the word of its own node's agent was not taken")
	}
}

func TestAJobsEndIsStoredWhateverItsMemberClaimsOfTimeAndOutput(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	c := l.mustPass().Cluster("a")
	job := api.Job{ID: "j1", Cluster: "a", ClusterUID: c.UID(), Phase: api.JobRunning, MemberID: only(t, c).ID}
	l.view(l.repo.CreateJob(t.Context(), job))
	ended := l.now.Add(24 * time.Hour)
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: api.JobSucceeded, EndedAt: &ended, LogBytes: 1 << 40, DiscardedBytes: 7}}
	for _, stored := range []int64{0, 10, 20} {
		l.agents.logBytes = map[string]int64{"j1": stored}
		if job := l.mustPass().Job("j1"); job.Phase != api.JobRunning {
			t.Fatalf("with %d bytes stored: %s, want the rest of the output to be awaited while some arrives", stored, job.Phase)
		}
		l.now = l.now.Add(lifecycle.LogPatience - 1)
	}
	if job := l.mustPass().Job("j1"); job.Phase != api.JobRunning {
		t.Fatalf("just before %s without any output: %s, want it running", lifecycle.LogPatience, job.Phase)
	}
	l.now = l.now.Add(1)
	job = *l.mustPass().Job("j1")
	if job.Phase != api.JobSucceeded || job.LogBytes != 20 || job.DiscardedBytes != 1<<40-20+7 {
		t.Errorf("after %s without any output: %s with %d bytes stored and %d discarded; want it succeeded, and what never arrived counted", lifecycle.LogPatience,
			job.Phase, job.LogBytes, job.DiscardedBytes)
	}
	if len(l.lead.endings) > 0 {
		t.Errorf("left in memory: %v", l.lead.endings)
	}
}

func TestNobodyWaitsForOutputOfAJobWhoseMemberIsGone(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.cluster("a", 1, "n1")
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.gone"}))
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: api.JobSucceeded, LogBytes: 10}}
	if job := l.mustPass().Job("j1"); job.Phase != api.JobSucceeded || job.DiscardedBytes != 10 {
		t.Errorf("%s with %d bytes discarded, want it succeeded with 10", job.Phase, job.DiscardedBytes)
	}
}

func TestADiscardedPartOfTheOutputIsStoredWhileTheJobRuns(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.cluster("a", 1, "n1")
	l.view(l.repo.CreateJob(t.Context(), api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1"}))
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: api.JobRunning, LogBytes: 10, DiscardedBytes: 5}}
	if job := l.mustPass().Job("j1"); job.Phase != api.JobRunning || job.DiscardedBytes != 5 {
		t.Errorf("%s with %d bytes discarded, want it running with 5", job.Phase, job.DiscardedBytes)
	}
}

func TestAMemberOfADownNodeIsReplacedElsewhereUnderANewIdentity(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.node("n2", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	view := l.mustPass()
	old := only(t, view.Cluster("a"))
	if phase := view.Cluster("a").Record.Phase; phase != api.ClusterReady {
		t.Fatalf("before: %s, want ready", phase)
	}
	l.agents.down[old.Node] = true
	for range 3 {
		view = l.mustPass()
	}
	fresh := only(t, view.Cluster("a"))
	if fresh.Member != old.Member || fresh.Rank != old.Rank || fresh.Node == old.Node || fresh.ID == old.ID || fresh.Address() == old.Address() {
		t.Errorf("lost %+v\n got  %+v\n want the same name and rank, another node, identity and address", old, fresh)
	}
	if d := l.agents.desired[fresh.Node]; len(d.Networks) != 1 || len(d.Networks[0].Remotes) != 0 {
		t.Errorf("node %s still has the lost one for a peer: %+v", fresh.Node, d.Networks)
	}
	if d := l.agents.desired[old.Node]; len(d.Members) != 1 || !d.Members[0].Release || d.Members[0].GraceSeconds != 0 {
		t.Errorf("node %s is not told to end what it had at once: %+v", old.Node, d.Members)
	} else if len(d.Networks) != 1 || len(d.Networks[0].Ports) != 0 {
		t.Errorf("node %s leaves the lost member its port: %+v", old.Node, d.Networks)
	}
	l.report(api.MemberReady)
	if view = l.mustPass(); view.Cluster("a").Record.Phase != api.ClusterReady {
		t.Errorf("after: %+v, want ready", view.Cluster("a").Record)
	}
	// The dead node comes back and cleans; nothing of the old one is left in the record.
	delete(l.agents.down, old.Node)
	l.agents.clean[old.Node] = []string{old.ID}
	if view = l.mustPass(); len(view.Cluster("a").Record.Chunks) != 1 || len(view.Cluster("a").Record.Clean) != 0 {
		t.Errorf("left of the lost member: %+v", view.Cluster("a").Record)
	}
}

func TestALostMemberStaysCutOffWhileItsClusterIsDeleted(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.node("n2", 1)
	l.want("a")
	l.mustPass()
	l.report(api.MemberReady)
	old := only(t, l.mustPass().Cluster("a"))
	l.agents.down[old.Node] = true
	for range 3 {
		l.mustPass()
	}
	fresh := only(t, l.mustPass().Cluster("a"))
	l.now = l.now.Add(time.Second)
	_, revision, err := l.repo.RequestDelete(t.Context(), "a", l.now)
	l.view(revision, err)
	for range 3 { // decided, and told
		l.mustPass()
	}
	if d := l.agents.desired[fresh.Node]; len(d.Networks) != 1 || len(d.Networks[0].Remotes) != 0 {
		t.Errorf("node %s may talk to the lost member's node again: %+v", fresh.Node, d.Networks)
	}
	if d := l.agents.desired[old.Node]; len(d.Networks) != 1 || len(d.Networks[0].Ports) != 0 {
		t.Errorf("node %s gives the lost member its port again: %+v", old.Node, d.Networks)
	}
}

// lagging is a store whose changes arrive when the test says so.
type lagging struct {
	store.Store
	held atomic.Bool
	open chan struct{}
}

type laggingWatch struct {
	store.Watch
	changes chan []store.Change
}

func (w laggingWatch) Changes() <-chan []store.Change { return w.changes }

func (s *lagging) Watch(ctx context.Context, prefix string, after int64) store.Watch {
	w := laggingWatch{s.Store.Watch(ctx, prefix, after), make(chan []store.Change)}
	go func() {
		defer close(w.changes)
		for changes := range w.Watch.Changes() {
			if s.held.Load() {
				<-s.open
			}
			w.changes <- changes
		}
	}()
	return w
}

func TestANewLeaderGivesNothingOutBeforeItSeesWhatTheOneBeforeDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lagging{Store: memory.New(), open: make(chan struct{})}
		l := newLed(t, s)
		l.node("n1", 1)
		l.want("a")
		view := l.want("b")
		stale := view.Cluster("b")
		s.held.Store(true)
		// The former leader gives the only core to b; this server does not know yet.
		leadership, err := s.Campaign(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		before := l.repo.AsLeader(leadership)
		assignment := api.Assignment{
			ID: "ub.b-0.1", ClusterUID: "ub", Cluster: "b", Generation: 1, Group: "b", Member: "b-0", Node: "n1", Slots: []int{0}, CPUs: []int{0},
			Memory: []api.MemoryClaim{{Bytes: 64 << 20}}, TakenAt: l.now, CleanBy: api.ByAgents("n1"), Ports: []api.PortClaim{{Network: "ub", Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.16.2")}},
		}
		record := api.ClusterRecord{Name: "b", UID: "ub", Generation: 1, Phase: api.ClusterStarting, Networks: []api.NetworkRef{{UID: "ub"}}, PlacedAt: &l.now, ChangedAt: l.now}
		write := state.Write{
			Record: record, Add: []state.Batch{{Assignments: []api.Assignment{assignment}}},
			Networks: []api.Network{{UID: "ub", Name: "b", ClusterUID: "ub", Index: 1, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Gateway: netip.MustParseAddr("10.64.16.1")}},
		}
		if _, err := before.Commit(t.Context(), stale, write); err != nil {
			t.Fatal(err)
		}
		l.campaign()
		done := make(chan error, 1)
		go func() {
			_, err := l.lead.pass(t.Context())
			done <- err
		}()
		synctest.Wait()
		close(s.open)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		view = l.view(l.lead.committed, nil)
		if a := view.Cluster("a").Record; a == nil || a.Phase != api.ClusterRefused {
			t.Errorf("a has %+v, want it refused: b holds the only core", a)
		}
	})
}

func TestTheEventsOfAClusterThatIsLongGoneAreRemoved(t *testing.T) {
	l := newLed(t, memory.New())
	l.view(l.repo.AppendEvents(t.Context(), api.Event{Cluster: "gone", Time: l.now}))
	l.now = l.now.Add(state.EventsKeptAfter + time.Minute)
	l.mustPass()
	l.until("its events are gone", func(*state.View) bool { _, last := l.cache.EventLog("gone"); return last == 0 })
}

func TestUsageIsPrunedOnceItIsOlderThanItIsKept(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.mustPass() // opens the node's span
	changed := api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{MemoryBytes: 4 << 30}}
	l.view(l.repo.PutNode(t.Context(), changed))
	l.now = l.now.Add(time.Hour)
	l.mustPass()
	former := func() (n int) {
		for _, err := range l.cache.UsageInput(t.Context(), l.now).Former(time.Time{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if n := former(); n != 1 {
		t.Fatalf("%d former spans after the node changed, want 1", n)
	}
	l.now = l.now.Add(state.UsageKept + time.Minute)
	if view := l.mustPass(); former() != 0 || len(view.NodeSpans) != 1 {
		t.Fatalf("%d former spans and %d present ones are left, want 0 and 1", former(), len(view.NodeSpans))
	}
}

func TestTheOutputOfOldBuildsGoesWithThem(t *testing.T) {
	l := newLed(t, memory.New())
	at := l.now
	l.view(l.repo.CreateBuild(t.Context(), api.Build{ID: "old", Phase: api.BuildFailed, Attempt: 2, EndedAt: &at}))
	l.now = l.now.Add(state.EventsKeptAfter + time.Minute)
	end := l.now
	l.view(l.repo.CreateBuild(t.Context(), api.Build{ID: "new", Phase: api.BuildFailed, Attempt: 1, EndedAt: &end}))
	l.mustPass()
	slices.Sort(l.agents.dropped)
	if want := []string{"build.old.1", "build.old.2"}; !slices.Equal(l.agents.dropped, want) {
		t.Errorf("the output of %v was removed, want that of %v", l.agents.dropped, want)
	}
}

func TestQuarantinesThatEndTogetherDoNotHoldUpOnePass(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	var ids []string
	for i := range quarantinesPerPass + 10 {
		q := api.Quarantine{Since: l.now, Assignment: api.Assignment{ID: fmt.Sprintf("ua.a-%d.1", i), ClusterUID: "ua", Cluster: "a", Node: "n1", CleanBy: api.ByAgents("n1")}}
		l.view(l.leader.Quarantine(t.Context(), q))
		ids = append(ids, q.Assignment.ID)
	}
	l.agents.clean["n1"] = ids
	for _, want := range []int{10, 0} {
		if view := l.mustPass(); len(view.Quarantines) != want {
			t.Errorf("%d are left, want %d", len(view.Quarantines), want)
		}
	}
}

func TestWhatIsQuarantinedOnAForgottenNodeIsForgottenWithIt(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	view := l.mustPass()
	a := only(t, view.Cluster("a"))
	l.view(l.leader.Quarantine(t.Context(), api.Quarantine{Assignment: api.Assignment{ID: "x", Node: "n2", CleanBy: api.ByAgents("n2"), Cluster: "b"}, Since: l.now}))
	l.view(l.leader.Quarantine(t.Context(), api.Quarantine{Assignment: api.Assignment{ID: "y", Node: "n1", CleanBy: api.ByAgents("n1"), Cluster: "b"}, Since: l.now}))
	if view = l.mustPass(); len(view.Quarantines) != 1 || view.Quarantines[0].Assignment.ID != "y" {
		t.Errorf("quarantined: %+v, want only that of the node which is there (cluster a has %s)", view.Quarantines, a.ID)
	}
}

func TestARequestThatComesWithALossGetsNotTheRoomOfItsReplacement(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.node("n2", 1)
	l.want("b")
	l.mustPass()
	l.report(api.MemberReady)
	view := l.mustPass()
	lost := only(t, view.Cluster("b"))
	l.want("a") // planned before b, by its name
	l.agents.down[lost.Node] = true
	for range 3 {
		view = l.mustPass()
	}
	if fresh := only(t, view.Cluster("b")); fresh.Replaces != lost.ID {
		t.Errorf("b holds %+v, want the replacement of %s", fresh, lost.ID)
	}
	for a := range view.Cluster("a").Held() {
		t.Errorf("a got %+v", a)
	}
}
