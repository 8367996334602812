package controller

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// stored is a state in memory with a leader who writes to it.
type stored struct {
	t      testing.TB
	repo   *state.Repo
	cache  *state.Cache
	leader *state.Leader
	// groups are those that clusters ask for; nil: nothing of note.
	groups []api.Group
	data   map[string][]api.DataClaim
}

func newStored(t testing.TB) *stored {
	t.Helper()
	s := &stored{t: t, repo: state.New(memory.New())}
	var err error
	if s.cache, err = s.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	leadership, err := s.repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	s.leader = s.repo.AsLeader(leadership)
	return s
}

func (s *stored) view(revision int64, err error) *state.View {
	s.t.Helper()
	if err == nil {
		_, err = s.cache.WaitRevision(s.t.Context(), revision)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return s.cache.View()
}

// cluster commits a cluster with one member on each of these nodes.
func (s *stored) cluster(name string, index int, nodes ...string) *state.View {
	s.t.Helper()
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	view := s.view(s.repo.CreateCluster(s.t.Context(), api.ClusterIntent{Name: name, UID: "u" + name, CreatedAt: created, Spec: api.ClusterSpec{Groups: s.groups}}))
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(16 * index), 0}), 20)
	network := api.Network{UID: "u" + name, Name: name, Cluster: name, ClusterUID: "u" + name, Index: index, Prefix: prefix, Gateway: prefix.Addr().Next()}
	var placed []placement.Placed
	for i, node := range nodes {
		placed = append(placed, placement.Placed{
			Group: name, Member: name + "-" + string(rune('0'+i)), Rank: i, Node: node, Slots: []int{index}, CPUs: []int{0}, NUMANodes: []int{0},
			Stack: api.StackContainer, Environment: "local", Data: s.data[node],
		})
	}
	assignments, err := placement.Assign(placed, placement.Decision{ClusterUID: "u" + name, Cluster: name, Generation: 1, Networks: []api.Network{network}})
	if err != nil {
		s.t.Fatal(err)
	}
	record := api.ClusterRecord{Name: name, UID: "u" + name, Generation: 1, Phase: api.ClusterStarting, Networks: []api.NetworkRef{{UID: network.UID, Prefix: prefix}}}
	return s.view(s.leader.Commit(s.t.Context(), view.Cluster(name), state.Write{Record: record, Networks: []api.Network{network}, Add: []state.Batch{{Assignments: assignments}}}))
}

// someday is when desired states are computed, where the time changes nothing.
var someday = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func newDesired() *desiredStates {
	return newDesiredStates(Config{Secrets: trust.Secrets{{Key: []byte(strings.Repeat("s", 32))}}, Pool: placement.DefaultPool, Agents: &scripted{}})
}

