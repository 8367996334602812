package offer

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

const gib = 1 << 30

// twoSockets is a machine with 2 CPUs on each of 2 NUMA nodes, numbered in turn, of which CPU 4 is off.
func twoSockets() *api.Hardware {
	return &api.Hardware{
		CPU: api.CPU{Cores: 4, Threads: 5, NUMANodes: []int{0, 1, 0, 1, -1}}, MemoryBytes: 100 * gib,
		NUMANodes: []api.NUMANode{{ID: 0, MemoryBytes: 50 * gib}, {ID: 1, MemoryBytes: 50 * gib}},
	}
}

func TestAMachineThatWasInspectedOffersWhatItsAgentWould(t *testing.T) {
	t.Parallel()
	want := api.NodeCapacity{
		Cores:       []api.Core{{Slot: 0, CPU: 0}, {Slot: 1, CPU: 1, NUMANode: 1}, {Slot: 2, CPU: 2}, {Slot: 3, CPU: 3, NUMANode: 1}},
		MemoryBytes: LessReserve(100 * gib), NUMANodes: []api.NUMANode{{ID: 0, MemoryBytes: 50 * gib}, {ID: 1, MemoryBytes: 50 * gib}},
	}
	got := Inspected(twoSockets())
	if diff := cmp.Diff(want, got.Capacity); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	if got.Confirmed || len(got.Stacks) != 0 {
		t.Errorf("nobody confirmed it, and nobody checked a stack: %+v", got)
	}
}

func TestCPUsOfUnknownNUMANodesAreSpreadEvenly(t *testing.T) {
	t.Parallel()
	hw := twoSockets()
	hw.CPU.NUMANodes, hw.CPU.Threads = nil, 4
	var nodes []int
	for _, c := range Inspected(hw).Capacity.Cores {
		nodes = append(nodes, c.NUMANode)
	}
	if diff := cmp.Diff([]int{0, 0, 1, 1}, nodes); diff != "" {
		t.Errorf("NUMA nodes (-want +got):\n%s", diff)
	}
}

func TestWhatAMachineTellsOfItselfIsBounded(t *testing.T) {
	t.Parallel()
	for name, hw := range map[string]api.Hardware{
		"threads": {CPU: api.CPU{Threads: 1 << 40}}, "cores": {CPU: api.CPU{Cores: 1 << 40}}, "CPUs": {CPU: api.CPU{NUMANodes: make([]int, 1<<20)}},
	} {
		if got := len(Inspected(&hw).Capacity.Cores); got != maxCPUs {
			t.Errorf("%s: %d cores, want %d", name, got, maxCPUs)
		}
	}
	if got := Inspected(&api.Hardware{CPU: api.CPU{Threads: -1}, MemoryBytes: -1}).Capacity; len(got.Cores) != 0 || got.MemoryBytes != 0 {
		t.Errorf("negative numbers offer %+v", got)
	}
}

func TestAnOfferIsConfirmedWhileItsAgentCanRun(t *testing.T) {
	t.Parallel()
	agent := &api.NodeRecord{
		Capacity: api.NodeCapacity{Cores: make([]api.Core, 3)}, Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}}, Oversubscribed: true,
	}
	for _, tt := range []struct {
		name      string
		agent     *api.NodeRecord
		hardware  *api.Hardware
		off       bool
		site      Site
		cores     int
		confirmed bool
		stacks    []api.Stack
	}{
		{name: "nothing is known"},
		{name: "an agent alone", agent: agent, cores: 3, confirmed: true, stacks: []api.Stack{api.StackContainer}},
		{name: "an agent on a machine that was inspected", agent: agent, hardware: twoSockets(), cores: 3, confirmed: true, stacks: []api.Stack{api.StackContainer}},
		{name: "inspected and off", hardware: twoSockets(), off: true, cores: 4},
		{name: "inspected and off, on a site that hands out machines", hardware: twoSockets(), off: true, site: Site{Metal: true}, cores: 4, stacks: []api.Stack{api.StackMetal}},
		{name: "inspected and on, on such a site", hardware: twoSockets(), site: Site{Metal: true}, cores: 4, stacks: []api.Stack{api.StackMetal}},
		{name: "an agent on no machine of ours, on such a site", agent: agent, site: Site{Metal: true}, cores: 3, confirmed: true, stacks: []api.Stack{api.StackContainer}},
		{
			name: "off again, on such a site", agent: agent, hardware: twoSockets(), off: true, site: Site{Metal: true}, cores: 3,
			stacks: []api.Stack{api.StackContainer, api.StackMetal},
		},
		{name: "off and never inspected, on such a site", off: true, site: Site{Metal: true}},
	} {
		got := Of(tt.agent, tt.hardware, tt.off, tt.site)
		var stacks []api.Stack
		for _, s := range got.Stacks {
			stacks = append(stacks, s.Stack)
		}
		if diff := cmp.Diff(tt.stacks, stacks); diff != "" || len(got.Capacity.Cores) != tt.cores || got.Confirmed != tt.confirmed {
			t.Errorf("%s: %d cores, confirmed %t, stacks (-want +got)\n%s", tt.name, len(got.Capacity.Cores), got.Confirmed, diff)
		}
	}
	if len(agent.Stacks) != 1 {
		t.Error("the stored record was changed")
	}
}

func TestWhatDiffersBetweenInspectionAndAgentIsTold(t *testing.T) {
	t.Parallel()
	same := &api.NodeRecord{Capacity: Inspected(twoSockets()).Capacity}
	same.Capacity.MemoryBytes -= gib // another kernel keeps more for itself
	if got := Told(same, twoSockets()).Differences; len(got) != 0 {
		t.Errorf("an agent that sees the same: %q", got)
	}
	less := &api.NodeRecord{Capacity: api.NodeCapacity{Cores: make([]api.Core, 3), MemoryBytes: 40 * gib, NUMANodes: make([]api.NUMANode, 1)}}
	want := []string{"inspected 4 cores, the agent offers 3", "inspected 90GiB of memory for members, the agent offers 40GiB", "inspected 2 NUMA nodes, the agent sees 1"}
	if diff := cmp.Diff(want, Told(less, twoSockets()).Differences); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if got := Told(less, nil).Differences; len(got) != 0 {
		t.Errorf("nothing was inspected: %q", got)
	}
}
