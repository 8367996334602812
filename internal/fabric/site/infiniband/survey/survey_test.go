package survey

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// start starts a simulated fabric, and a reader of it.
func start(t *testing.T, of ibsim.Topology) (*ibsim.Fabric, Reader) {
	t.Helper()
	for _, program := range []string{"ibsim", "opensm", "ibnetdiscover", "ibqueryerrors"} {
		needs.Program(t, program)
	}
	f, err := ibsim.Start(t.Context(), t.TempDir(), of)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, Reader{Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
		return f.Command(ctx, "n1", program, args...)
	}}
}

func read(t *testing.T, r Reader, at time.Time) *topology.Reading {
	t.Helper()
	got, err := r.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got.At = at
	return &got
}

func TestABadCableOfASimulatedFabricIsNamed(t *testing.T) {
	f, r := start(t, ibsim.OneSwitch(3))
	m, err := f.Manage(t.Context(), "n1", 5, "") // counters are read by LIDs, which it gives out
	if err != nil {
		t.Fatal(err)
	}
	defer m.Stop()
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	before := read(t, r, noon)
	if _, err := f.Do(t.Context(), `PerformanceSet "s1"[2] PortCounters.SymbolErrorCounter=120`); err != nil {
		t.Fatal(err)
	}
	after := read(t, r, noon.Add(time.Minute))
	topology.Count(before, after)
	faults := topology.Faults(nil, before, after)
	if len(faults) != 1 || faults[0].Message != "link between switch s1 port 2 and node n2: 120 symbol errors in 60 s" {
		t.Errorf("got %+v", faults)
	}
	sent := int64(0)
	for _, l := range after.Topology.Links {
		sent += l.From.SentBitsPerSecond + l.To.SentBitsPerSecond
	}
	if sent == 0 {
		t.Error("no load was measured, and at least the survey itself sent packets")
	}
}

func TestATopologyIsReadWithoutASubnetManager(t *testing.T) {
	_, r := start(t, ibsim.OneSwitch(2))
	if got := read(t, r, time.Time{}); len(got.Topology.Hosts) != 2 || len(got.Topology.Links) != 2 {
		t.Errorf("got %+v", got.Topology)
	}
}

func TestAProgramThatIsMissingIsNamed(t *testing.T) {
	t.Parallel()
	r := Reader{Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, "no-such-"+program, args...)
	}}
	if _, err := r.Survey(t.Context()); err == nil || !strings.Contains(err.Error(), "install infiniband-diags") {
		t.Errorf("got error %v", err)
	}
}

// TestPlacementOnAFatTreeUsesFewerSwitchesThanChance places gangs on a simulated fat tree of 648 ports, once by its topology and once on random
// nodes, both on the same free nodes.
func TestPlacementOnAFatTreeUsesFewerSwitchesThanChance(t *testing.T) {
	_, r := start(t, ibsim.FatTree(ibsim.MostHosts))
	got := read(t, r, time.Time{})
	var known []topology.Known
	for _, h := range got.Topology.Hosts {
		known = append(known, topology.Known{Node: h.Name})
	}
	topology.NameNodes(&got.Topology, known)
	places := topology.Places(&got.Topology)
	if len(places) != ibsim.MostHosts {
		t.Fatalf("%d of %d hosts have a place", len(places), ibsim.MostHosts)
	}
	random := rand.New(rand.NewPCG(1, 1))
	v := placement.NewView()
	var free []string
	for _, k := range known {
		rec := api.NodeRecord{
			Name: k.Node, Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}}, Places: []api.NodePlace{places[k.Node]}, Underlay: "10.0.0.1",
			Environments: []api.EnvironmentOnNode{{Name: "local", OK: true, Stacks: []api.Stack{api.StackContainer}}},
			Capacity:     api.NodeCapacity{Cores: []api.Core{{}}, MemoryBytes: 1 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 1 << 30}}},
		}
		state := placement.Schedulable
		if random.IntN(2) == 0 { // half of the nodes are in use
			state = placement.Down
		} else {
			free = append(free, k.Node)
		}
		v.SetNode(rec, state)
	}
	for _, size := range []int{4, 16, 64, 200} {
		placed, refusal := placement.Place(v, placement.Request{Cluster: "c", Groups: []api.Group{{
			Name: "c", Size: size, Shape: api.Shape{Cores: 1}, Stack: api.StackContainer, Environment: "local",
			Interconnect: api.Interconnect{Technology: api.FabricInfiniBand},
		}}})
		if refusal != nil {
			t.Fatal(refusal.Message)
		}
		var names []string
		for _, p := range placed {
			names = append(names, p.Node)
		}
		aware := switches(places, names)
		random.Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })
		chance := switches(places, free[:size])
		t.Logf("%d nodes: %d leaf switches by topology, %d by chance", size, aware, chance)
		if least := fewest(places, free, size); aware != least || aware >= chance {
			t.Errorf("%d nodes: %d leaf switches by topology, want %d; by chance %d", size, aware, least, chance)
		}
	}
}

func switches(places map[string]api.NodePlace, nodes []string) int {
	seen := map[string]bool{}
	for _, n := range nodes {
		seen[places[n].Switch] = true
	}
	return len(seen)
}

// fewest is the least number of leaf switches with so many free nodes.
func fewest(places map[string]api.NodePlace, free []string, size int) int {
	room := map[string]int{}
	for _, n := range free {
		room[places[n].Switch]++
	}
	for count := 1; ; count++ {
		best := ""
		for name, n := range room {
			if best == "" || n > room[best] {
				best = name
			}
		}
		if best == "" {
			panic(fmt.Sprintf("no room for %d", size))
		}
		if size -= room[best]; size <= 0 {
			return count
		}
		delete(room, best)
	}
}
