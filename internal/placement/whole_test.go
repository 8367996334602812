package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// machineNode is a machine of the site: it runs members while its agent is there, and can be given away whole while it is off.
func machineNode(name string, cores int, memoryGiB int64) api.NodeRecord {
	rec := testNode(name, cores, 2, memoryGiB)
	rec.Stacks = append(rec.Stacks, api.StackCheck{Stack: api.StackMetal, OK: true})
	rec.Environments = append(rec.Environments, api.EnvironmentOnNode{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true})
	rec.Capacity.NUMANodes = []api.NUMANode{{ID: 0, MemoryBytes: memoryGiB * gib / 2}, {ID: 1, MemoryBytes: memoryGiB * gib / 2}}
	return rec
}

func metal(name string, size, cores int, memoryGiB int64) api.Group {
	g := group(name, size, cores, memoryGiB)
	g.Stack = api.StackMetal
	return g
}

func TestAMetalMemberGetsAllOfAMachineThatIsOff(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 8, 64), Schedulable)
	off := machineNode("n2", 8, 64)
	off.InRAM, off.BootGeneration = true, 7
	v.SetNode(off, Asleep)
	got := place(t, v, "c", metal("m", 1, 3, 1), group("c", 2, 4, 1))
	a := got[0]
	if a.Node != "n2" || !a.Whole || len(a.Slots) != 8 || len(a.CPUs) != 8 {
		t.Errorf("it got %d cores of %s, whole %t; want all 8 of n2", len(a.Slots), a.Node, a.Whole)
	}
	if want := []api.MemoryClaim{{NUMANode: 0, Bytes: 32 * gib}, {NUMANode: 1, Bytes: 32 * gib}}; !cmp.Equal(want, a.Memory) {
		t.Errorf("it got memory %v, want %v", a.Memory, want)
	}
	if a.RAMBoot != 0 {
		t.Errorf("it would be clean with boot %d, which had ended before it began", a.RAMBoot)
	}
	for _, other := range got[1:] {
		if other.Node != "n1" || other.Whole {
			t.Errorf("a container got %s, whole %t", other.Node, other.Whole)
		}
	}
}

func TestAMetalMemberGetsANodeThatIsOnAndEmptyToo(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 8, 64), Schedulable)
	on := machineNode("n2", 8, 64)
	on.InRAM, on.BootGeneration = true, 7
	v.SetNode(on, Schedulable)
	if err := v.Take(api.Assignment{ID: "x", Node: "n1", Slots: []int{3}}); err != nil {
		t.Fatal(err)
	}
	a := place(t, v, "c", metal("m", 1, 3, 1))[0]
	if a.Node != "n2" || !a.Whole || len(a.Slots) != 8 || a.RAMBoot != 0 {
		t.Errorf("it got %d cores of %s, whole %t, clean with boot %d; want all 8 of n2, clean with no boot", len(a.Slots), a.Node, a.Whole, a.RAMBoot)
	}
}

func TestAMetalMemberHasTheNodesOwnPortsAndTheirFabricsProveThemClean(t *testing.T) {
	networks := []api.Network{nth(7), nth(8), nth(9)}
	networks[1].UID, networks[2].UID = networks[0].UID+".data", networks[0].UID+".storage"
	ports := []api.NodePort{{Name: "0000:3b:00.0", Fabric: "ib0", At: "0x11"}, {Name: "0000:3b:00.1", Fabric: "eth0", At: "s1/7"}}
	for i, name := range []string{"", "data", "storage"} {
		networks[i].Name = api.NetworkName("c", name)
	}
	for _, tt := range []struct {
		name    string
		ports   []api.NodePort
		where   []string
		provers []string
	}{
		{"two ports and three networks", ports, []string{"pf 0000:3b:00.0 ib0 0x11", "pf 0000:3b:00.1 eth0 s1/7", "pf 0000:3b:00.1 eth0 s1/7"}, []string{"agent of n1", "fabric of ib0", "fabric of eth0"}},
		{"ports that no fabric of the site has", nil, []string{"pf   ", "pf   ", "pf   "}, []string{"agent of n1"}},
	} {
		v := NewView()
		rec := machineNode("n1", 8, 64)
		rec.Capacity.Ports = tt.ports
		v.SetNode(rec, Asleep)
		placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{metal("m", 1, 1, 1)}})
		if refusal != nil {
			t.Fatal(refusal)
		}
		all, err := Assign(placed, Decision{ClusterUID: networks[0].UID, Cluster: "c", Generation: 1, Networks: networks, Further: map[string][]api.GroupNetwork{"m": api.OnNetworks("data", "storage")}})
		if err != nil {
			t.Fatal(err)
		}
		var where, provers []string
		for _, p := range all[0].Ports {
			where = append(where, fmt.Sprintf("%s %s %s %s", p.Kind, p.Device, p.Fabric, p.At))
		}
		for _, p := range all[0].CleanBy {
			provers = append(provers, p.String())
		}
		if !cmp.Equal(tt.where, where) || !cmp.Equal(tt.provers, provers) {
			t.Errorf("%s: ports %q, want %q; clean by %q, want %q", tt.name, where, tt.where, provers, tt.provers)
		}
	}
}

