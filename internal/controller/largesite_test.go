package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// BenchmarkLargeSite measures what one change costs the leader of a site where clusters of 1,000 members rest: its processor time until nothing
// is left to do, and what goes down the streams.
//
//	go test -run '^$' -bench 'LargeSite/nodes=5000$' -benchtime 1x -timeout 1h ./internal/controller
func BenchmarkLargeSite(b *testing.B) {
	for _, nodes := range []int{50, 500, 5000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				s := newLargeSite(b, nodes)
				s.row("site at rest: a new leader's first passes", func() {})
				s.row("nothing has changed: one pass", func() {})
				s.row("one node joins", func() { s.join(nodes) })
				s.row("one member fails and is replaced", func() { s.fail("c0", 500) })
				s.row("one cluster of 1,000 is created", func() { s.want("new") })
				s.row("it is deleted", func() { s.remove("new") })
			}
		})
	}
}

// membersOfOne is the size of each cluster, coresOfNode leaves some free on every node.
const (
	membersOfOne   = 1000
	membersPerNode = 20
	coresOfNode    = 48
)

// largeSite is a led site whose agents carry out every desired state at once.
type largeSite struct {
	b      *testing.B
	repo   *state.Repo
	cache  *state.Cache
	agents *obedient
	lead   *leader
	now    time.Time
}

func newLargeSite(b *testing.B, nodes int) *largeSite {
	b.Helper()
	s := &largeSite{b: b, repo: state.New(memory.New()), agents: newObedient(b), now: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)}
	for i := range nodes {
		s.join(i)
	}
	var err error
	if s.cache, err = s.repo.OpenCache(b.Context()); err != nil {
		b.Fatal(err)
	}
	leadership, err := s.repo.Store().Campaign(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	s.lead = newLeader(Config{
		Candidate: "bench", Repo: s.repo, Cache: s.cache, Agents: s.agents, Secrets: trust.Secrets{{Key: []byte(strings.Repeat("s", 32))}},
		Pool: placement.DefaultPool, Deadlines: lifecycle.DefaultDeadlines(), Now: func() time.Time { return s.now },
		Log: slog.New(slog.DiscardHandler),
	}, leadership)
	taken := make([]int, nodes)
	for i := range nodes * membersPerNode / membersOfOne {
		s.settle(i, nodes, taken)
	}
	if s.agents.now, err = s.view(s.lead.committed); err != nil {
		b.Fatal(err)
	}
	s.agents.answer()
	return s
}

func (s *largeSite) view(revision int64) (*state.View, error) {
	_, err := s.cache.WaitRevision(s.b.Context(), revision)
	return s.cache.View(), err
}

func (s *largeSite) must(revision int64, err error) {
	s.b.Helper()
	if err == nil {
		_, err = s.cache.WaitRevision(s.b.Context(), revision)
	}
	if err != nil {
		s.b.Fatal(err)
	}
}

// settle stores a cluster that is ready, its members spread evenly.
func (s *largeSite) settle(i, nodes int, taken []int) {
	s.b.Helper()
	name := fmt.Sprintf("c%d", i)
	s.want(name)
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + (i+1)/16), byte((i + 1) % 16 * 16), 0}), 20)
	network := api.Network{UID: "u" + name, Name: name, Cluster: name, ClusterUID: "u" + name, Index: i + 1, Prefix: prefix, Gateway: prefix.Addr().Next()}
	stride := max(1, nodes/membersOfOne)
	var placed []placement.Placed
	for m := range membersOfOne {
		node := (m*stride + i%stride) % nodes
		placed = append(placed, placement.Placed{
			Group: name, Member: fmt.Sprintf("%s-%d", name, m), Rank: m, Node: nodeName(node), Slots: []int{taken[node]}, CPUs: []int{taken[node]},
			NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: 64 << 20}}, Stack: api.StackContainer, Environment: "local",
		})
		taken[node]++
	}
	assignments, err := placement.Assign(placed, placement.Decision{
		ClusterUID: "u" + name, Cluster: name, Generation: 1, Networks: []api.Network{network}, TakenAt: s.now,
	})
	if err != nil {
		s.b.Fatal(err)
	}
	record := api.ClusterRecord{
		Name: name, UID: "u" + name, Generation: 1, Phase: api.ClusterReady, Networks: []api.NetworkRef{{UID: network.UID, Prefix: prefix}}, PlacedAt: &s.now, ReadyAt: &s.now, ChangedAt: s.now,
	}
	revision, err := s.lead.writer.Commit(s.b.Context(), s.cache.View().Cluster(name), state.Write{Record: record, Networks: []api.Network{network}, Add: []state.Batch{{Assignments: assignments}}})
	s.must(revision, err)
	s.lead.committed = revision
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

func (s *largeSite) join(i int) {
	s.b.Helper()
	record := api.NodeRecord{
		Name: nodeName(i), Underlay: fmt.Sprintf("198.18.%d.%d", i/250, 1+i%250), Capacity: api.NodeCapacity{MemoryBytes: 8 << 30},
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	for slot := range coresOfNode {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
	}
	revision, err := s.repo.PutNode(s.b.Context(), record)
	if err != nil {
		s.b.Fatal(err)
	}
	s.agents.connect(nodeName(i))
	if s.cache != nil {
		s.must(revision, nil)
	}
}

func (s *largeSite) want(name string) {
	s.b.Helper()
	s.must(s.repo.CreateCluster(s.b.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, CreatedAt: s.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: membersOfOne, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	}))
}

