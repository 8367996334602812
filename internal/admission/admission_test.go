package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

const gib = 1 << 30

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// testNode is a node that offers containers and environment "local".
func testNode(name string, cores int, memoryGiB int64) api.NodeRecord {
	rec := api.NodeRecord{
		Name:         name,
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
	}
	rec.Capacity.MemoryBytes = memoryGiB * gib
	for i := range cores {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i, CPU: i})
	}
	return rec
}

func testGroup(name string, size, cores int, memoryGiB int64) api.Group {
	return api.Group{
		Name: name, Size: size, Shape: api.Shape{Cores: cores, Memory: api.Bytes(memoryGiB * gib)},
		Stack: api.StackContainer, Environment: "local",
	}
}

// scene is an input in the making: four nodes with 8 cores and 32 GiB each, n1 to n4, unless a test says otherwise.
type scene struct {
	t  *testing.T
	in Input
}

func newScene(t *testing.T, nodes int) *scene {
	t.Helper()
	s := &scene{t, Input{Now: noon, Free: placement.NewView(), Accounts: map[string]Account{}}}
	for i := range nodes {
		s.in.Free.SetNode(testNode(fmt.Sprint("n", i+1), 8, 32), placement.Schedulable)
	}
	return s
}

// runs lets a cluster ("PROJECT.NAME" or "NAME") hold all cores but some of nodes; it ends in the time, 0 for not known.
func (s *scene) runs(cluster string, ends time.Duration, cores int, nodes ...string) *scene {
	s.t.Helper()
	r := Running{Cluster: cluster, Project: projectOf(cluster)}
	if ends != 0 {
		r.Ends = noon.Add(ends)
	}
	for _, n := range nodes {
		a := held(fmt.Sprintf("%s.%s", cluster, n), n, cores)
		for i, from := 0, s.freeFrom(n); i < cores; i++ {
			a.Slots[i] = from + i
		}
		if err := s.in.Free.Take(a); err != nil {
			s.t.Fatal(err)
		}
		r.Assignments = append(r.Assignments, a.ID)
	}
	s.in.Running = append(s.in.Running, r)
	return s
}

// lendsGPU gives a node a GPU of so many slices, each of which can be handed out.
func (s *scene) lendsGPU(node string, slices int64) {
	rec := testNode(node, 8, 32)
	rec.Capacity.Devices = []api.Device{{
		ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": slices}, Ways: map[string]api.DeviceWay{"slice": {Takes: map[string]int64{"slices": 1}}},
	}}
	s.in.Free.SetNode(rec, placement.Schedulable)
	s.in.Parts = resource.PartsOf(func(yield func(*api.Device) bool) { yield(&rec.Capacity.Devices[0]) })
}

// lends gives a cluster that runs so many slices of a node's GPU, as a part of its member there.
func (s *scene) lends(cluster, node string, slices int) {
	s.t.Helper()
	a := held(cluster+".part", node, 0)
	a.Of, a.Memory = cluster+"."+node, nil
	for range slices {
		a.Devices = append(a.Devices, api.DeviceClaim{Class: "gpu", Device: "gpu0", Way: "slice", Takes: map[string]int64{"slices": 1}})
	}
	if err := s.in.Free.Take(a); err != nil {
		s.t.Fatal(err)
	}
	r := &s.in.Running[len(s.in.Running)-1]
	r.Assignments = append(r.Assignments, a.ID)
}

// held is an assignment with 1 GiB.
func held(id, node string, cores int) api.Assignment {
	return api.Assignment{ID: id, Group: "g", Member: id, Node: node, Slots: make([]int, cores), Memory: []api.MemoryClaim{{Bytes: gib}}}
}

func (s *scene) freeFrom(node string) int {
	u, _ := s.in.Free.Usage(node)
	return u.Cores - u.FreeCores
}

// releasing marks what a cluster holds as being cleaned.
func (s *scene) releasing(cluster string) *scene {
	for i := range s.in.Running {
		if r := &s.in.Running[i]; r.Cluster == cluster {
			r.Releasing = true
			for _, id := range r.Assignments {
				_ = s.in.Free.Release(id)
			}
		}
	}
	return s
}

func projectOf(cluster string) string {
	project, _, ok := strings.Cut(cluster, ".")
	if !ok {
		return api.DefaultProject
	}
	return project
}

// asks adds a request of one group "g" that may wait, older than those added after it.
func (s *scene) asks(cluster string, kind Kind, size, cores int, change ...func(*Request)) *scene {
	r := Request{
		Cluster: cluster, Project: projectOf(cluster), User: "u", Kind: kind, Queue: true,
		Groups: []api.Group{testGroup("g", size, cores, 1)}, Since: noon.Add(time.Duration(len(s.in.Requests)-1000) * time.Second),
	}
	for _, c := range change {
		c(&r)
	}
	s.in.Requests = append(s.in.Requests, r)
	return s
}

func (s *scene) creates(cluster string, size, cores int, change ...func(*Request)) *scene {
	return s.asks(cluster, KindCreate, size, cores, change...)
}