func TestEachMetalMemberGetsAnotherMachine(t *testing.T) {
	v := NewView()
	for i := range 3 {
		v.SetNode(machineNode(fmt.Sprint("n", i+1), 8, 64), Asleep)
	}
	nodes := map[string]bool{}
	for _, a := range place(t, v, "c", metal("a", 2, 1, 1), metal("b", 1, 1, 1)) {
		nodes[a.Node] = true
	}
	if len(nodes) != 3 {
		t.Errorf("3 members are on %d machines", len(nodes))
	}
}

func TestAWholeMachineExcludesAllOthersAndTheReverse(t *testing.T) {
	whole := api.Assignment{ID: "w", Node: "n1", Whole: true, Slots: []int{0, 1, 2, 3}}
	piece := api.Assignment{ID: "p", Node: "n1", Slots: []int{9}}
	for name, pair := range map[string][2]api.Assignment{"whole first": {whole, piece}, "whole second": {piece, whole}} {
		// Slot 9 was offered once: no slot is held twice.
		v, err := Build([]NodeState{{machineNode("n1", 4, 64), Asleep}}, []Held{{Assignment: pair[0]}, {Assignment: pair[1]}}, nil)
		var collision *Collision
		if !errors.As(err, &collision) || !collision.Whole || !strings.Contains(err.Error(), "a whole machine is shared with nobody") {
			t.Errorf("%s: %v, want a collision", name, err)
		}
		if u, _ := v.Usage("n1"); u.FreeCores != 0 || u.FreeMemoryBytes != 0 {
			t.Errorf("%s: what is in dispute is free: %+v", name, u)
		}
	}
	part := api.Assignment{ID: "w-ports", Of: "w", Node: "n1"}
	if _, err := Build([]NodeState{{machineNode("n1", 4, 64), Asleep}}, []Held{{Assignment: whole}, {Assignment: part}}, nil); err != nil {
		t.Errorf("a part of the member that has the machine: %v", err)
	}
}

func TestAMachineThatGrewIsStillWhole(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 4, 32), Asleep)
	place(t, v, "c", metal("m", 1, 1, 1))
	v.SetNode(machineNode("n1", 8, 64), Schedulable)
	if u, _ := v.Usage("n1"); u.FreeCores != 0 || u.FreeMemoryBytes != 0 {
		t.Errorf("%d cores and %d bytes of a machine that was given away are free", u.FreeCores, u.FreeMemoryBytes)
	}
}

func TestAMachineOnWhichAnythingIsHeldIsNotGivenAwayWhole(t *testing.T) {
	for name, a := range map[string]api.Assignment{
		"a core":                          {ID: "x", Node: "n1", Slots: []int{3}},
		"memory alone":                    {ID: "x", Node: "n1", Memory: []api.MemoryClaim{{Bytes: 1}}},
		"a core that is not offered now":  {ID: "x", Node: "n1", Slots: []int{99}},
		"nothing of what can be measured": {ID: "x", Node: "n1"},
	} {
		v, err := Build([]NodeState{{machineNode("n1", 4, 64), Asleep}}, []Held{{Assignment: a}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{metal("m", 1, 1, 1)}}); refusal == nil {
			t.Errorf("%s is held, and placed is %+v", name, placed)
		} else if refusal.Never || refusal.Undecided {
			t.Errorf("%s is held: never %t, undecided %t; it is free again some day", name, refusal.Never, refusal.Undecided)
		}
	}
}