func nodesOf[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

func TestOnlyTheNodesThatAClusterTouchesAreToldOfItsChange(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		if _, err := s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesired()
	view := s.cluster("a", 1, "n1", "n2")
	changed, failed := d.update(1, someday, view)
	if got := nodesOf(changed); len(failed) > 0 || !slices.Equal(got, []string{"n1", "n2"}) {
		t.Fatalf("after a cluster on n1 and n2: told %v, failed %v", got, failed)
	}
	if peers := whole(changed["n1"]).Networks[0].Peers(); len(peers) != 1 || peers[0].String() != "198.18.0.2" {
		t.Errorf("peers of n1: got %v, want n2's underlay address", peers)
	}
	changed, _ = d.update(1, someday, s.cluster("b", 2, "n3"))
	if got := nodesOf(changed); !slices.Equal(got, []string{"n3"}) {
		t.Errorf("after a cluster on n3: told %v, want n3 only", got)
	}
	if changed, _ = d.update(1, someday, s.cache.View()); len(changed) > 0 {
		t.Errorf("after nothing: told %v, want nobody", nodesOf(changed))
	}
}

func TestAClusterOverNodesWithoutUnderlayIsNamedAndHarmsNoOther(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	s.cluster("a", 1, "n1", "n2")
	changed, failed := d.update(1, someday, s.cluster("b", 2, "n3"))
	if err := failed["a"]; err == nil || !strings.Contains(err.Error(), "--underlay") {
		t.Errorf("cluster a: got %v, want what to do about the underlay", err)
	}
	if got := nodesOf(changed); !slices.Equal(got, []string{"n3"}) {
		t.Errorf("told %v, want n3", got)
	}
}

func TestAnAddressThatChangesIsToldWhereItsNodeHasMembers(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	s.cluster("a", 1, "n1", "n2")
	d := newDesired()
	d.update(1, someday, s.cluster("b", 2, "n3"))
	changed, failed := d.update(1, someday, s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n2", Underlay: "198.18.0.22"})))
	if got := nodesOf(changed); len(failed) > 0 || !slices.Equal(got, []string{"n1", "n2"}) {
		t.Fatalf("told %v, failed %v; want n1 and n2, which cluster a is on", got, failed)
	}
	if peers := whole(changed["n1"]).Networks[0].Peers(); len(peers) != 1 || peers[0].String() != "198.18.0.22" {
		t.Errorf("peers of n1: got %v, want n2's new address", peers)
	}
	if peers := whole(changed["n2"]).Networks[0].Peers(); len(peers) != 1 || peers[0].String() != "198.18.0.1" {
		t.Errorf("peers of n2: got %v, want that of n1, and not its own", peers)
	}
}

func TestANodeThatJoinsRendersNoCluster(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	d.update(1, someday, s.cluster("a", 1, "n1"))
	d.secrets = trust.Secrets{{}} // with which nothing can be rendered
	view := s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n9", Underlay: "198.18.0.9"}))
	if changed, failed := d.update(1, someday, view); len(failed) > 0 || len(changed) > 0 {
		t.Errorf("told %v, failed %v; want nothing to be rendered for a node that nobody is on", nodesOf(changed), failed)
	}
}

func TestAClusterThatCouldNotBeRenderedIsTriedAgain(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	secret := d.secrets
	d.secrets = trust.Secrets{{}}
	view := s.cluster("a", 1, "n1")
	if _, failed := d.update(1, someday, view); failed["a"] == nil {
		t.Fatal("the cluster could be rendered; the test shows nothing")
	}
	d.secrets = secret
	if changed, failed := d.update(1, someday, view); len(failed) > 0 || len(changed["n1"].Members) != 1 {
		t.Errorf("told %+v, failed %v; want n1 to be told of its member", changed, failed)
	}
}

func TestWhatOnlyOneMemberHasIsRenderedOnce(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2"} {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}))
	}
	d := newDesired()
	d.update(1, someday, s.cluster("a", 1, "n1", "n2"))
	before := d.clusters["ua"].own
	view := s.turn("a", api.ClusterReady)
	d.update(1, someday, view)
	after := d.clusters["ua"].own
	for a := range view.Cluster("a").Held() {
		if &before[a.ID].files[0] != &after[a.ID].files[0] {
			t.Errorf("the files of %s are rendered again", a.ID)
		}
	}
	d.clusters["ua"] = clusterParts{rendered: rendered{basis: "another", own: after}}
	d.update(1, someday, s.turn("a", api.ClusterDegraded))
	for id, own := range d.clusters["ua"].own {
		if &own.files[0] == &after[id].files[0] {
			t.Errorf("the files of %s follow from another cluster's ways, and are not rendered again", id)
		}
	}
}

func TestCertificatesAreRenewedByTimeAloneWithoutTouchingAnythingElse(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	s.cluster("a", 1, "n1")
	view := s.cluster("b", 2, "n2")
	before, _ := d.update(1, someday, view)
	due := d.goodUntil
	if !due.After(someday) || due.After(someday.Add(24*time.Hour)) {
		t.Fatalf("the files are good until %v", due)
	}
	if changed, _ := d.update(1, due.Add(-time.Nanosecond), view); len(changed) > 0 || !d.goodUntil.Equal(due) {
		t.Fatalf("before anything is due, %v are told; the next look is at %v", nodesOf(changed), d.goodUntil)
	}
	after, failed := d.update(1, due, view)
	if len(failed) > 0 || len(after) != 1 {
		t.Fatalf("told %v, failed %v; want the node of one cluster, since the other's day begins at another time", nodesOf(after), failed)
	}
	for node, told := range after {
		was, is := before[node].Members[0], told.Members[0]
		if was.FilesDigest == is.FilesDigest {
			t.Error("the agent can't see that its member's files are others")
		}
		var renewed []string
		for i, f := range is.Files {
			if !reflect.DeepEqual(f, was.Files[i]) {
				renewed = append(renewed, f.Path)
			}
		}
		if !slices.Equal(renewed, []string{"/etc/nearmetal/tls/workload.crt"}) {
			t.Errorf("%v changed, want the certificate alone", renewed)
		}
		was.Files, was.FilesDigest, is.Files, is.FilesDigest = nil, "", nil, ""
		if !reflect.DeepEqual(was, is) || !reflect.DeepEqual(before[node].Networks, told.Networks) {
			t.Errorf("more than files changed: %+v, before %+v", is, was)
		}
	}
	if next := d.goodUntil; !next.After(due) || next.After(someday.Add(24*time.Hour)) {
		t.Errorf("the other cluster's files are good until %v", next)
	}
	if changed, _ := d.update(1, someday.Add(24*time.Hour), view); len(changed) != 1 {
		t.Errorf("at the same time of the next day, %v are told, want the other node", nodesOf(changed))
	}
}

func TestAReleasedAssignmentGetsNoFurtherCertificate(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	d.update(1, someday, s.cluster("a", 1, "n1"))
	changed, failed := d.update(1, someday, s.turn("a", api.ClusterDeleting))
	if len(failed) > 0 || len(changed["n1"].Members) != 1 || len(changed["n1"].Members[0].Files) > 0 {
		t.Fatalf("told %+v, failed %v; want the member without files", changed, failed)
	}
	if later, _ := d.update(1, someday.Add(48*time.Hour), s.cache.View()); len(later) > 0 {
		t.Errorf("days later, told %+v", later)
	}
}

// turn commits another phase of a cluster, and all its members to be released when it is deleting.
func (s *stored) turn(name string, phase api.ClusterPhase) *state.View {
	s.t.Helper()
	c := s.cache.View().Cluster(name)
	record := *c.Record
	record.Phase, record.Chunks = phase, slices.Clone(record.Chunks)
	for i := range record.Chunks {
		record.Chunks[i].Releasing = phase == api.ClusterDeleting
	}
	return s.view(s.leader.Commit(s.t.Context(), c, state.Write{Record: record}))
}

func TestANewLeaderNamesMembersThatRunThoughAPeersUnderlayIsGone(t *testing.T) {
	s := newStored(t)
	if _, err := s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1", Underlay: "198.18.0.1"}); err != nil {
		t.Fatal(err)
	}
	s.cluster("a", 1, "n1", "n2") // n2's agent came back without an underlay
	changed, failed := newDesired().update(1, someday, s.turn("a", api.ClusterReady))
	if failed["a"] == nil {
		t.Error("nobody is told what is wrong with the cluster")
	}
	for _, node := range []string{"n1", "n2"} {
		if m := changed[node].Members; len(m) != 1 || m[0].Release {
			t.Errorf("members of %s: got %+v, want one that stays", node, m)
		}
	}
}

