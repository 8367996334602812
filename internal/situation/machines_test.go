package situation

import (
	"context"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestOnlyMachinesThatAreReadyAndStayGetMembers(t *testing.T) {
	for name, test := range map[string]struct {
		change func(in *api.MachineIntent, r *api.MachineRecord)
		want   placement.Availability
		clean  bool
	}{
		"ready":                {func(*api.MachineIntent, *api.MachineRecord) {}, placement.Schedulable, false},
		"its root still comes": {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase = api.MachineBooting }, placement.Unknown, false},
		"stopping":             {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase = api.MachineStopping }, placement.Returning, false},
		"asked to go off": {func(in *api.MachineIntent, _ *api.MachineRecord) {
			in.Request = api.PowerRequest{Number: 1, Action: api.PowerActionOff}
		}, placement.Drained, false},
		"asked to stay on": {func(in *api.MachineIntent, _ *api.MachineRecord) {
			in.Request = api.PowerRequest{Number: 1, Action: api.PowerActionOn}
		}, placement.Schedulable, false},
		"to be inspected": {func(in *api.MachineIntent, _ *api.MachineRecord) { in.Inspect = 1 }, placement.Drained, false},
		"to be removed":   {func(in *api.MachineIntent, _ *api.MachineRecord) { in.RemoveRequestedAt = &noon }, placement.Drained, false},
		"off, as read":    {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase, r.Power = api.MachineOff, api.PowerOff }, placement.Asleep, true},
		"off, as read, in the boot that the assignment was made in": {func(_ *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, r.Generation = api.MachineOff, api.PowerOff, 3
		}, placement.Asleep, false},
		"off, by its silence": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, in.Spec.Power.Kind = api.MachineOff, api.PowerOff, api.PowerWakeOnLAN
		}, placement.Asleep, false},
		"warm": {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase, r.Power = api.MachineWarm, api.PowerOn }, placement.Warm, false},
		"warm, and asked to go off": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, in.Request = api.MachineWarm, api.PowerOn, api.PowerRequest{Number: 1, Action: api.PowerActionOff}
		}, placement.Returning, false},
		"warm, and not cleaned after a member": {func(_ *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, r.Tenant = api.MachineWarm, api.PowerOn, &api.MachineTenant{Assignment: "a"}
		}, placement.Returning, false},
		"off, and not cleaned after a member": {func(_ *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, r.Tenant = api.MachineOff, api.PowerOff, &api.MachineTenant{Assignment: "a"}
		}, placement.Returning, true},
		"off for a paused cluster": {func(_ *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, r.Tenant = api.MachineOff, api.PowerOff, &api.MachineTenant{Assignment: "a", Paused: true}
		}, placement.Down, true},
		"cleaned": {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase = api.MachineCleaning }, placement.Returning, false},
		"cleaned, and to be removed": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, in.RemoveRequestedAt = api.MachineCleaning, &noon
		}, placement.Drained, false},
		"cleaned, and asked to boot": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, in.Request = api.MachineCleaning, api.PowerRequest{Number: 1, Action: api.PowerActionOn}
		}, placement.Drained, false},
		"cleaned, and to be held": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, in.Hold = api.MachineCleaning, api.HoldRequest{Number: 1}
		}, placement.Drained, false},
		"off, and quarantined": {func(_ *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, r.Quarantine = api.MachineOff, api.PowerOff, &api.MachineQuarantine{}
		}, placement.Down, true},
		"off, and asked to boot": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, in.Request = api.MachineOff, api.PowerOff, api.PowerRequest{Number: 1, Action: api.PowerActionOn}
		}, placement.Down, true},
		"off, and to be inspected": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, in.Inspect = api.MachineOff, api.PowerOff, 1
		}, placement.Returning, true},
		"off, and to be removed": {func(in *api.MachineIntent, r *api.MachineRecord) {
			r.Phase, r.Power, in.RemoveRequestedAt = api.MachineOff, api.PowerOff, &noon
		}, placement.Down, true},
		"off, not read": {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase, r.Power = api.MachineOff, api.PowerUnknown }, placement.Drained, false},
		"asked to boot another environment": {func(in *api.MachineIntent, _ *api.MachineRecord) {
			in.Request = api.PowerRequest{Number: 1, Action: api.PowerActionOn, Environment: "rescue"}
		}, placement.Drained, false},
		"about to be reset to be looked at": {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase = api.MachineInspecting }, placement.Returning, false},
		"failed, and its agent came late":   {func(_ *api.MachineIntent, r *api.MachineRecord) { r.Phase = api.MachineFailed }, placement.Drained, false},
	} {
		t.Run(name, func(t *testing.T) {
			repo := state.New(memory.New())
			cache, err := repo.OpenCache(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			stored := func(revision int64, err error) *state.View {
				t.Helper()
				if err == nil {
					_, err = cache.WaitRevision(t.Context(), revision)
				}
				if err != nil {
					t.Fatal(err)
				}
				return cache.View()
			}
			leadership, err := repo.Store().Campaign(context.WithoutCancel(t.Context()), "test")
			if err != nil {
				t.Fatal(err)
			}
			in := api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}, Power: api.PowerControl{Kind: api.PowerRedfish}}}
			r := api.MachineRecord{Name: "n1", UID: "u1", Phase: api.MachineReady, Power: api.PowerOn, Generation: 4, Boot: &api.Boot{Environment: "debian-mpi"}}
			test.change(&in, &r)
			view := stored(repo.CreateMachine(t.Context(), in))
			stored(repo.AsLeader(leadership).CommitMachine(t.Context(), view.Machine("n1"), state.MachineWrite{Record: r}))
			view = stored(repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
			site := Observe(view, told{}, nil, noon, noon, noon, lifecycle.DefaultDeadlines())
			if got := site.Available("n1"); got != test.want {
				t.Errorf("it is %s, want %s", got, test.want)
			}
			rests := test.want == placement.Asleep || test.want == placement.Warm || test.want == placement.Returning
			if got := site.Rests("n1"); got != rests {
				t.Errorf("it rests: %t, want %t", got, rests)
			}
			agent := api.ByAgents("n1")
			inRAM := api.Assignment{ID: "a", Node: "n1", CleanBy: agent, RAMBoot: 3}
			if got := site.Proved(&inRAM, agent[0]); got != test.clean {
				t.Errorf("an assignment in the memory of its third boot counts as clean: %v, want %v", got, test.clean)
			}
			onDisk := api.Assignment{ID: "a", Node: "n1", CleanBy: agent}
			elsewhere := api.Assignment{ID: "a", Node: "n2", CleanBy: agent, RAMBoot: 3}
			by := api.Prover{By: api.ExecutorFabric, At: "n1"}
			if site.Proved(&onDisk, agent[0]) || site.Proved(&elsewhere, agent[0]) || site.Proved(&inRAM, by) {
				t.Error("the power of a machine proves clean what is on its disk, on another node, or in a fabric")
			}
		})
	}
}