func TestRefusalsOfWholeMachinesSayWhy(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes []NodeState
		group api.Group
		never bool
		want  string
	}{
		{
			"every machine is in use, on or off",
			[]NodeState{{machineNode("n1", 8, 64), Schedulable}, {machineNode("n2", 8, 64), Asleep}},
			metal("m", 1, 1, 1), false,
			"none fits now; n1, n2 are in use, and a whole node is shared with nobody",
		},
		{
			"too few are heard of",
			[]NodeState{{machineNode("n3", 8, 64), Asleep}, {machineNode("n4", 8, 64), Unknown}},
			metal("m", 2, 1, 1), false,
			"1 member fits now (n3); n4 is not reporting",
		},
		{
			"the machines are too small",
			[]NodeState{{machineNode("n1", 8, 64), Asleep}},
			metal("m", 1, 16, 1), true,
			"the largest, n1, has 8 cores; 1 member with 8 cores and 1GiB would fit",
		},
		{
			"there are fewer machines than members",
			[]NodeState{{machineNode("n1", 8, 64), Asleep}},
			metal("m", 2, 1, 1), true,
			"more than this site has: 1 member fits even if every node were up and empty (n1)",
		},
		{
			"the site hands out no machines",
			[]NodeState{{testNode("n1", 8, 1, 64), Schedulable}},
			metal("m", 1, 1, 1), true,
			`no node offers stack "metal" (n1: has no driver for this stack); nodes offer container`,
		},
		{
			"containers on a machine that is off", []NodeState{{machineNode("n1", 8, 64), Asleep}}, group("c", 1, 1, 1), false, "none fits now; n1 is off",
		},
	} {
		v := viewWith(tt.nodes)
		if strings.Contains(tt.name, "in use") {
			for i := range tt.nodes {
				if err := v.Take(api.Assignment{ID: fmt.Sprint("x", i), Node: tt.nodes[i].Record.Name, Slots: []int{0}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{tt.group}})
		switch {
		case refusal == nil:
			t.Errorf("%s: it was placed", tt.name)
		case !strings.Contains(refusal.Message, tt.want) || refusal.Never != tt.never || refusal.Undecided != strings.Contains(tt.name, "heard of"):
			t.Errorf("%s: never %t, undecided %t: %s\nwant %q", tt.name, refusal.Never, refusal.Undecided, refusal.Message, tt.want)
		}
	}
}

// TestWholeMachinesAndContainersNeverMeet places and frees both at random, while machines go off and on.
func TestWholeMachinesAndContainersNeverMeet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NewView()
		now := map[string]Availability{}
		states := []Availability{Schedulable, Asleep, Asleep, Down, Unknown, Drained}
		for i := range rapid.IntRange(1, 5).Draw(t, "nodes") {
			rec := machineNode(fmt.Sprint("n", i+1), rapid.IntRange(0, 6).Draw(t, "cores"), int64(rapid.IntRange(0, 8).Draw(t, "memory")))
			now[rec.Name] = rapid.SampledFrom(states).Draw(t, "state")
			v.SetNode(rec, now[rec.Name])
		}
		live := map[string][]api.Assignment{}
		for step := range rapid.IntRange(1, 15).Draw(t, "steps") {
			node := rapid.SampledFrom(v.Nodes()).Draw(t, "node")
			if rapid.Bool().Draw(t, "changes") {
				now[node] = rapid.SampledFrom(states).Draw(t, "state")
				v.SetAvailability(node, now[node])
			}
			if all := live[node]; len(all) > 0 && rapid.Bool().Draw(t, "free") {
				free(t, v, all[0])
				live[node] = all[1:]
			}
			groups := drawGroups(t)
			for i := range groups {
				groups[i].NodeSelector = nil
				if rapid.Bool().Draw(t, "metal") {
					groups[i].Stack = api.StackMetal
				}
			}
			fit, _, fits := v.Sketch().Fit(groups)
			placed, refusal := Place(v, Request{Cluster: "c", Groups: groups})
			if fits != (refusal == nil) {
				t.Fatalf("a sketch says %t, placement %v", fits, refusal)
			}
			if refusal != nil {
				continue
			}
			shares := v.Sketch()
			shares.Take(fit.Shares)
			for _, a := range assign(t, placed, fmt.Sprint("c", step)) {
				if open := now[a.Node] == Schedulable || a.Whole && now[a.Node] == Asleep; !open || a.Whole != (a.Stack == api.StackMetal) {
					t.Fatalf("%s on stack %s, whole %t, is on %s, which is %s", a.ID, a.Stack, a.Whole, a.Node, now[a.Node])
				}
				for _, other := range live[a.Node] {
					if a.Whole || other.Whole {
						t.Fatalf("%s and %s are both on %s, and one has all of it", a.ID, other.ID, a.Node)
					}
				}
				if err := v.Take(a); err != nil {
					t.Fatal(err)
				}
				live[a.Node] = append(live[a.Node], a)
			}
			for name := range live {
				u, _ := v.Usage(name)
				if got := shares.view.rows[v.ids[name]].freeCores; int(got) != u.FreeCores {
					t.Fatalf("%s: the sketch has %d cores free, the view %d", name, got, u.FreeCores)
				}
			}
		}
	})
}

