package situation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// told is what is heard of agents: all nodes are ready.
type told map[string]monitor.MemberState

func (told) Node(string) (api.NodePhase, time.Time, string) { return api.NodeReady, time.Time{}, "" }
func (told) Reported(string) bool                           { return true }
func (told) Clean(string) []string                          { return nil }
func (told) Datasets() []datasetplan.Node                   { return nil }
func (h told) MemberState(_, id string) (monitor.MemberState, bool) {
	seen, ok := h[id]
	return seen, ok
}

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// hurt is a site with a cluster of two members and a spare, of 2 cores and a GPU of 7 slices each: c-0 is held on n1, c-1 was lost on n2 and is being cleaned,
// the spare is missing. n4 is drained.
func hurt(t *testing.T) *state.View {
	t.Helper()
	repo := state.New(memory.New())
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	view := func(revision int64, err error) *state.View {
		t.Helper()
		if err == nil {
			_, err = cache.WaitRevision(t.Context(), revision)
		}
		if err != nil {
			t.Fatal(err)
		}
		return cache.View()
	}
	leadership, err := repo.Store().Campaign(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		record := api.NodeRecord{Name: name, Capacity: api.NodeCapacity{MemoryBytes: 8 << 30, Devices: []api.Device{{
			ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 7}, Ways: map[string]api.DeviceWay{"whole": {Takes: map[string]int64{"slices": 7}}},
		}}}}
		for slot := range 4 {
			record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
		}
		view(repo.PutNode(t.Context(), record))
	}
	_, revision, err := repo.SetDrain(t.Context(), "n4", "", "ann", noon)
	view(revision, err)
	c := view(repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "c", UID: "u", CreatedAt: noon.Add(-time.Hour), Spec: api.ClusterSpec{
		TimeLimit: api.Duration(2 * time.Hour), Groups: []api.Group{{
			Name: "c", Size: 2, Spares: 1, Shape: api.Shape{Cores: 2, Memory: 1 << 30}, Stack: api.StackContainer, Environment: "local",
			Devices: []api.DeviceRequest{{Class: "gpu", Way: "whole", Count: 1, Remote: true}},
		}},
	}})).Cluster("c")
	placed, released := noon.Add(-time.Hour), noon.Add(-time.Minute)
	member := func(name, node string, rank int) api.Assignment {
		return api.Assignment{
			ID: "u." + name + ".1", ClusterUID: "u", Cluster: "c", Group: "c", Member: name, Node: node, Rank: rank,
			Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: 1 << 30}}, TakenAt: placed,
			Devices: []api.DeviceClaim{{Class: "gpu", Device: "gpu0", Way: "whole", Takes: map[string]int64{"slices": 7}}},
		}
	}
	return view(repo.AsLeader(leadership).Commit(t.Context(), c, state.Write{
		Record: api.ClusterRecord{
			Name: "c", UID: "u", Generation: 2, Phase: api.ClusterDegraded, ChangedAt: released, PlacedAt: &placed, ReadyAt: &placed,
			Lost: []api.LostMember{{Group: "c", Member: "c-1", Rank: 1, Assignment: "u.c-1.1", Node: "n2", Attempt: 1, Since: released}},
		},
		Add: []state.Batch{
			{Assignments: []api.Assignment{member("c-0", "n1", 0)}},
			{Assignments: []api.Assignment{member("c-1", "n2", 1)}, Releasing: true, ReleasedAt: &released},
		},
	}))
}

// see looks at a site of which the members in heard are heard; the clock by which that is reads a day less than the leader's.
func see(view *state.View, heard told) *Site {
	return Observe(view, heard, nil, noon, noon.Add(-24*time.Hour), noon.Add(-time.Hour), lifecycle.DefaultDeadlines())
}

func TestPatienceCountsFromWhenAPhaseWasHeardByTheLeadersClock(t *testing.T) {
	view := hurt(t)
	s := see(view, told{"u.c-0.1": {Phase: api.MemberUnhealthy, Since: noon.Add(-24*time.Hour - 7*time.Second)}})
	if got, want := s.Cluster(view.Cluster("c")).Observed["u.c-0.1"].Since, noon.Add(-7*time.Second); !got.Equal(want) {
		t.Errorf("unhealthy since %s, want %s", got, want)
	}
}

func TestADrainedNodeIsNotToBePlacedOn(t *testing.T) {
	s := see(hurt(t), nil)
	for node, want := range map[string]placement.Availability{"n3": placement.Schedulable, "n4": placement.Drained} {
		if got := s.Available(node); got != want {
			t.Errorf("%s is %s, want %s", node, got, want)
		}
	}
}

