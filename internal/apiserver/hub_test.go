package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// spoken is a Live that counts what is asked of it.
type spoken struct {
	mu      sync.Mutex
	members map[string]api.MemberPhase
	down    map[string]bool
	told    map[string]uint64
	serial  uint64
	asked   int
	changed chan struct{}
}

func newSpoken() *spoken {
	return &spoken{members: map[string]api.MemberPhase{}, down: map[string]bool{}, told: map[string]uint64{}, changed: make(chan struct{})}
}

func (l *spoken) Member(a *api.Assignment) (api.MemberPhase, string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	phase, ok := l.members[a.ID]
	return phase, "", ok
}

func (*spoken) Volumes(string) ([]volume.State, []string, bool)           { return nil, nil, true }
func (*spoken) OnMachine(*api.Assignment) (api.MemberPhase, string, bool) { return "", "", false }

func (*spoken) Boot(*api.Assignment) string                     { return "" }
func (*spoken) Size(*api.Assignment) (int64, string)            { return 0, "" }
func (*spoken) Datasets() []plan.Node                           { return nil }
func (*spoken) Mounted(*api.Assignment) (int64, string)         { return 0, "" }
func (*spoken) Layers(*api.Assignment) int64                    { return 0 }
func (*spoken) Condition(*api.Assignment) (int64, string)       { return 0, "" }
func (*spoken) Arriving(*api.Assignment) (bytes, ofBytes int64) { return 0, 0 }

func (l *spoken) Node(name string) (api.NodePhase, time.Time, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down[name] {
		return api.NodeDown, time.Time{}, "silent"
	}
	return api.NodeReady, time.Time{}, ""
}

func (l *spoken) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

func (l *spoken) ChangedNodes(after uint64) ([]string, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name, serial := range l.told {
		if serial > after {
			names = append(names, name)
		}
	}
	return names, l.serial
}

// say makes a node's agent say something about a member.
func (l *spoken) say(node, id string, phase api.MemberPhase) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members[id] = phase
	l.serial++
	l.told[node] = l.serial
	close(l.changed)
	l.changed = make(chan struct{})
}

// asks is how often a member was asked for since the last call.
func (l *spoken) asks() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.asked
	l.asked = 0
	return n
}

// many is a site with clusters c0000, c0001, ... of two members, the n-th of them on the nodes n and n+1.
type many struct {
	store  store.Store
	repo   *state.Repo
	cache  *state.Cache
	leader *state.Leader
	live   *spoken
}