func (s *scene) account(project string, a Account) *scene {
	s.in.Accounts[project] = a
	return s
}

func at(priority int) func(*Request)         { return func(r *Request) { r.Priority = priority } }
func by(user string) func(*Request)          { return func(r *Request) { r.User = user } }
func noQueue(r *Request)                     { r.Queue = false }
func lasting(d time.Duration) func(*Request) { return func(r *Request) { r.Holds = d } }
func avoiding(nodes ...string) func(*Request) {
	return func(r *Request) { r.Avoid = nodes }
}

// plan plans and returns a line for each decision: where members go, or why not.
func (s *scene) plan() []string {
	s.t.Helper()
	var lines []string
	for _, d := range Plan(s.in) {
		r := s.in.Requests[d.Request]
		line := fmt.Sprintf("%s %s", r.Cluster, d.Verdict)
		if d.Verdict == Admit {
			for _, p := range d.Placed {
				line += " " + p.Node
			}
			if len(d.Spares) > 0 {
				line += " for " + strings.Join(d.Spares, " ")
			}
		} else {
			line += fmt.Sprintf(" (%s) %s", d.Constraint, d.Reason)
		}
		lines = append(lines, line)
	}
	return lines
}

// verdicts is plan without the reasons.
func (s *scene) verdicts() []string {
	lines := s.plan()
	for i, l := range lines {
		lines[i], _, _ = strings.Cut(l, ") ")
		lines[i] = strings.Replace(lines[i], "(", "", 1)
	}
	return lines
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// planCases are scenes of two nodes, n1 and n2, each with what is planned for it.
type planCases []struct {
	name string
	site func(*scene)
	want []string
}

// check compares each case with what planned, (*scene).plan or (*scene).verdicts, returns for it.
func (cases planCases) check(t *testing.T, planned func(*scene) []string) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2)
			c.site(s)
			check(t, planned(s), c.want...)
		})
	}
}

func TestReplacementsGoFirstThenSparesThenTheQueueByPriorityFairShareAndAge(t *testing.T) {
	s := newScene(t, 4)
	s.account("used", Account{Shares: 1, DecayedCoreSeconds: 100})
	s.account("weighty", Account{Shares: 4, DecayedCoreSeconds: 200, ByUser: map[string]float64{"much": 150, "little": 50}})
	s.creates("used.a", 1, 1)
	s.creates("weighty.b", 1, 1, by("much"))
	s.creates("weighty.c", 1, 1, by("little"))
	s.asks("used.d", KindScale, 1, 1)
	s.creates("fresh.e", 1, 1)
	s.creates("used.f", 1, 1, at(5))
	s.asks("used.g", KindSpare, 1, 1)
	s.asks("used.h", KindHeal, 1, 1)
	s.asks("fresh.i", KindHeal, 1, 1)
	s.asks("fresh.j", KindHeal, 1, 1, at(1))
	var got []string
	for _, d := range Plan(s.in) {
		got = append(got, s.in.Requests[d.Request].Cluster)
	}
	check(t, got, "fresh.j", "used.h", "fresh.i", "used.g", "used.f", "fresh.e", "weighty.c", "weighty.b", "used.a", "used.d")
}

func TestWhatIsAdmittedCountsForThoseAfterIt(t *testing.T) {
	s := newScene(t, 2).creates("a", 1, 8).creates("b", 1, 8).creates("c", 1, 8, noQueue)
	check(t, s.plan(),
		"a admit n1", "b admit n2",
		`c refuse (cores) cluster "c" can't be placed: group "g" needs 1 member with 8 cores and 1GiB; none fits now; `+
			`n1 has 0 of 8 cores free, n2 has 0 of 8 cores free`)
}

func TestTheHeadIsToldWhenItCanStartAndThoseBehindItWhatTheyWaitFor(t *testing.T) {
	s := newScene(t, 4)
	s.runs("physics.short", time.Hour, 8, "n3").runs("physics.long", 125*time.Minute+time.Second, 8, "n1", "n2")
	s.creates("physics.big", 4, 8)
	s.creates("physics.later", 2, 8)
	s.creates("maths.other", 2, 8, noQueue)
	s.creates("physics.quick", 1, 4, lasting(2*time.Hour))
	s.creates("physics.slow", 1, 4, lasting(3*time.Hour))
	s.creates("maths.endless", 1, 4, noQueue)
	check(t, s.plan(),
		"physics.big wait (cores) needs 4 members with 8 cores and 1GiB each, none fits now; "+
			"can start at 14:06 UTC at the latest, when physics.long reaches its time limit",
		"physics.later wait (cores) behind 1 other; needs 2 members with 8 cores and 1GiB each, none fits now; "+
			"it starts before physics.big, the first in the queue that needs room, but only if that delays no other request",
		`maths.other refuse (cores) cluster "maths.other" can't be placed: group "g" needs 2 members with 8 cores and 1GiB each; none fits now; `+
			"n4 has 4 of 8 cores free, n1 has 0 of 8 cores free, n2 has 0 of 8 cores free, 1 more node less; 2 members with 2 cores and 1GiB each would fit",
		"physics.quick admit n4",
		"physics.slow wait (queue) behind 2 others; needs 1 member with 4 cores and 1GiB, which would fit now; would delay physics.big, "+
			"the first in the queue that needs room, which can start at 14:06 UTC at the latest; with a time limit that ends before then, it could start first",
		`maths.endless refuse (queue) cluster "maths.endless" can't be placed now: it would fit, but would delay the first in the queue that needs `+
			"room, which can start at 14:06 UTC at the latest; with a time limit that ends before then, it could start first; use --queue to wait for room")
	d := Plan(s.in)
	if want := noon.Add(125*time.Minute + time.Second); !d[0].Earliest.Equal(want) || d[0].Position != 1 || d[4].Position != 3 || d[3].Position != 0 {
		t.Errorf("the head can start at %v, position %d; want %v, 1; slow is at position %d, want 3", d[0].Earliest, d[0].Position, want, d[4].Position)
	}
}

