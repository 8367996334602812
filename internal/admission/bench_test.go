package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// busySite is a site of n nodes with 32 cores, of which clusters with and without time limits hold all but a few, and a queue.
func busySite(tb testing.TB, n, queue int) Input {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, uint64(n)))
	in := Input{Now: noon, Accounts: map[string]Account{}}
	nodes := make([]placement.NodeState, n)
	var held []placement.Held
	for i := range nodes {
		rec := testNode(fmt.Sprintf("r%03d-n%02d", i/40, i%40), 32, 128)
		nodes[i] = placement.NodeState{Record: rec, Availability: placement.Schedulable}
		for slot := 0; slot < 32; {
			cores := min([]int{1, 2, 4, 8, 16}[random.IntN(5)], 32-slot)
			if random.IntN(12) > 0 {
				a := api.Assignment{ID: fmt.Sprintf("u%d.%d", i, slot), Node: rec.Name, Memory: []api.MemoryClaim{{Bytes: int64(cores) * 3 * gib}}}
				for k := range cores {
					a.Slots = append(a.Slots, slot+k)
				}
				held = append(held, placement.Held{Assignment: a})
				r := Running{Cluster: a.ID, Project: fmt.Sprint("p", random.IntN(20)), Assignments: []string{a.ID}}
				if random.IntN(4) > 0 {
					r.Ends = noon.Add(time.Duration(1+random.IntN(86_400)) * time.Second)
				}
				in.Running = append(in.Running, r)
			}
			slot += cores
		}
	}
	var err error
	if in.Free, err = placement.Build(nodes, held, nil); err != nil {
		tb.Fatal(err)
	}
	for p := range 20 {
		in.Accounts[fmt.Sprint("p", p)] = Account{
			Quota: api.Quota{Cores: 20_000}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: int64(1000 + 900*p)}}, Shares: 1 + p%3, DecayedCoreSeconds: float64(random.IntN(1e6)),
		}
	}
	for i := range queue {
		cores := []int{1, 2, 4, 8, 16, 24, 32}[random.IntN(7)]
		r := Request{
			Cluster: fmt.Sprint("q", i), Project: fmt.Sprint("p", random.IntN(20)), User: fmt.Sprint("u", random.IntN(50)), Kind: KindCreate,
			Groups:   []api.Group{testGroup(fmt.Sprint("q", i), 1+random.IntN(100), cores, int64(cores*(1+random.IntN(4))))},
			Priority: random.IntN(3), Since: noon.Add(-time.Duration(random.IntN(1e6)) * time.Second), Queue: true,
		}
		if random.IntN(3) > 0 {
			r.Holds = time.Duration(1+random.IntN(1440)) * time.Minute
		}
		if random.IntN(10) == 0 {
			r.Groups = append(r.Groups, testGroup("head", 1, 4, 8))
		}
		in.Requests = append(in.Requests, r)
	}
	return in
}

// BenchmarkPlan10000 plans a queue of 10,000 over 1,000 nodes of 32 cores, mostly full. It is to stay below 100 ms.
func BenchmarkPlan10000(b *testing.B) {
	in := busySite(b, 1000, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		Plan(in)
	}
	verdicts := map[Verdict]int{}
	for _, d := range Plan(in) {
		verdicts[d.Verdict]++
	}
	for v, n := range verdicts {
		b.ReportMetric(float64(n), string(v))
	}
}

// BenchmarkPlanBurst plans a queue of 10,000 small requests over 1,000 empty nodes: a third of it gets room.
func BenchmarkPlanBurst(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	in := Input{Now: noon, Free: placement.NewView()}
	for i := range 1000 {
		in.Free.SetNode(testNode(fmt.Sprint("n", i), 32, 128), placement.Schedulable)
	}
	for i := range 10_000 {
		in.Requests = append(in.Requests, Request{
			Cluster: fmt.Sprint("q", i), Project: "p", Kind: KindCreate, Since: noon, Queue: true, Holds: time.Duration(random.IntN(300)) * time.Minute,
			Groups: []api.Group{testGroup("g", 1+random.IntN(4), 1+random.IntN(8), 1)},
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		Plan(in)
	}
}

// BenchmarkPlanDistress plans after 30 nodes of a full site have died: hundreds of members wait for a replacement, and a queue behind.
func BenchmarkPlanDistress(b *testing.B) {
	in := busySite(b, 1000, 1000)
	for i := range 300 {
		in.Requests = append(in.Requests, Request{
			Cluster: fmt.Sprint("lost", i), Project: "p1", Kind: KindHeal, Groups: []api.Group{testGroup("g", 1, []int{8, 16, 32}[i%3], 16)}, Since: noon,
			Avoid: []string{"r001-n01"},
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		Plan(in)
	}
}