func (s *largeSite) remove(name string) {
	s.b.Helper()
	_, revision, err := s.repo.RequestDelete(s.b.Context(), name, s.now)
	s.must(revision, err)
}

// fail lets the member of a rank end.
func (s *largeSite) fail(name string, rank int) {
	s.b.Helper()
	for a := range s.cache.View().Cluster(name).Held() {
		if a.Rank == rank {
			s.agents.say(a.Node, a.ID, api.MemberFailed)
			return
		}
	}
	s.b.Fatalf("cluster %s has no member of rank %d", name, rank)
}

// row does something, leads until nothing is left to do, and prints what it took.
func (s *largeSite) row(name string, do func()) {
	s.b.Helper()
	do()
	var total cost
	passes, commits := 0, s.cache.Revision()
	for working := true; working; passes++ {
		s.now = s.now.Add(10 * time.Millisecond)
		before := s.cache.Revision()
		began := spent(s.agents.bytes)
		if _, err := s.lead.pass(s.b.Context()); err != nil {
			s.b.Fatal(err)
		}
		planned := spent(s.agents.bytes)
		told := s.agents.send()
		sent := spent(s.agents.bytes)
		total.plan += planned.plan - began.plan
		total.send += sent.plan - planned.plan
		total.bytes += sent.bytes - began.bytes
		view, err := s.view(s.lead.committed)
		if err != nil {
			s.b.Fatal(err)
		}
		s.agents.now = view
		answered := s.agents.answer()
		working = told > 0 || answered || s.cache.Revision() != before
	}
	s.b.Logf("%-45s %9.1f ms deciding %9.1f ms sending %12d bytes %4d passes %4d commits", name,
		float64(total.plan.Microseconds())/1000, float64(total.send.Microseconds())/1000, total.bytes, passes, s.cache.Revision()-commits)
}

// cost is processor time of the whole process and bytes sent.
type cost struct {
	plan, send time.Duration
	bytes      int64
}

func spent(bytes int64) cost {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return cost{plan: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), bytes: bytes}
}

// obedient are agents whose members are ready, or gone, with the desired state that says so. Each has a real stream, of which bytes are counted.
type obedient struct {
	scripted
	b       *testing.B
	handler http.Handler
	opened  chan *agentstream.ServerConn
	conns   map[string]*agentstream.ServerConn
	unsent  map[string]bool
	now     *state.View
	spoke   map[string]bool
	bytes   int64
}

func newObedient(b *testing.B) *obedient {
	o := &obedient{
		b: b, opened: make(chan *agentstream.ServerConn), conns: map[string]*agentstream.ServerConn{}, unsent: map[string]bool{}, spoke: map[string]bool{},
		scripted: scripted{
			clean: map[string][]string{}, members: map[string]monitor.MemberState{}, down: map[string]bool{}, desired: map[string]agentstream.Desired{},
		},
	}
	o.handler = agentstream.Handler(func(ctx context.Context, c *agentstream.ServerConn) {
		o.opened <- c
		<-ctx.Done()
	})
	return o
}

// connect opens the stream of a node.
func (o *obedient) connect(node string) {
	request, err := http.NewRequestWithContext(o.b.Context(), http.MethodPost, "https://server"+agentstream.Path, http.NoBody)
	if err != nil {
		o.b.Fatal(err)
	}
	request.ProtoMajor = 2
	go o.handler.ServeHTTP(&counter{header: http.Header{}, bytes: &o.bytes}, request)
	o.conns[node] = <-o.opened
}

// counter counts what is written, by one goroutine.
type counter struct {
	header http.Header
	bytes  *int64
}

func (c *counter) Header() http.Header { return c.header }
func (c *counter) WriteHeader(int)     {}
func (c *counter) Flush()              {}

func (c *counter) Write(p []byte) (int, error) {
	*c.bytes += int64(len(p))
	return len(p), nil
}

func (o *obedient) SetDesired(node string, d agentstream.Desired) {
	o.desired[node] = d
	o.unsent[node] = true
}

// send sends what nodes were told and returns to how many.
func (o *obedient) send() int {
	told := slices.Sorted(maps.Keys(o.unsent))
	for _, node := range told {
		d := o.desired[node]
		if err := o.conns[node].SendDesired(&d, nil); err != nil {
			o.b.Fatal(err)
		}
	}
	clear(o.unsent)
	return len(told)
}

func (o *obedient) ChangedNodes(uint64) ([]string, uint64) {
	names := slices.Collect(maps.Keys(o.spoke))
	clear(o.spoke)
	return names, 1
}

func (o *obedient) say(node, id string, phase api.MemberPhase) {
	o.spoke[node] = true
	o.members[id] = monitor.MemberState{Phase: phase, Current: true}
}

// answer makes true what is decided and reports whether there was anything new.
func (o *obedient) answer() bool {
	news := false
	for _, c := range o.now.Clusters {
		for a, ref := range c.AllWithRef() {
			seen, known := o.members[a.ID]
			switch {
			case ref.Releasing && seen.Phase != api.MemberReleasing:
				o.say(a.Node, a.ID, api.MemberReleasing)
				o.clean[a.Node] = append(o.clean[a.Node], a.ID)
				news = true
			case !ref.Releasing && !known:
				o.say(a.Node, a.ID, api.MemberReady)
				news = true
			}
		}
	}
	return news
}
