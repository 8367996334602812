package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// scripted are agents that say what a test wants.
type scripted struct {
	clean map[string][]string // by node
	jobs  map[string]agentstream.JobObserved
}

func (s *scripted) Member(string) (api.MemberPhase, string, bool) { return "", "", false }
func (s *scripted) Node(string) (api.NodePhase, time.Time, string) {
	return api.NodeReady, time.Time{}, ""
}
func (s *scripted) Reported(string) bool                     { return true }
func (s *scripted) Clean(node string) []string               { return s.clean[node] }
func (s *scripted) Jobs() map[string]agentstream.JobObserved { return s.jobs }
func (s *scripted) LogBytes(string) int64                    { return 0 }
func (s *scripted) ForgetJob(string)                         {}
func (s *scripted) DropLog(string) error                     { return nil }
func (s *scripted) SetDesired(string, agentstream.Desired)   {}
func (s *scripted) Changed() <-chan struct{}                 { return nil }
func (s *scripted) NextDeath() time.Time                     { return time.Time{} }

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
		stored: &stored{t: t, repo: state.New(s)}, agents: &scripted{clean: map[string][]string{}},
		now: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC),
	}
	var err error
	if l.cache, err = l.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	leadership, err := s.Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	l.lead = newLeader(Config{
		Candidate: "test", Repo: l.repo, Cache: l.cache, Agents: l.agents, SiteSecret: []byte(strings.Repeat("s", 32)),
		Pool: placement.DefaultPool, Deadlines: lifecycle.DefaultDeadlines(), Now: func() time.Time { return l.now },
		Log: slog.New(slog.DiscardHandler),
	}, leadership)
	l.leader = l.lead.writer
	return l
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
		t.Run(fmt.Sprintf("lands late: %v", lands), func(t *testing.T) {
			s := &late{Store: memory.New(), armed: true}
			l := newLed(t, s)
			l.node("n1", 1)
			l.want("a")
			l.want("b")
			view, err := l.pass()
			if err == nil {
				t.Fatal("the pass tells nothing of the time-out")
			}
			if record := view.Cluster("b").Record; record == nil || record.Phase != api.ClusterRefused {
				t.Errorf("cluster b: got %+v, want it refused: the only core may be that of a", record)
			}
			if lands {
				l.view(s.land())
			}
			view = l.mustPass()
			if record := view.Cluster("a").Record; record == nil || record.Phase != api.ClusterStarting {
				t.Errorf("cluster a: got %+v, want it to be placed", record)
			}
			if !lands {
				if _, err := s.land(); !errors.Is(err, store.ErrConflict) {
					t.Errorf("the first commit lands after the second: got %v, want a conflict", err)
				}
				l.mustPass()
			}
			if len(l.lead.doubts) > 0 {
				t.Errorf("doubts are left: %v", l.lead.doubts)
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
	c := view.Cluster("a")
	record := cloneRecord(c.Record)
	record.Phase, record.ChangedAt = api.ClusterDeleting, l.now
	for i := range record.Chunks {
		record.Chunks[i].Releasing = true
	}
	l.view(l.leader.CommitRecord(t.Context(), c, record))
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
	c := view.Cluster("a")
	record := cloneRecord(c.Record)
	record.Phase, record.ChangedAt, record.Chunks[0].Releasing = api.ClusterDeleting, l.now, true
	l.view(l.leader.CommitRecord(t.Context(), c, record))
	l.agents.clean["n2"] = []string{id}
	if view = l.mustPass(); len(view.Cluster("a").Record.Clean) > 0 {
		t.Error("the word of another node's agent was taken")
	}
	l.agents.clean["n1"] = []string{id}
	if view = l.mustPass(); len(view.Cluster("a").Record.Clean) != 1 {
		t.Error("the word of its own node's agent was not taken")
	}
}

func TestAJobsEndIsStoredWhateverItsMemberClaimsOfTimeAndOutput(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 2)
	l.cluster("a", 1, "n1")
	job := api.Job{ID: "j1", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning}
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
