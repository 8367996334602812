package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// scripted are agents that say what a test wants.
type scripted struct {
	clean   map[string][]string // by node
	jobs    map[string]agentstream.JobObserved
	members map[string]monitor.MemberState
	down    map[string]bool
	desired map[string]agentstream.Desired
	builds  map[string][]agentstream.BuildObserved
	// holders are the URLs that nodes serve images at, fetching those that fetch them.
	holders  map[string]string
	fetching map[string]string
	// dropped are the runs whose output was removed.
	dropped []string
}

func (s *scripted) MemberState(id string) (monitor.MemberState, bool) {
	seen, ok := s.members[id]
	return seen, ok
}

func (s *scripted) Node(name string) (api.NodePhase, time.Time, string) {
	if s.down[name] {
		return api.NodeDown, time.Time{}, ""
	}
	return api.NodeReady, time.Time{}, ""
}
func (s *scripted) Reported(string) bool                          { return true }
func (s *scripted) Clean(node string) []string                    { return s.clean[node] }
func (s *scripted) Jobs() map[string]agentstream.JobObserved      { return s.jobs }
func (s *scripted) LogBytes(string) int64                         { return 0 }
func (s *scripted) ForgetJob(string)                              {}
func (s *scripted) DropLog(run string) error                      { s.dropped = append(s.dropped, run); return nil }
func (s *scripted) SetDesired(node string, d agentstream.Desired) { s.desired[node] = d }
func (s *scripted) Changed() <-chan struct{}                      { return nil }
func (s *scripted) NextDeath() time.Time                          { return time.Time{} }

func (s *scripted) Connected(node string) (bool, time.Time)        { return !s.down[node], time.Time{} }
func (s *scripted) PowerOffProblem(string) string                  { return "" }
func (s *scripted) Builds() map[string][]agentstream.BuildObserved { return s.builds }
func (s *scripted) Holders(image.Digest) (whole, fetching map[string]string) {
	return s.holders, s.fetching
}

// led is a stored state with a whole leader, whose passes and clock are the test's.
type led struct {
	*stored
	agents *scripted
	lead   *leader
	now    time.Time
}

func newLed(t *testing.T, s store.Store) *led {
	t.Helper()
	l := &led{
		stored: &stored{t: t, repo: state.New(s)}, agents: &scripted{
			clean: map[string][]string{}, members: map[string]monitor.MemberState{}, down: map[string]bool{}, desired: map[string]agentstream.Desired{},
		},
		now: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC),
	}
	var err error
	if l.cache, err = l.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.campaign()
	return l
}

// campaign makes the next leader.
func (l *led) campaign() {
	l.t.Helper()
	leadership, err := l.repo.Store().Campaign(l.t.Context(), "test")
	if err != nil {
		l.t.Fatal(err)
	}
	l.lead = newLeader(Config{
		Candidate: "test", Repo: l.repo, Cache: l.cache, Agents: l.agents, SiteSecret: []byte(strings.Repeat("s", 32)),
		Pool: placement.DefaultPool, Deadlines: lifecycle.DefaultDeadlines(), Now: func() time.Time { return l.now },
		Log: slog.New(slog.DiscardHandler),
	}, leadership)
	l.leader = l.lead.writer
}

// release lets a cluster be deleted.
func (l *led) release(c *state.Cluster) {
	l.t.Helper()
	record := *c.Record
	record.Phase, record.ChangedAt, record.Chunks = api.ClusterDeleting, l.now, slices.Clone(record.Chunks)
	for i := range record.Chunks {
		record.Chunks[i].Releasing, record.Chunks[i].ReleasedAt = true, &l.now
	}
	l.view(l.leader.Commit(l.t.Context(), c, state.Write{Record: record}))
}

// pass makes one pass and returns the view with all it has written.
func (l *led) pass() (*state.View, error) {
	l.t.Helper()
	_, err := l.lead.pass(l.t.Context())
	return l.view(l.lead.committed, nil), err
}

func (l *led) mustPass() *state.View {
	l.t.Helper()
	view, err := l.pass()
	if err != nil {
		l.t.Fatal(err)
	}
	return view
}