func makeMany(t testing.TB, clusters int) *many {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	m := &many{store: memory.New(), live: newSpoken()}
	m.repo = state.New(m.store)
	var err error
	if m.cache, err = m.repo.OpenCache(ctx); err != nil {
		t.Fatal(err)
	}
	lead, err := m.store.Campaign(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	m.leader = m.repo.AsLeader(lead)
	for i := range clusters {
		m.add(t, i)
	}
	return m
}

func clusterName(i int) string { return fmt.Sprintf("c%04d", i) }

// add stores a ready cluster.
func (m *many) add(t testing.TB, i int) {
	t.Helper()
	name, ctx := clusterName(i), context.Background()
	in := api.ClusterIntent{
		Name: name, UID: "u-" + name, Project: "default", CreatedAt: time.Unix(1, 0).UTC(),
		Spec: api.ClusterSpec{Groups: []api.Group{{Name: name, Size: 2, Shape: api.Shape{Cores: 1, Memory: 1 << 29}, Stack: "container", Environment: "local"}}},
	}
	m.reach(t)(m.repo.CreateCluster(ctx, in))
	var batch state.Batch
	for k := range 2 {
		batch.Assignments = append(batch.Assignments, api.Assignment{
			ID: m.id(i, k), ClusterUID: in.UID, Cluster: name, Group: name, Member: fmt.Sprintf("%s-%d", name, k), Rank: k,
			Node: fmt.Sprintf("n%04d", i+k), Slots: []int{k}, CPUs: []int{k}, Memory: []api.MemoryClaim{{Bytes: 1 << 29}}, Ports: []api.PortClaim{{Address: netip.AddrFrom4([4]byte{10, 64, 16, byte(k)})}},
		})
	}
	rec := api.ClusterRecord{Name: name, UID: in.UID, Generation: 1, Phase: api.ClusterReady, ChangedAt: time.Unix(1, 0).UTC()}
	m.reach(t)(m.leader.Commit(ctx, m.cache.Cluster(name), state.Write{Record: rec, Add: []state.Batch{batch}}))
}

func (m *many) id(i, k int) string {
	return fmt.Sprintf("u-%s.%s-%d.1", clusterName(i), clusterName(i), k)
}

func (m *many) reach(t testing.TB) func(int64, error) {
	t.Helper()
	return func(revision int64, err error) {
		t.Helper()
		if err == nil {
			_, err = m.cache.WaitRevision(context.Background(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// setPhase commits a phase of a cluster.
func (m *many) setPhase(t testing.TB, i int, phase api.ClusterPhase) {
	t.Helper()
	c := m.cache.Cluster(clusterName(i))
	rec := *c.Record
	rec.Phase = phase
	m.reach(t)(m.leader.Commit(context.Background(), c, state.Write{Record: rec}))
}

func everything() scope { return scope{sees: func(string) bool { return true }} }

// told is what a cursor tells of since the last call, in few words.
func told(t *testing.T, c *cursor) []string {
	t.Helper()
	changes, _, whole := c.next()
	if !whole {
		t.Fatal("the cursor lost its place")
	}
	var lines []string
	for _, ch := range changes {
		line := fmt.Sprintf("%s %s %d", ch.name, ch.cluster.Status.Phase, ch.cluster.Status.ReadyMembers)
		if ch.deleted {
			line = ch.name + " gone"
		}
		lines = append(lines, line)
	}
	return lines
}

func TestTheHubLooksAtWhatChangedOnly(t *testing.T) {
	m := makeMany(t, 50)
	h := newHub(m.cache, m.live)
	h.take(m.cache.View())
	if n := m.live.asks(); n != 100 {
		t.Errorf("at first %d members were looked at, want all 100", n)
	}
	_, _, cur := h.snapshot(everything())
	expect := func(what string, asked int, want ...string) {
		t.Helper()
		h.take(m.cache.View())
		if n := m.live.asks(); n != asked {
			t.Errorf("%s: %d members were looked at, want %d", what, n, asked)
		}
		if got := told(t, cur); !slices.Equal(got, want) {
			t.Errorf("%s: told %q, want %q", what, got, want)
		}
	}
	expect("nothing", 0)
	m.live.say("n0007", m.id(7, 0), api.MemberReady)
	expect("a word of a node with members of two clusters", 4, "c0007 ready 1")
	m.live.say("n9999", "x", api.MemberReady)
	expect("a word of a node without members", 0)
	m.setPhase(t, 3, api.ClusterDegraded)
	expect("a commit", 2, "c0003 degraded 0")
	m.add(t, 50)
	expect("a new cluster", 2, "c0050 ready 0")
	m.live.say("n0051", m.id(50, 1), api.MemberReady)
	expect("a word about the new one", 2, "c0050 ready 1")
	c := m.cache.Cluster(clusterName(7))
	rec := *c.Record
	rec.Chunks = nil
	m.reach(t)(m.leader.Commit(t.Context(), c, state.Write{Record: rec}))
	expect("a cluster that holds nothing any more", 0, "c0007 ready 0")
	if on := h.nodes["n0007"].clusters; len(on) != 1 || !on[clusterName(6)] {
		t.Errorf("on n0007 are %v, want c0006 only", on)
	}
	m.live.say("n0007", m.id(6, 1), api.MemberReady)
	expect("its node is another's only", 2, "c0006 ready 1")
	m.reach(t)(m.leader.Commit(t.Context(), m.cache.Cluster(clusterName(7)), state.Write{Forget: true}))
	expect("gone", 0, "c0007 gone")
	c = m.cache.Cluster(clusterName(50))
	rec = *c.Record
	rec.Chunks = nil
	m.reach(t)(m.leader.Commit(t.Context(), c, state.Write{Record: rec}))
	m.reach(t)(m.leader.Commit(t.Context(), m.cache.Cluster(clusterName(50)), state.Write{Forget: true}))
	expect("gone between two looks", 0, "c0050 gone")
	if snap, _, _ := h.snapshot(everything()); len(snap) != 49 || snap[7].name != clusterName(8) || len(h.nodes) != 51 {
		t.Errorf("%d clusters on %d nodes are left, want 49 on 51", len(snap), len(h.nodes))
	}
}

func TestANodeThatGoesDownByTheClockAloneIsTold(t *testing.T) {
	m := makeMany(t, 3)
	synctest.Test(t, func(t *testing.T) {
		h := newHub(m.cache, m.live)
		view := m.cache.View()
		h.take(view)
		_, _, cur := h.snapshot(everything())
		m.live.mu.Lock()
		m.live.down["n0001"] = true
		m.live.mu.Unlock()
		h.take(view)
		if got := told(t, cur); len(got) != 0 {
			t.Errorf("told %q at once; nobody said anything", got)
		}
		<-time.After(sweepInterval)
		h.take(view)
		if got := told(t, cur); !slices.Equal(got, []string{"c0000 ready 0", "c0001 ready 0"}) {
			t.Errorf("told %q, want both clusters with members there", got)
		}
	})
}

func TestAClusterMadeAnewBetweenTwoLooksIsToldAsGoneFirst(t *testing.T) {
	m := makeMany(t, 1)
	h := newHub(m.cache, m.live)
	h.take(m.cache.View())
	_, _, cur := h.snapshot(scope{name: clusterName(0), sees: func(string) bool { return true }})
	c := m.cache.Cluster(clusterName(0))
	rec := *c.Record
	rec.Chunks = nil
	m.reach(t)(m.leader.Commit(t.Context(), c, state.Write{Record: rec}))
	m.reach(t)(m.leader.Commit(t.Context(), m.cache.Cluster(clusterName(0)), state.Write{Forget: true}))
	m.reach(t)(m.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: clusterName(0), UID: "another"}))
	h.take(m.cache.View())
	if got := told(t, cur); !slices.Equal(got, []string{"c0000 gone", "c0000 pending 0"}) {
		t.Errorf("told %q", got)
	}
}

func TestAReaderThatIsTooSlowIsToldSo(t *testing.T) {
	m := makeMany(t, 1)
	h := newHub(m.cache, m.live)
	h.take(m.cache.View())
	_, revision, cur := h.snapshot(everything())
	phases := []api.MemberPhase{api.MemberReady, api.MemberFailed}
	for i := range historyKept + historyKept/4 + 1 {
		m.live.say("n0000", m.id(0, 0), phases[i%2])
		h.take(m.cache.View())
	}
	if _, _, whole := cur.next(); whole {
		t.Error("a cursor whose changes were dropped went on")
	}
	if _, ok := h.resume(everything(), revision); ok {
		t.Error("resumed where changes were dropped")
	}
}

func TestTheHistoryOfLargeClustersIsBoundedByTheirMembers(t *testing.T) {
	h := newHub(nil, nil)
	_, _, slow := h.snapshot(everything())
	listed := func() (n int) {
		for _, ch := range h.history {
			n += len(ch.cluster.Status.Members)
		}
		return n
	}
	large := func(members int) *shown {
		return &shown{name: "c", cluster: api.Cluster{Status: api.ClusterStatus{Members: make([]api.MemberStatus, members)}}}
	}
	h.note(large(2*membersKept), false)
	h.trim()
	for i := range historyKept {
		h.revision = int64(i)
		h.note(large(1000), false)
		h.trim()
		if n := listed(); n != h.members || n > membersKept+membersKept/4 {
			t.Fatalf("after %d changes %d members are listed (counted %d), want at most %d", i+1, n, h.members, membersKept+membersKept/4)
		}
	}
	if _, _, whole := slow.next(); whole {
		t.Error("a cursor whose changes were dropped went on")
	}
	_, _, cur := h.snapshot(everything())
	h.note(large(2*membersKept), false)
	h.trim()
	if fresh, _, whole := cur.next(); !whole || len(fresh) != 1 {
		t.Errorf("the newest change: got %d, whole %t; want it kept however large it is", len(fresh), whole)
	}
}

// BenchmarkTake is what one word of an agent costs among so many clusters.
func BenchmarkTake(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", n), func(b *testing.B) {
			m := makeMany(b, n)
			h := newHub(m.cache, m.live)
			h.take(m.cache.View())
			phases := []api.MemberPhase{api.MemberReady, api.MemberFailed}
			i := 0
			for b.Loop() {
				m.live.say("n0007", m.id(7, 0), phases[i%2])
				h.take(m.cache.View())
				i++
			}
		})
	}
}
