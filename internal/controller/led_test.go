package controller

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/trust"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// scripted are agents that say what a test wants.
type scripted struct {
	faults map[string]api.HardwareFaults
	// measured are what agents measure, asked the peers that they were asked about last, by node.
	measured map[string]agentstream.Measured
	asked    map[string][]netip.Addr
	clean    map[string][]string // by node
	jobs     map[string]agentstream.JobObserved
	// logBytes is how much output is stored, by run.
	logBytes map[string]int64
	members  map[string]monitor.MemberState
	down     map[string]bool
	desired  map[string]agentstream.Desired
	builds   map[string][]agentstream.BuildObserved
	// volumes are those that nodes found, purged those of which they say that nothing is left.
	volumes map[string][]volume.State
	purged  map[string][]string
	// sharings are what nodes say of volumes that cross.
	sharings map[string][]volume.SharingState
	// datasets are what nodes say of datasets.
	datasets []plan.Node
	// holders are the URLs that nodes serve images at, fetching those that fetch them.
	holders  map[string]string
	fetching map[string]string
	// view returns what is stored; of all nodes there is always news.
	view   func() *state.View
	serial uint64
	// dropped are the runs whose output was removed.
	dropped []string
}

func (s *scripted) MemberState(_, id string) (monitor.MemberState, bool) {
	seen, ok := s.members[id]
	return seen, ok
}

func (s *scripted) Node(name string) (api.NodePhase, time.Time, string) {
	if s.down[name] {
		return api.NodeDown, time.Time{}, ""
	}
	return api.NodeReady, time.Time{}, ""
}

func (s *scripted) Measure(_ context.Context, node string, peers []netip.Addr) (agentstream.Measured, error) {
	if s.asked == nil {
		s.asked = map[string][]netip.Addr{}
	}
	s.asked[node] = peers
	return s.measured[node], nil
}

func (s *scripted) Reported(string) bool { return true }

func (s *scripted) Clean(node string) []string { return s.clean[node] }

func (s *scripted) Job(_, run string) (agentstream.JobObserved, bool) {
	seen, ok := s.jobs[run]
	return seen, ok
}

func (s *scripted) LogBytes(run string) int64 { return s.logBytes[run] }

func (s *scripted) ForgetJob(string, string) {}

func (s *scripted) DropLog(run string) error { s.dropped = append(s.dropped, run); return nil }

func (s *scripted) SetDesired(node string, d agentstream.Desired) { s.desired[node] = whole(d) }

func (s *scripted) Touch(string) {}

// whole is a desired state as an agent is given it.
func whole(d agentstream.Desired) agentstream.Desired {
	w, err := d.Whole()
	if err != nil {
		panic(err)
	}
	return *w
}

func (s *scripted) Changed() <-chan struct{} { return nil }

// ChangedNodes names every node that is stored or has members: a test may have changed anything.
func (s *scripted) ChangedNodes(uint64) ([]string, uint64) {
	names := map[string]bool{}
	for _, n := range s.view().Nodes {
		names[n.Name] = true
	}
	for _, c := range s.view().Clusters {
		for a := range c.All() {
			names[a.Node] = true
		}
	}
	s.serial++
	return nodesOf(names), s.serial
}

func (s *scripted) NextDeath() time.Time { return time.Time{} }

func (s *scripted) Connected(node string) (bool, time.Time) { return !s.down[node], time.Time{} }

func (s *scripted) Faults(node string) (api.HardwareFaults, bool) {
	f, ok := s.faults[node]
	return f, ok
}

func (s *scripted) PowerOffProblem(string) string { return "" }

func (s *scripted) Builds() map[string][]agentstream.BuildObserved { return s.builds }

func (s *scripted) Volumes(node string) ([]volume.State, []string, bool) {
	return s.volumes[node], s.purged[node], !s.down[node]
}

func (s *scripted) Datasets() []plan.Node { return s.datasets }

func (s *scripted) Sharings(node string) ([]volume.SharingState, bool) {
	return s.sharings[node], !s.down[node]
}

func (s *scripted) Holders(image.Digest) (whole, fetching map[string]string) {
	return s.holders, s.fetching
}

// led is a stored state with a whole leader, whose passes and clock are the test's.
type led struct {
	*stored
	agents *scripted
	lead   *leader
	now    time.Time
	// fabrics are those of the site, whose keepers the test runs.
	fabrics situation.Fabrics
	pkeys   api.PKeyPool
	vlans   api.VLANPool
}

func newLed(t testing.TB, s store.Store) *led {
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
	l.agents.view = l.cache.View
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
		Candidate: "test", Repo: l.repo, Cache: l.cache, Agents: l.agents, Secrets: trust.Secrets{{Key: []byte(strings.Repeat("s", 32))}},
		Pool: placement.DefaultPool, Deadlines: lifecycle.DefaultDeadlines(), Now: func() time.Time { return l.now },
		PKeys: l.pkeys, VLANs: l.vlans, Fabrics: l.fabrics, Offers: offer.Site{Fabrics: l.fabrics.InfiniBand(), Switches: l.fabrics.Switches()}, Log: slog.New(slog.DiscardHandler),
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

// until waits for what a pass has written without telling in which revision; the view may have it when the pass ends, or later.
func (l *led) until(what string, done func(*state.View) bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	defer cancel()
	for view := l.cache.View(); !done(view); view = l.cache.View() {
		if _, err := l.cache.Wait(ctx, view.Revision); err != nil {
			l.t.Fatalf("%s: %v", what, err)
		}
	}
}

// node stores a node with this many cores.
func (l *led) node(name string, cores int) {
	l.t.Helper()
	record := api.NodeRecord{
		Name: name, Underlay: "198.18.0." + name[1:], Capacity: api.NodeCapacity{MemoryBytes: 8 << 30},
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
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

// report makes the agents say the same of every member that is not being released.
func (l *led) report(phase api.MemberPhase) {
	for _, c := range l.cache.View().Clusters {
		for a := range c.Held() {
			l.agents.members[a.ID] = monitor.MemberState{Phase: phase, Current: true, Since: l.now}
		}
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