// node stores a node with this many cores.
func (l *led) node(name string, cores int) {
	l.t.Helper()
	record := api.NodeRecord{
		Name: name, Capacity: api.NodeCapacity{MemoryBytes: 8 << 30}, Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	for slot := range cores {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
	}
	l.view(l.repo.PutNode(l.t.Context(), record))
}

// want asks for a cluster of one member with one core.
func (l *led) want(name string) *state.View {
	l.t.Helper()
	return l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	}))
}

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
	told := map[string]int{}
	for _, e := range l.cache.Events("a", 0) {
		if e.Reason == lifecycle.EventQuarantined {
			told[e.Member]++
		}
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
	l.node("n1", 2)
	l.cluster("a", 1, "n1")
	job := api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1"}
	l.view(l.repo.CreateJob(t.Context(), job))
	ended := l.now.Add(24 * time.Hour)
	l.agents.jobs = map[string]agentstream.JobObserved{"j1": {ID: "j1", Phase: api.JobSucceeded, EndedAt: &ended, LogBytes: 1 << 40}}
	if job := l.mustPass().Job("j1"); job.Phase != api.JobRunning {
		t.Fatalf("at once: %s, want the rest of the output to be waited for", job.Phase)
	}
	l.now = l.now.Add(logPatience)
	if job := l.mustPass().Job("j1"); job.Phase != api.JobSucceeded {
		t.Errorf("after %s: %s, want succeeded", logPatience, job.Phase)
	}
	if len(l.lead.endings) > 0 {
		t.Errorf("left in memory: %v", l.lead.endings)
	}
}

// report makes the agents say the same of every member that is not being released.
func (l *led) report(phase api.MemberPhase) {
	for _, c := range l.cache.View().Clusters {
		for a := range c.Held() {
			l.agents.members[a.ID] = monitor.MemberState{Phase: phase, Current: true, Since: l.now}
		}
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
	if fresh.Member != old.Member || fresh.Rank != old.Rank || fresh.Node == old.Node || fresh.ID == old.ID || fresh.Address == old.Address {
		t.Errorf("lost %+v\n got  %+v\n want the same name and rank, another node, identity and address", old, fresh)
	}
	if d := l.agents.desired[fresh.Node]; len(d.Networks) != 1 || len(d.Networks[0].Peers) != 0 {
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

// only is the one member a cluster holds.
func only(t *testing.T, c *state.Cluster) api.Assignment {
	t.Helper()
	var all []api.Assignment
	for a := range c.Held() {
		all = append(all, *a)
	}
	if len(all) != 1 {
		t.Fatalf("cluster %s holds %d members, want one: %+v", c.Name(), len(all), c.Record)
	}
	return all[0]
}

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
	before := view.Revision
	if view = l.mustPass(); view.Revision != before {
		t.Errorf("a pass in which nothing changed wrote revision %d", view.Revision)
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
			MemoryBytes: 64 << 20, TakenAt: l.now, Address: netip.MustParseAddr("10.64.16.2"),
		}
		network, err := placement.DefaultPool.Network(1, false)
		if err != nil {
			t.Fatal(err)
		}
		record := api.ClusterRecord{Name: "b", UID: "ub", Generation: 1, Phase: api.ClusterStarting, Network: network, PlacedAt: &l.now, ChangedAt: l.now}
		write := state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{assignment}}}}
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
	before := l.mustPass().Revision
	if l.view(before+1, nil); len(l.cache.Events("gone", 0)) > 0 {
		t.Error("they are there")
	}
}

func TestUsageIsPrunedOnceItIsOlderThanItIsKept(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.mustPass() // opens the node's span
	changed := api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{MemoryBytes: 4 << 30}}
	l.view(l.repo.PutNode(t.Context(), changed))
	l.now = l.now.Add(time.Hour)
	if view := l.mustPass(); len(view.NodeSpans) != 2 {
		t.Fatalf("%d spans after the node changed, want 2", len(view.NodeSpans))
	}
	l.now = l.now.Add(state.UsageKept + time.Minute)
	before := l.mustPass().Revision
	if view := l.view(before+1, nil); len(view.NodeSpans) != 1 || view.NodeSpans[0].To != nil {
		t.Errorf("spans after %s: %+v, want only the present one", state.UsageKept, view.NodeSpans)
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
		l.node("n1", 2)
		l.want("a")
		l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{
			Name: "b", UID: "ub", CreatedAt: l.now.Add(time.Second), Spec: api.ClusterSpec{Queue: queue, Groups: []api.Group{{
				Name: "b", Size: 1, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
			}}},
		}))
		if b := l.mustPass().Cluster("b").Record; b == nil || b.Phase != want || !strings.Contains(b.Message, "networks") {
			t.Errorf("queue %t: got %+v, want it %s", queue, b, want)
		}
	}
}

func TestQuarantinesThatEndTogetherDoNotHoldUpOnePass(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	var ids []string
	for i := range quarantinesPerPass + 10 {
		q := api.Quarantine{Since: l.now, Assignment: api.Assignment{ID: fmt.Sprintf("ua.a-%d.1", i), ClusterUID: "ua", Cluster: "a", Node: "n1"}}
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
	l.view(l.leader.Quarantine(t.Context(), api.Quarantine{Assignment: api.Assignment{ID: "x", Node: "n2", Cluster: "b"}, Since: l.now}))
	l.view(l.leader.Quarantine(t.Context(), api.Quarantine{Assignment: api.Assignment{ID: "y", Node: "n1", Cluster: "b"}, Since: l.now}))
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