func TestWhatEndsTellsNobodyTheNamesOfOtherProjects(t *testing.T) {
	s := newScene(t, 1).runs("physics.a", time.Hour, 4, "n1").runs("physics.b", time.Hour, 4, "n1").creates("maths.c", 1, 8).creates("chemistry.d", 1, 4)
	for _, line := range s.plan() {
		_, reason, _ := strings.Cut(line, ") ")
		if strings.Contains(reason, "physics") || strings.Contains(reason, "maths") {
			t.Errorf("%s", line)
		}
	}
	check(t, s.plan()[:1], "maths.c wait (cores) needs 1 member with 8 cores and 1GiB, none fits now; "+
		"can start at 13:00 UTC at the latest, when a cluster of another project and 1 other cluster reach their time limits")
}

func TestTheStartOfTheHead(t *testing.T) {
	tests := []struct {
		name string
		site func(*scene)
		want time.Duration // -1: not known
		text string
	}{
		{
			"is when the last end it needs has come", func(s *scene) { s.runs("a", time.Hour, 8, "n1").runs("b", 2*time.Hour, 8, "n2") },
			time.Hour, "can start at 13:00 UTC at the latest, when a reaches its time limit",
		},
		{
			"is told with its date when that is not today", func(s *scene) { s.runs("a", 12*time.Hour, 8, "n1", "n2") },
			12 * time.Hour, "can start at 2026-03-03 00:00 UTC at the latest, when a reaches its time limit",
		},
		{
			"follows what is being cleaned", func(s *scene) { s.runs("a", 0, 8, "n1").runs("b", 0, 8, "n2").releasing("a") },
			10 * time.Second, "can start at 12:01 UTC at the latest, when the resources being released are clean",
		},
		{
			"follows soon on what is overdue", func(s *scene) { s.runs("a", -time.Hour, 8, "n1").runs("b", 0, 8, "n2") },
			10 * time.Second, "can start at 12:01 UTC at the latest, when a reaches its time limit",
		},
		{
			"is not known without time limits", func(s *scene) { s.runs("a", 0, 8, "n1").runs("b", time.Hour, 4, "n2").runs("c", 0, 4, "n2") },
			-1, "its start time is unknown because some clusters in its way have no time limit",
		},
		{
			"does not come with what is quarantined", func(s *scene) {
				s.runs("a", time.Hour, 8, "n1").runs("b", 2*time.Hour, 8, "n2")
				_ = s.in.Free.Quarantine("a.n1")
			},
			2 * time.Hour, "can start at 14:00 UTC at the latest, when b reaches its time limit",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, 2)
			tt.site(s)
			s.creates("head", 1, 8)
			d := Plan(s.in)[0]
			want := time.Time{}
			if tt.want >= 0 {
				want = noon.Add(tt.want)
			}
			if !d.Earliest.Equal(want) || !strings.HasSuffix(d.Reason, tt.text) {
				t.Errorf("earliest %v, want %v; reason %q, want %q", d.Earliest, want, d.Reason, tt.text)
			}
		})
	}
}

func TestAHealTakesRoomElsewhereThenASpareThenWhereItWasLost(t *testing.T) {
	spare := held("c.g-spare-0.1", "n2", 2)
	spare.Slots = []int{0, 1}
	with := func(r *Request) { r.Spares = []api.Assignment{spare} }
	tests := []struct {
		name string
		site func(*scene)
		want []string
	}{
		{"room elsewhere is taken first", func(*scene) {}, []string{"c admit n3"}},
		{"then the room of a spare", func(s *scene) { s.runs("x", 0, 8, "n3") }, []string{"c admit n2 for c.g-spare-0.1"}},
		{
			"but not of one on a node that gets no members",
			func(s *scene) { s.runs("x", 0, 8, "n3").in.Free.SetAvailability("n2", placement.Drained) },
			[]string{"c admit n1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t, 3)
			if err := s.in.Free.Take(spare); err != nil {
				t.Fatal(err)
			}
			s.runs("y", 0, 6, "n2").asks("c", KindHeal, 1, 2, avoiding("n1"), with)
			tt.site(s)
			check(t, s.plan(), tt.want...)
		})
	}
}