func TestANodeWithoutWireGuardIsNotToBePlacedOnWhereTheUnderlayIsEncrypted(t *testing.T) {
	s := see(hurt(t), nil)
	s.Encrypted = true
	for node, want := range map[string]placement.Availability{"n3": placement.Unencrypted, "n4": placement.Drained} {
		if got := s.Available(node); got != want {
			t.Errorf("%s is %s, want %s", node, got, want)
		}
	}
	s.View.Agent("n3").WireGuardKey = "key"
	if got := s.Available("n3"); got != placement.Schedulable {
		t.Errorf("n3 with a key is %s, want schedulable", got)
	}
}

func TestWhatAClusterAsksForSaysWhereItShouldNotBe(t *testing.T) {
	s := see(hurt(t), told{"u.c-0.1": {Phase: api.MemberReady, Current: true, Since: noon.Add(-25 * time.Hour)}})
	var room Room
	free, err := room.Update(s.View, s.Available)
	if err != nil {
		t.Fatal(err)
	}
	avoid := map[admission.Kind][]string{}
	in := s.Admission(s.Needs(), free)
	for _, r := range in.Requests {
		avoid[r.Kind] = r.Avoid
	}
	for kind, want := range map[admission.Kind][]string{admission.KindHeal: {"n2"}, admission.KindSpare: {"n1"}} {
		if got, asked := avoid[kind]; !asked || !slices.Equal(got, want) {
			t.Errorf("%s: asked %t, avoids %v, want %v", kind, asked, got, want)
		}
	}
}

func TestALostMemberCountsAgainstTheQuotaUntilItIsReplaced(t *testing.T) {
	s := see(hurt(t), nil)
	want := resource.Amounts{
		Vector: resource.Vector{resource.Clusters: 1, resource.Members: 2, resource.Cores: 4, resource.Memory: 2 << 30}, Devices: resource.Devices{"gpu/slices": 14},
	}
	if got := s.Admission(nil, nil).Accounts[api.DefaultProject].Used; !got.Equal(want) {
		t.Errorf("used: got %+v, want %+v", got, want)
	}
}

func TestOfALostSavedMemberOnlyTheMembershipCountsAgainstTheQuota(t *testing.T) {
	s := see(hurt(t), nil)
	s.View.Cluster("c").Record.Lost[0].Saved = true
	want := resource.Amounts{
		Vector: resource.Vector{resource.Clusters: 1, resource.Members: 2, resource.Cores: 2, resource.Memory: 1 << 30}, Devices: resource.Devices{"gpu/slices": 7},
	}
	if got := s.Admission(nil, nil).Accounts[api.DefaultProject].Used; !got.Equal(want) {
		t.Errorf("used: got %+v, want %+v", got, want)
	}
	for _, r := range s.Admission(s.Needs(), nil).Requests {
		if heal := r.Kind == admission.KindHeal; r.Regains != heal {
			t.Errorf("request %s: it counts against the quota again: %t, want %t", r.Kind, r.Regains, heal)
		}
	}
}

func TestWhatIsBeingCleanedComesSoonAndTheRestWithTheTimeLimitAndItsGrace(t *testing.T) {
	s := see(hurt(t), nil)
	ends := noon.Add(time.Hour + lifecycle.DefaultDeadlines().Grace + admission.ReleaseTime)
	running := s.Admission(nil, nil).Running
	if len(running) != 2 {
		t.Fatalf("got %+v, want what the cluster holds and what it gives back", running)
	}
	if r := running[0]; r.Releasing || !r.Ends.Equal(ends) || !slices.Equal(r.Assignments, []string{"u.c-0.1"}) {
		t.Errorf("holds: got %+v, want u.c-0.1 until %s", r, ends)
	}
	if r := running[1]; !r.Releasing || !slices.Equal(r.Assignments, []string{"u.c-1.1"}) {
		t.Errorf("gives back: got %+v, want u.c-1.1, soon", r)
	}
}

func TestANodeThatWasRemovedWithItsMachineIsDownForItsMembers(t *testing.T) {
	view := *hurt(t)
	view.Nodes = slices.DeleteFunc(slices.Clone(view.Nodes), func(n *state.Node) bool { return n.Name == "n1" })
	site := Observe(&view, told{}, nil, noon, noon, noon.Add(-time.Hour), lifecycle.DefaultDeadlines())
	if got := site.Cluster(view.Cluster("c")).Nodes["n1"]; got.Phase != api.NodeDown || !got.Removed {
		t.Errorf("the node of c-0, which is not in the inventory, is %+v, want it down and removed", got)
	}
}

func TestEachKindOfNeedIsDescribed(t *testing.T) {
	for _, kind := range []lifecycle.NeedKind{lifecycle.NeedCreate, lifecycle.NeedScale, lifecycle.NeedHeal, lifecycle.NeedSpare, lifecycle.NeedRestore, lifecycle.NeedMove} {
		for _, members := range []int{1, 2} {
			text := describe(api.Waiting{Kind: string(kind), Members: members, Reason: "there is no room"}, time.Time{})
			if !strings.Contains(text, "wait") || strings.Contains(text, "%!") {
				t.Errorf("%d members that ask for room to %s: %q", members, kind, text)
			}
		}
	}
}