func TestAClusterIsReleasedThoughAPeersUnderlayIsGone(t *testing.T) {
	s := newStored(t)
	for _, name := range []string{"n1", "n2"} {
		if _, err := s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:]}); err != nil {
			t.Fatal(err)
		}
	}
	d := newDesired()
	d.update(1, someday, s.cluster("a", 1, "n1", "n2"))
	s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n2"}))
	if changed, _ := d.update(1, someday, s.turn("a", api.ClusterReady)); len(changed) > 0 {
		t.Errorf("while the cluster is ready: told %v, want them to keep their former share", nodesOf(changed))
	}
	changed, _ := d.update(1, someday, s.turn("a", api.ClusterDeleting))
	for _, node := range []string{"n1", "n2"} {
		if m := changed[node].Members; len(m) != 1 || !m[0].Release {
			t.Errorf("members of %s: got %+v, want one to be released", node, m)
		}
	}
}

func TestANodeWithAShareThatCannotBeRenderedIsToldNothingByANewLeader(t *testing.T) {
	s := newStored(t)
	s.cluster("a", 1, "n1")
	d := newDesiredStates(Config{Secrets: trust.Secrets{{Key: []byte("too short")}}, Pool: placement.DefaultPool, Agents: &scripted{}})
	changed, failed := d.update(1, someday, s.turn("a", api.ClusterReady))
	if failed["a"] == nil {
		t.Fatal("the cluster could be rendered; the test shows nothing")
	}
	if len(changed) > 0 || d.first("n1") {
		t.Errorf("told %v, first %v; want n1 to be told nothing, else it would stop the members of cluster a", nodesOf(changed), d.first("n1"))
	}
	if !d.first("n2") {
		t.Error("n2, which has nothing of the cluster, is not told either")
	}
}