func TestABuiltEnvironmentIsOfferedByMachinesThatWereInspected(t *testing.T) {
	img := &api.Image{
		Digest: "sha256:d", Environment: "debian-mpi", Architecture: "x86_64", Stacks: []api.Stack{api.StackContainer, api.StackMetal},
		RootBytes: 150 << 20, MetalBytes: 18 << 20, Requirements: api.Requirements{MemoryBytes: 1 << 40},
	}
	view := &state.View{
		Images: []*api.Image{img}, Environments: []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: "sha256:d"}},
		Nodes: []*state.Node{
			{Name: "n1", Machine: &state.Machine{Hardware: &api.Hardware{Architecture: "x86_64", MemoryBytes: 1 << 30}}},
			{Name: "n2", Machine: &state.Machine{Hardware: &api.Hardware{Architecture: "aarch64", MemoryBytes: 1 << 30}}},
		},
	}
	for name, want := range map[string]bool{"n1": true, "n2": false, "n3": true} {
		n := &state.Node{Name: name, Agent: &api.NodeRecord{Name: name, Images: true}}
		if known := view.Node(name); known != nil {
			n.Machine = known.Machine
		}
		offered := Offer(view, n, offer.Site{})
		if len(offered.Environments) != 1 || offered.Environments[0].OK != want || offered.Environments[0].Digest != "sha256:d" {
			t.Errorf("%s offers %+v, want debian-mpi: %v", name, offered.Environments, want)
		}
	}
	if offered := Offer(view, &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1"}}, offer.Site{}); len(offered.Environments) != 0 {
		t.Errorf("a node that can't mount images offers %+v", offered.Environments)
	}
}

