package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// observed is a fixed Observed: members by ID, trouble of nodes by name (absent: ready).
type observed struct {
	members map[string]api.MemberPhase
	trouble map[string]string
}

func (o observed) Member(a *api.Assignment) (api.MemberPhase, string, bool) {
	phase, ok := o.members[a.ID]
	return phase, "", ok
}

func (observed) Volumes(string) ([]volume.State, []string, bool) { return nil, nil, true }
func (observed) Boot(*api.Assignment) string                     { return "" }
func (observed) Size(*api.Assignment) (int64, string)            { return 0, "" }
func (observed) Mounted(*api.Assignment) (int64, string)         { return 0, "" }
func (observed) Layers(*api.Assignment) int64                    { return 0 }
func (observed) Condition(*api.Assignment) (int64, string)       { return 0, "" }
func (o observed) OnMachine(a *api.Assignment) (api.MemberPhase, string, bool) {
	return api.MemberPreparing, "its machine boots", a.ByProvisioner() && a.Node == "booting"
}

func (observed) Arriving(*api.Assignment) (bytes, ofBytes int64) { return 0, 0 }

func (o observed) Node(name string) (api.NodePhase, time.Time, string) {
	if t := o.trouble[name]; t != "" {
		return api.NodeUnknown, time.Time{}, t
	}
	return api.NodeReady, time.Unix(1, 0), ""
}