func TestAReleasedMemberIsAskedToGoWithItsClustersHomeUntilItIsClean(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	view := s.cluster("a", 1, "n1")
	d.update(1, someday, view)
	c := view.Cluster("a")
	record := cloned(c.Record)
	record.Phase, record.Chunks[0].Releasing = api.ClusterDeleting, true
	view = s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record}))
	changed, _ := d.update(1, someday, view)
	m := changed["n1"].Members
	if len(m) != 1 || !m[0].Release || !m[0].ReleaseHome {
		t.Fatalf("members of n1: got %+v, want one to be released with its home", m)
	}
	c = view.Cluster("a")
	record = cloned(c.Record)
	record.Clean = []string{m[0].Assignment.ID}
	view = s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record}))
	if changed, _ = d.update(1, someday, view); len(changed["n1"].Members) > 0 || len(changed["n1"].Networks) > 0 {
		t.Errorf("after it is clean: %+v, want nothing on n1", changed["n1"])
	}
}

func TestAQuarantinedMemberIsAskedToGoAfterItsClusterIsGone(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	view := s.cluster("a", 1, "n1")
	var a api.Assignment
	for held := range view.Cluster("a").Held() {
		a = *held
	}
	c := view.Cluster("a")
	record := cloned(c.Record)
	record.Phase, record.Chunks[0].Releasing, record.Clean = api.ClusterDeleting, true, []string{a.ID}
	view = s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record, Quarantines: []api.Quarantine{{Assignment: a, Reason: "stuck"}}}))
	changed, _ := d.update(1, someday, view)
	if m := changed["n1"].Members; len(m) != 1 || !m[0].Release {
		t.Fatalf("members of n1 before: got %+v, want the quarantined one to be released", m)
	}
	view = s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{Forget: true}))
	d.update(1, someday, view)
	m := d.assemble("n1", 1, view.Revision).Members
	if len(m) != 1 || !m[0].Release || m[0].Assignment.ID != a.ID {
		t.Fatalf("members of n1: got %+v, want the quarantined one to be released", m)
	}
	if !m[0].ReleaseHome {
		t.Error("the home of a cluster that is gone stays")
	}
	view = s.view(s.leader.Unquarantine(t.Context(), a.ID))
	if changed, _ = d.update(1, someday, view); len(changed["n1"].Members) > 0 {
		t.Errorf("after the quarantine: %+v, want nothing on n1", changed["n1"].Members)
	}
}

func TestTheHomeOfALivingClusterStaysWhenOneOfItsLostMembersIsCleanedLate(t *testing.T) {
	s := newStored(t)
	d := newDesired()
	view := s.cluster("a", 1, "n1", "n2")
	var lost, stays []api.Assignment
	for held := range view.Cluster("a").Held() {
		if held.Node == "n1" {
			lost = append(lost, *held)
		} else {
			stays = append(stays, *held)
		}
	}
	record := cloned(view.Cluster("a").Record)
	record.Generation, record.Phase, record.Chunks = 2, api.ClusterReady, nil
	view = s.view(s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{
		Record: record, Add: []state.Batch{{Assignments: stays}}, Quarantines: []api.Quarantine{{Assignment: lost[0], Reason: "its node is down"}},
	}))
	changed, _ := d.update(1, someday, view)
	if m := changed["n1"].Members; len(m) != 1 || !m[0].Release || m[0].ReleaseHome {
		t.Errorf("members of n1: got %+v, want the lost one to be released without its cluster's home", m)
	}
}

// cloned is a copy of a record to change.
func cloned(r *api.ClusterRecord) api.ClusterRecord {
	record := *r
	record.Chunks = slices.Clone(r.Chunks)
	return record
}

func TestADeposedLeaderCommitsNothing(t *testing.T) {
	s := newStored(t)
	if _, err := s.repo.Store().Campaign(t.Context(), "test"); err != nil { // takes the place of the former one
		t.Fatal(err)
	}
	view := s.view(s.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "a", UID: "ua"}))
	_, err := s.leader.Commit(t.Context(), view.Cluster("a"), state.Write{Record: api.ClusterRecord{Name: "a", UID: "ua", Phase: api.ClusterRefused}})
	if !errors.Is(err, store.ErrNotLeader) {
		t.Errorf("got %v, want ErrNotLeader", err)
	}
}