func TestTheProvisionerProvesClean(t *testing.T) {
	v := NewView()
	v.SetNode(machineNode("n1", 8, 64), Schedulable) // its agent carries whole machines
	byProvisioner := machineNode("n2", 8, 64)
	byProvisioner.Stacks[len(byProvisioner.Stacks)-1].By = api.ExecutorProvisioner
	v.SetNode(byProvisioner, Asleep)
	for _, a := range place(t, v, "c", metal("m", 2, 3, 1)) {
		want := api.ByAgents("n1")[0]
		if a.Node == "n2" {
			want = api.Prover{By: api.ExecutorProvisioner, At: "n2"}
		}
		if len(a.CleanBy) != 1 || a.CleanBy[0] != want {
			t.Errorf("on %s it is proved clean by %v, want by %v", a.Node, a.CleanBy, want)
		}
	}
}

func TestAllInfiniBandPortsOfAMachineAreItsMembersAndTheirFabricsProveThemClean(t *testing.T) {
	network := nth(7)
	network.Technology, network.VLAN = api.TechnologyVLAN, 2048
	v := NewView()
	rec := machineNode("n1", 8, 64)
	rec.Capacity.Ports = []api.NodePort{
		{Name: "11", Fabric: "ib0", At: "11", Technology: api.FabricInfiniBand},
		{Name: "52:54:00:00:00:01", Fabric: "lan", At: "sw/1", Technology: api.FabricEthernet, MAC: "52:54:00:00:00:01"},
		{Name: "12", Fabric: "ib1", At: "12", Technology: api.FabricInfiniBand},
	}
	v.SetNode(rec, Asleep)
	placed, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{metal("m", 1, 1, 1)}})
	if refusal != nil {
		t.Fatal(refusal)
	}
	for _, technology := range []api.Technology{api.TechnologyVLAN, api.TechnologyVXLAN} {
		network.Technology = technology
		all, err := Assign(placed, Decision{ClusterUID: network.UID, Cluster: "c", Generation: 1, Networks: []api.Network{network}})
		if err != nil {
			t.Fatal(err)
		}
		a := all[0]
		want := []api.HCAClaim{{Network: network.UID, Fabric: "ib0", At: "11"}, {Network: network.UID, Fabric: "ib1", At: "12"}}
		if diff := cmp.Diff(want, a.HCAs); diff != "" {
			t.Errorf("%s (-want +got):\n%s", technology, diff)
		}
		if on := a.Ports[0].Fabric; len(a.Ports) != 1 || (technology == api.TechnologyVLAN) != (on == "lan") || on == "ib0" {
			t.Errorf("%s: its port with an address is on fabric %q", technology, on)
		}
		for _, fabric := range []string{"ib0", "ib1"} {
			if !slices.Contains(a.CleanBy, api.Prover{By: api.ExecutorFabric, At: fabric}) {
				t.Errorf("%s: fabric %s need not prove it clean: %v", technology, fabric, a.CleanBy)
			}
		}
	}
}