// stored makes a cluster with two members held on n1 and n2 (and one releasing on n2) by really storing it.
func stored(t *testing.T, phase api.ClusterPhase, deleting bool) *state.Cluster {
	t.Helper()
	ctx := t.Context()
	st := memory.New()
	repo := state.New(st)
	intent := api.ClusterIntent{
		Name: "c1", UID: "u1", CreatedAt: time.Unix(100, 0).UTC(),
		Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c1", Size: 3, Shape: api.Shape{Cores: 1}}}},
	}
	if _, err := repo.CreateCluster(ctx, intent); err != nil {
		t.Fatal(err)
	}
	if deleting {
		if _, _, err := repo.RequestDelete(ctx, "c1", time.Unix(200, 0).UTC()); err != nil {
			t.Fatal(err)
		}
	}
	cacheCtx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	cache, err := repo.OpenCache(cacheCtx)
	if err != nil {
		t.Fatal(err)
	}
	if phase == "" {
		return cache.Cluster("c1")
	}
	lead, err := st.Campaign(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	assign := func(member string, rank int, node string, over bool) api.Assignment {
		return api.Assignment{
			ID: "u1." + member + ".1", Member: member, Group: "c1", Rank: rank, Node: node, Slots: []int{rank}, CPUs: []int{rank},
			Memory: []api.MemoryClaim{{Bytes: 1 << 20}}, Ports: []api.PortClaim{{Address: netip.MustParseAddr("10.64.16.1")}}, Oversubscribed: over,
		}
	}
	rec := api.ClusterRecord{
		Name: "c1", UID: "u1", Generation: 1, Phase: phase, Message: "why",
		Networks: []api.NetworkRef{{UID: "u1", Prefix: netip.MustParsePrefix("10.64.16.0/20")}},
	}
	rev, err := repo.AsLeader(lead).Commit(ctx, cache.Cluster("c1"), state.Write{Record: rec, Add: []state.Batch{{Assignments: []api.Assignment{assign("c1-0", 0, "n1", false), assign("c1-1", 1, "n2", true)}}, {Assignments: []api.Assignment{assign("c1-2", 2, "n2", false)}, Releasing: true}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cache.WaitRevision(ctx, rev); err != nil {
		t.Fatal(err)
	}
	return cache.Cluster("c1")
}

// memberPhases are the members of a cluster and their phases in order.
func memberPhases(c api.Cluster) []string {
	phases := []string{}
	for _, m := range c.Status.Members {
		phases = append(phases, m.Name+" "+string(m.Phase))
	}
	return phases
}

func TestJoiningIntentRecordAndObservations(t *testing.T) {
	const m0, m1 = "u1.c1-0.1", "u1.c1-1.1"
	tests := []struct {
		name         string
		phase        api.ClusterPhase
		deleting     bool
		seen         observed
		want         api.ClusterPhase
		members      []string
		ready, total int
	}{
		{"no decision yet is pending, with the size asked for", "", false, observed{}, api.ClusterPending, []string{}, 0, 3},
		{"asked to be deleted before any decision", "", true, observed{}, api.ClusterDeleting, []string{}, 0, 3},
		{
			"a starting member nobody reported on is assigned", api.ClusterStarting, false,
			observed{members: map[string]api.MemberPhase{m0: api.MemberReady}},
			api.ClusterStarting,
			[]string{"c1-0 ready", "c1-1 assigned", "c1-2 waiting", "c1-2 releasing"},
			1, 3,
		},
		{
			"a member of a ready cluster nobody reported on is unknown, not new", api.ClusterReady, false,
			observed{members: map[string]api.MemberPhase{m0: api.MemberReady}},
			api.ClusterReady,
			[]string{"c1-0 ready", "c1-1 unknown", "c1-2 waiting", "c1-2 releasing"},
			1, 3,
		},
		{
			"a silent node makes its members unknown, whatever they last said", api.ClusterReady, false,
			observed{
				members: map[string]api.MemberPhase{m0: api.MemberReady, m1: api.MemberReady},
				trouble: map[string]string{"n1": "its agent is disconnected"},
			},
			api.ClusterReady,
			[]string{"c1-0 unknown", "c1-1 ready", "c1-2 waiting", "c1-2 releasing"},
			1, 3,
		},
		{
			"a failed member shows as failed", api.ClusterFailed, false,
			observed{members: map[string]api.MemberPhase{m0: api.MemberFailed, m1: api.MemberReady}},
			api.ClusterFailed,
			[]string{"c1-0 failed", "c1-1 ready", "c1-2 releasing"},
			1, 2,
		},
		{
			"asked to be deleted is deleting at once, before the leader notices", api.ClusterReady, true,
			observed{members: map[string]api.MemberPhase{m0: api.MemberReady, m1: api.MemberReady}},
			api.ClusterDeleting,
			[]string{"c1-0 ready", "c1-1 ready", "c1-2 releasing"},
			2, 2,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := joinCluster(stored(t, tt.phase, tt.deleting), tt.seen)
			if got.Status.Phase != tt.want || got.Status.ReadyMembers != tt.ready || got.Status.TotalMembers != tt.total {
				t.Errorf("got %s %d/%d, want %s %d/%d", got.Status.Phase, got.Status.ReadyMembers, got.Status.TotalMembers, tt.want, tt.ready, tt.total)
			}
			if diff := cmp.Diff(tt.members, memberPhases(got)); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
			if got.Status.Oversubscribed != (tt.phase != "") {
				t.Errorf("oversubscribed %v: one member that shares a core labels the cluster", got.Status.Oversubscribed)
			}
		})
	}
}

// agents are nodes of which only their agents said something.
func agents(records ...api.NodeRecord) []*state.Node {
	nodes := make([]*state.Node, len(records))
	for i, r := range records {
		nodes[i] = &state.Node{Name: r.Name, Agent: &r, Identity: &api.NodeIdentity{Node: r.Name, ApprovedAt: new(time.Time)}}
	}
	return nodes
}

func TestNodesShowWhatIsTakenReleasingIncludedAndQuarantined(t *testing.T) {
	c := stored(t, api.ClusterReady, false)
	view := &state.View{
		Clusters: []*state.Cluster{c}, Nodes: agents(api.NodeRecord{Name: "n1"}, api.NodeRecord{Name: "n2"}),
		Quarantines: []*api.Quarantine{{Assignment: api.Assignment{Node: "n1", Slots: []int{3, 4}}}, {Assignment: api.Assignment{Node: "gone"}}},
	}
	got := joinNodes(view, observed{trouble: map[string]string{"n1": "silent"}}, tenancy.Principal{Role: api.RoleAdmin})
	type row struct {
		Phase                 api.NodePhase
		Cores, Quarantined    int
		Memory                int64
		Members               []string
		Message               string
		HeardOf, HasNoMembers bool
	}
	var rows []row
	for _, n := range got {
		rows = append(rows, row{
			n.Phase, n.AllocatedCores, n.QuarantinedCores, n.AllocatedMemoryBytes, n.Members, n.Message, n.Agent.LastSeenAt != nil, len(n.Members) == 0,
		})
	}
	want := []row{
		{api.NodeUnknown, 1, 2, 1 << 20, []string{"c1/c1-0"}, "silent", false, false},
		{api.NodeReady, 2, 0, 2 << 20, []string{"c1/c1-1", "c1/c1-2"}, "", true, false},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestWhoHoldsAGPUIsHiddenFromOtherProjects(t *testing.T) {
	member := api.Assignment{
		ID: "u.c1-0.1", ClusterUID: "u", Member: "c1-0", Node: "n1", Devices: []api.DeviceClaim{{Class: "gpu", Device: "g1", Way: "whole"}},
	}
	server := api.Assignment{
		ID: "u.c1-1.1-d0", Of: "u.c1-1.1", ClusterUID: "u", Member: "c1-1", Node: "n1",
		Devices: []api.DeviceClaim{{Class: "gpu", Device: "g2", Way: "remote", Takes: map[string]int64{"remote-mib": 512}}},
	}
	st := memory.New()
	repo := state.New(st)
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lead, err := st.Campaign(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.CreateProject(t.Context(), api.Project{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	created, err := repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "lab.c1", UID: "u", Project: "lab"})
	if err == nil {
		_, err = cache.WaitRevision(t.Context(), created)
	}
	if err != nil {
		t.Fatal(err)
	}
	rev, err := repo.AsLeader(lead).Commit(t.Context(), cache.Cluster("lab.c1"), state.Write{
		Record: api.ClusterRecord{Name: "lab.c1", UID: "u", Generation: 1, Phase: api.ClusterReady}, Add: []state.Batch{{Assignments: []api.Assignment{member, server}}},
	})
	if err == nil {
		_, err = cache.WaitRevision(t.Context(), rev)
	}
	if err != nil {
		t.Fatal(err)
	}
	view := &state.View{Clusters: []*state.Cluster{cache.Cluster("lab.c1")}, Nodes: agents(api.NodeRecord{Name: "n1"})}
	view.Nodes[0].Measures = &api.NodeMeasures{Served: map[string]api.GPUService{server.ID: {Calls: 3, Waits: 2, BusySeconds: 1, WaitSeconds: 0.25}}}
	shown := []api.MemberStatus{{Name: "c1-0", Devices: []api.MemberDevice{{Class: "gpu", Node: "n1", Device: "g2"}}}, {Name: "c1-1", Devices: []api.MemberDevice{{Class: "gpu", Node: "n1", Device: "g2"}}}}
	withGPUs(view, cache.Cluster("lab.c1"), shown)
	if shown[0].Devices[0].Service != nil || shown[1].Devices[0].Service == nil || shown[1].Devices[0].Observed != 1.5 {
		t.Errorf("members are shown with %+v, want what its server did with c1-1 alone", shown)
	}
	for project, want := range map[string]string{"lab": "g1 by c1/c1-0, g2 by c1/c1-1 observed 1.50", "other": "g1 by , g2 by "} {
		n := joinNodes(view, observed{}, tenancy.Principal{Role: api.RoleMember, Project: project})[0]
		var uses []string
		for _, u := range n.GPUUses {
			text := u.Device + " by " + u.Member
			if u.Service != nil {
				text += fmt.Sprintf(" observed %.2f", u.Observed)
			}
			uses = append(uses, text)
		}
		if got := strings.Join(uses, ", "); got != want {
			t.Errorf("to project %s: %q, want %q: how much is taken, and of others not by whom", project, got, want)
		}
	}
}

func TestAGPUThatItsNodeDoesNotOfferAnyMoreIsShownAsGone(t *testing.T) {
	slice := func(id string) api.Device {
		return api.Device{ID: id, Class: "gpu", Ways: map[string]api.DeviceWay{"mig": {Mode: "mig"}}}
	}
	rec := api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{Devices: []api.Device{slice("MIG-a"), {ID: "GPU-b", Class: "gpu", Ways: map[string]api.DeviceWay{"mig": {}}}}}}
	a := &api.Assignment{ID: "u.c1-0.1", Member: "c1-0", Node: "n1", Devices: []api.DeviceClaim{
		{Class: "gpu", Device: "MIG-a", Way: "mig", Parent: "GPU-a", Profile: "1g.10gb"},
		{Class: "gpu", Device: "MIG-b", Way: "mig", Parent: "GPU-a", Profile: "1g.10gb"},
		{Class: "gpu", Device: "GPU-b", Way: "whole"},
		{Class: "nic", Device: "0000:3b:00.0", Way: "vf"},
	}}
	for name, c := range map[string]struct {
		nodes []*state.Node
		want  string
	}{
		"a node that is heard of":        {agents(rec), "MIG-a , MIG-b node n1 does not offer its slice MIG-b of GPU GPU-a any more, and hands out nothing more of that GPU before the member ends, GPU-b node n1 does not offer its GPU GPU-b any more, "},
		"one whose agent never reported": {[]*state.Node{{Name: "n1"}}, "MIG-a , MIG-b , GPU-b , "},
	} {
		got := ""
		for _, u := range gpuUses(&state.View{Nodes: c.nodes}, a, "c1/c1-0") {
			got += u.Device + " "
			if u.Gone {
				got += goneText(&u.MemberDevice)
			}
			got += ", "
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestANodeWhoseIdentityIsNoneOrWaitsSaysSo(t *testing.T) {
	at := time.Now()
	view := &state.View{Nodes: []*state.Node{
		{Name: "n1", Identity: &api.NodeIdentity{Node: "n1"}},
		{Name: "n2", Identity: &api.NodeIdentity{Node: "n2", ApprovedAt: &at}},
		{Name: "n3", Agent: &api.NodeRecord{Name: "n3"}},
		{Name: "n4", Agent: &api.NodeRecord{Name: "n4"}, Identity: &api.NodeIdentity{Node: "n4"}},
	}}
	silent := observed{trouble: map[string]string{"n3": "silent", "n4": "silent"}}
	for role, shown := range map[api.Role]bool{api.RoleAdmin: true, api.RoleViewer: false} {
		got := joinNodes(view, silent, tenancy.Principal{Role: role})
		for i, want := range []struct {
			phase api.NodePhase
			says  string
		}{
			{api.NodePending, "node approve n1"}, {api.NodeUnknown, "has not called yet"}, {api.NodeUnknown, "was revoked"}, {api.NodePending, "node approve n4"},
		} {
			if n := got[i]; n.Phase != want.phase || !strings.Contains(n.Message, want.says) || (n.Identity != nil) != (shown && view.Nodes[i].Identity != nil) {
				t.Errorf("to %s %s is %s (%s) with identity %+v; want %s, %q", role, n.Name, n.Phase, n.Message, n.Identity, want.phase, want.says)
			}
		}
	}
}

func TestEnvironmentsAreGatheredFromNodes(t *testing.T) {
	on := func(name string, ok bool, stacks ...api.Stack) api.EnvironmentOnNode {
		return api.EnvironmentOnNode{Name: name, OK: ok, Stacks: stacks}
	}
	view := &state.View{Nodes: agents(
		api.NodeRecord{Name: "n1", Environments: []api.EnvironmentOnNode{on("z", true, api.StackContainer), on("local", true, api.StackContainer)}},
		api.NodeRecord{Name: "n2", Environments: []api.EnvironmentOnNode{on("local", false, api.StackContainer, api.StackVM)}},
	)}
	got := joinEnvironments(view)
	want := []api.Environment{
		{Name: "local", Stacks: []api.Stack{api.StackContainer, api.StackVM}, Nodes: []api.EnvironmentNode{{Node: "n1", OK: true}, {Node: "n2"}}},
		{Name: "z", Stacks: []api.Stack{api.StackContainer}, Nodes: []api.EnvironmentNode{{Node: "n1", OK: true}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environments (-want +got):\n%s", diff)
	}
}

func TestMetalIsRefusedWhereTheSiteHandsOutNoMachines(t *testing.T) {
	inspected := &state.Node{Name: "n2", Machine: &state.Machine{Hardware: &api.Hardware{}}}
	view := &state.View{
		Nodes:        append(agents(api.NodeRecord{Name: "n1", Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}}}), inspected),
		Environments: []*api.EnvironmentRecord{{Name: "debian-mpi"}},
	}
	spec := api.ClusterSpec{Groups: []api.Group{{Name: "m", Stack: api.StackMetal, Environment: "debian-mpi"}}}
	var refused *failure
	if err := knownHere("default", spec, view, offer.Site{}); !errors.As(err, &refused) || !strings.Contains(err.Error(), `stack "metal" of group "m" is not offered by any node`) {
		t.Errorf("a site without a metal driver: %v", err)
	}
	if err := knownHere("default", spec, view, offer.Site{Metal: true}); err != nil {
		t.Errorf("a site with machines to hand out: %v", err)
	}
	inspected.Machine = &state.Machine{}
	if err := knownHere("default", spec, view, offer.Site{Metal: true}); err == nil {
		t.Error("it is offered by a machine that nobody has looked at")
	}
}

// While a whole machine boots for its member, users are shown how far it is, though its agent is not heard of.
func TestAMemberIsShownAsItsMachineBoots(t *testing.T) {
	seen := observed{trouble: map[string]string{"booting": "silent", "silent": "silent"}}
	for node, want := range map[string]api.MemberPhase{"booting": api.MemberPreparing, "silent": api.MemberUnknown} {
		a := api.Assignment{ID: "c.m-0.1", Member: "m-0", Node: node, Stack: api.StackMetal, Whole: true, CleanBy: []api.Prover{{By: api.ExecutorProvisioner, At: node}}}
		if m := joinMember(&api.ClusterRecord{}, &a, seen, true); m.Phase != want {
			t.Errorf("a member on machine %s is shown as %s: %s; want %s", node, m.Phase, m.Message, want)
		}
	}
}