func TestABuiltEnvironmentIsForVirtualMachinesWhereTheNodeCarriesThem(t *testing.T) {
	carries, lacks := api.StackCheck{Stack: api.StackVM, OK: true}, api.StackCheck{Stack: api.StackVM, Problems: []string{"QEMU is missing"}}
	for _, tt := range []struct {
		name  string
		image []api.Stack
		check api.StackCheck
		want  []api.Stack
	}{
		{"an image for both on a node that carries both", []api.Stack{api.StackContainer, api.StackVM}, carries, []api.Stack{api.StackContainer, api.StackVM}},
		{"an image for both on a node without QEMU", []api.Stack{api.StackContainer, api.StackVM}, lacks, []api.Stack{api.StackContainer}},
		{"an image for containers on a node that carries both", []api.Stack{api.StackContainer, api.StackMetal}, carries, []api.Stack{api.StackContainer}},
		{"an image for virtual machines on a node that carries both", []api.Stack{api.StackVM}, carries, []api.Stack{api.StackVM}},
		{"an image for virtual machines on a node without QEMU", []api.Stack{api.StackVM}, lacks, nil},
	} {
		view := &state.View{
			Images:       []*api.Image{{Digest: "sha256:d", Stacks: tt.image}},
			Environments: []*api.EnvironmentRecord{{Name: "e", Digest: "sha256:d"}},
		}
		n := &state.Node{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Images: true, Stacks: []api.StackCheck{tt.check}}}
		var got []api.Stack
		for _, e := range Offer(view, n, offer.Site{}).Environments {
			got = append(got, e.Stacks...)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: offered for %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestAMachineThatIsOffIsOfferedWholeAndNeverToAContainer(t *testing.T) {
	off := func(change func(*state.Machine)) *state.Machine {
		m := &state.Machine{
			Intent:   api.MachineIntent{Name: "n1", Spec: api.MachineSpec{Labels: map[string]string{"rack": "r1"}}},
			Record:   &api.MachineRecord{Phase: api.MachineOff, Power: api.PowerOff},
			Hardware: &api.Hardware{Architecture: "x86_64", CPU: api.CPU{Threads: 4}, MemoryBytes: 64 << 30},
		}
		change(m)
		return m
	}
	asleep := off(func(*state.Machine) {})
	agent := &api.NodeRecord{
		Name: "n1", Labels: map[string]string{"rack": "r1"}, Capacity: api.NodeCapacity{Cores: []api.Core{{}}, MemoryBytes: 1 << 30},
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "debian-mpi", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	carries := *agent
	carries.Stacks = []api.StackCheck{{Stack: api.StackMetal, OK: true}}
	carries.Environments = []api.EnvironmentOnNode{{Name: "debian-mpi", Stacks: []api.Stack{api.StackMetal}, OK: true}}
	metal := &carries
	for _, tt := range []struct {
		name  string
		node  state.Node
		site  offer.Site
		whole bool
	}{
		{"off, and no agent has called yet", state.Node{Machine: asleep}, offer.Site{Metal: true}, true},
		{"off again", state.Node{Machine: asleep, Agent: agent}, offer.Site{Metal: true}, true},
		{"on a site without a metal driver", state.Node{Machine: asleep, Agent: agent}, offer.Site{}, false},
		{"drained", state.Node{Machine: asleep, Control: &api.NodeControl{Drained: true}}, offer.Site{Metal: true}, false},
		{"never inspected", state.Node{Machine: off(func(m *state.Machine) { m.Hardware = nil })}, offer.Site{Metal: true}, false},
		{"booting", state.Node{Machine: off(func(m *state.Machine) { m.Record = &api.MachineRecord{Phase: api.MachineBooting} })}, offer.Site{Metal: true}, false},
		{"of another architecture", state.Node{Machine: off(func(m *state.Machine) {
			m.Hardware = &api.Hardware{Architecture: "riscv64", CPU: api.CPU{Threads: 4}, MemoryBytes: 64 << 30}
		})}, offer.Site{Metal: true}, false},
		{"on, and nothing is held there", state.Node{
			Machine: off(func(m *state.Machine) { m.Record = &api.MachineRecord{Phase: api.MachineReady, Power: api.PowerOn} }), Agent: agent,
		}, offer.Site{Metal: true}, true},
		{"on, and its agent carries whole machines", state.Node{Agent: metal}, offer.Site{}, true},
		{"off, and its agent carried whole machines", state.Node{Machine: asleep, Agent: metal}, offer.Site{}, false},
	} {
		tt.node.Name = "n1"
		view := &state.View{
			Nodes:        []*state.Node{&tt.node},
			Images:       []*api.Image{{Digest: "sha256:d", Environment: "debian-mpi", Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal}, RootBytes: 1 << 20, MetalBytes: 1 << 20}},
			Environments: []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: "sha256:d"}},
		}
		site := Observe(view, told{}, nil, noon, noon, noon, lifecycle.DefaultDeadlines())
		room := Room{Offers: tt.site}
		free, err := room.Update(view, site.Available)
		if err != nil {
			t.Fatal(err)
		}
		g := api.Group{
			Name: "m", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "debian-mpi", NodeSelector: map[string]string{"rack": "r1"},
		}
		placed, refusal := placement.Place(free, placement.Request{Cluster: "c", Groups: []api.Group{g}})
		if (refusal == nil) != tt.whole || refusal == nil && !placed[0].Whole {
			t.Errorf("%s: placed %+v, refused %v", tt.name, placed, refusal)
		}
		g.Stack = api.StackContainer
		if placed, refusal := placement.Place(free, placement.Request{Cluster: "c", Groups: []api.Group{g}}); refusal == nil && tt.node.Machine == asleep {
			t.Errorf("%s: a container is placed there: %+v", tt.name, placed)
		}
	}
}
