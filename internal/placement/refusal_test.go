package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// scene is a site for a refusal.
type scene struct {
	t *testing.T
	v *View
}

func (s scene) node(rec api.NodeRecord, a Availability) { s.v.SetNode(rec, a) }

func (s scene) labelled(rec api.NodeRecord, labels map[string]string) {
	rec.Labels = labels
	s.v.SetNode(rec, Schedulable)
}

// busy lets a cluster hold cores and memory on the node.
func (s scene) busy(node string, cores int, memoryGiB int64) []api.Assignment {
	s.t.Helper()
	rec := s.v.nodes[s.v.ids[node]].record
	a := api.Assignment{ID: "busy-" + node, Cluster: "other", Node: node, Memory: []api.MemoryClaim{{Bytes: memoryGiB * gib}}}
	for _, c := range rec.Capacity.Cores[:cores] {
		a.Slots = append(a.Slots, c.Slot)
	}
	if err := s.v.Take(a); err != nil {
		s.t.Fatal(err)
	}
	return []api.Assignment{a}
}

func selector(g api.Group, pairs ...string) api.Group {
	g.NodeSelector = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		g.NodeSelector[pairs[i]] = pairs[i+1]
	}
	return g
}

// withModels is a node that carries virtual machines with these CPU models.
func withModels(rec api.NodeRecord, models ...string) api.NodeRecord {
	rec.Stacks = append(slices.Clone(rec.Stacks), api.StackCheck{Stack: api.StackVM, OK: true, CPUModels: models})
	rec.Environments = slices.Clone(rec.Environments)
	for i := range rec.Environments {
		rec.Environments[i].Stacks = append(slices.Clone(rec.Environments[i].Stacks), api.StackVM)
	}
	return rec
}

// modelled is a group of virtual machines with a CPU model.
func modelled(g api.Group, model string) api.Group {
	g.Stack, g.CPUModel = api.StackVM, model
	return g
}

type verdict struct {
	Constraint Constraint
	Never      bool
	Undecided  bool
	Fits       int
	Largest    string
}

func TestARefusalNamesTheBindingConstraintAndWhatWouldFit(t *testing.T) {
	tests := []struct {
		name   string
		site   func(scene)
		groups []api.Group
		want   verdict
		// message follows `cluster "c1" can't be placed: `.
		message string
	}{
		{
			"no node at all", func(scene) {},
			[]api.Group{group("compute", 2, 8, 16)},
			verdict{ConstraintNodes, true, false, 0, ""},
			`group "compute" needs 2 members with 8 cores and 16GiB each; no node has joined this site yet; start an agent on one (nearmetal agent)`,
		},
		{
			"more cores a member than any node has",
			func(s scene) {
				s.node(testNode("n1", 4, 1, 64), Schedulable)
				s.node(testNode("n2", 6, 1, 64), Schedulable)
			},
			[]api.Group{group("compute", 1, 8, 16)},
			verdict{ConstraintCores, true, false, 0, "{6 16GiB}"},
			`group "compute" needs 1 member with 8 cores and 16GiB; more than any node of this site has: the largest, n2, has 6 cores; 1 member with 6 cores and 16GiB would fit if every node were up and empty`,
		},
		{
			"more members than the site holds",
			func(s scene) {
				s.node(testNode("n1", 16, 1, 64), Schedulable)
				s.node(testNode("n2", 8, 1, 64), Down)
			},
			[]api.Group{group("compute", 4, 8, 1)},
			verdict{ConstraintCores, true, false, 2, "{5 1GiB}"},
			`group "compute" needs 4 members with 8 cores and 1GiB each; more than this site has: 3 members fit even if every node were up and empty (2 on n1, 1 on n2); n2 is down; 4 members with 5 cores and 1GiB each would fit if every node were up and empty`,
		},
		{
			"more memory a member than any node has",
			func(s scene) { s.node(testNode("n1", 4, 1, 64), Schedulable) },
			[]api.Group{group("compute", 1, 1, 100)},
			verdict{ConstraintMemory, true, false, 0, "{1 64GiB}"},
			`group "compute" needs 1 member with 1 core and 100GiB; more than any node of this site has: the largest, n1, has 64GiB of memory; 1 member with 1 core and 64GiB would fit if every node were up and empty`,
		},
		{
			"a CPU model that no node can carry",
			func(s scene) {
				s.node(withModels(testNode("n1", 8, 1, 64), "Nehalem", "Westmere"), Schedulable)
				s.node(withModels(testNode("n2", 8, 1, 64), "Nehalem"), Schedulable)
			},
			[]api.Group{modelled(group("compute", 1, 1, 1), "Haswell")},
			verdict{ConstraintCPUModel, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; no node can carry CPU model "Haswell"; nodes can carry Nehalem, Westmere`,
		},
		{
			"a CPU model where no node offers one by name",
			func(s scene) { s.node(withModels(testNode("n1", 8, 1, 64)), Schedulable) },
			[]api.Group{modelled(group("compute", 1, 1, 1), "Haswell")},
			verdict{ConstraintCPUModel, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; no node can carry CPU model "Haswell"; no node offers a CPU model by name; omit it`,
		},
		{
			"too few nodes that can carry the CPU model",
			func(s scene) {
				s.node(withModels(testNode("n1", 8, 1, 64), "Haswell"), Schedulable)
				s.node(withModels(testNode("n2", 8, 1, 64)), Schedulable)
			},
			[]api.Group{modelled(group("compute", 2, 8, 1), "Haswell")},
			verdict{ConstraintCPUModel, true, false, 1, "{4 1GiB}"},
			`group "compute" needs 2 members with 8 cores and 1GiB each; too few nodes can carry CPU model "Haswell"; 1 member fits even if the others were up and empty (n1)`,
		},
		{
			"the nodes that can carry the CPU model are in use",
			func(s scene) {
				s.node(withModels(testNode("n1", 8, 1, 64), "Haswell"), Schedulable)
				s.node(withModels(testNode("n2", 8, 1, 64)), Schedulable)
				s.busy("n1", 5, 1)
			},
			[]api.Group{modelled(group("compute", 1, 8, 1), "Haswell")},
			verdict{ConstraintCores, false, false, 0, "{3 1GiB}"},
			`group "compute" needs 1 member with 8 cores and 1GiB; none fits now; n1 has 3 of 8 cores free; 1 member with 3 cores and 1GiB would fit`,
		},
		{
			"cores are in use",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Schedulable)
				s.node(testNode("n2", 8, 1, 64), Schedulable)
				s.node(testNode("n3", 8, 1, 64), Schedulable)
				s.busy("n2", 5, 1)
				s.busy("n3", 1, 1)
			},
			[]api.Group{group("compute", 3, 8, 16)},
			verdict{ConstraintCores, false, false, 1, "{4 16GiB}"},
			`group "compute" needs 3 members with 8 cores and 16GiB each; 1 member fits now (n1); n3 has 7 of 8 cores free, n2 has 3 of 8 cores free; 3 members with 4 cores and 16GiB each would fit`,
		},
		{
			"memory is in use",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Schedulable)
				s.busy("n1", 1, 60)
			},
			[]api.Group{group("compute", 2, 2, 8)},
			verdict{ConstraintMemory, false, false, 0, "{2 2GiB}"},
			`group "compute" needs 2 members with 2 cores and 8GiB each; none fits now; n1 has 4GiB of 64GiB free; 2 members with 2 cores and 2GiB each would fit`,
		},
		{
			"a drained and a down node would do",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Schedulable)
				s.node(testNode("n2", 8, 1, 64), Drained)
				s.node(testNode("n3", 8, 1, 64), Schedulable)
				s.node(testNode("n4", 8, 1, 64), Down)
			},
			[]api.Group{group("compute", 4, 8, 16)},
			verdict{ConstraintDown, false, false, 2, "{4 16GiB}"},
			`group "compute" needs 4 members with 8 cores and 16GiB each; 2 members fit now (n1, n3); n4 is down; n2 is drained; 4 members with 4 cores and 16GiB each would fit`,
		},
		{
			"every node is down",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Down)
				s.node(testNode("n2", 8, 1, 64), Down)
			},
			[]api.Group{group("compute", 1, 1, 1)},
			verdict{ConstraintDown, false, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; none fits now; n1, n2 are down`,
		},
		{
			"a node that is not reporting may come back",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Unknown)
				s.node(testNode("n2", 8, 1, 64), Schedulable)
			},
			[]api.Group{group("compute", 2, 8, 1)},
			verdict{ConstraintDown, false, true, 1, "{4 1GiB}"},
			`group "compute" needs 2 members with 8 cores and 1GiB each; 1 member fits now (n2); n1 is not reporting; 2 members with 4 cores and 1GiB each would fit`,
		},
		{
			"what would do is quarantined",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Schedulable)
				for _, a := range s.busy("n1", 4, 16) {
					if err := s.v.Quarantine(a.ID); err != nil {
						s.t.Fatal(err)
					}
				}
			},
			[]api.Group{group("compute", 1, 8, 1)},
			verdict{ConstraintQuarantine, false, false, 0, "{4 1GiB}"},
			`group "compute" needs 1 member with 8 cores and 1GiB; none fits now; 4 cores and 16GiB of n1 are quarantined, not confirmed clean; 1 member with 4 cores and 1GiB would fit`,
		},
		{
			"no node has the label's key",
			func(s scene) { s.node(testNode("n1", 8, 1, 64), Schedulable) },
			[]api.Group{selector(group("compute", 1, 1, 1), "gpu", "a100")},
			verdict{ConstraintLabels, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; no node has label gpu=a100 or any other label gpu`,
		},
		{
			"no node has the label's value",
			func(s scene) {
				s.labelled(testNode("n1", 8, 1, 64), map[string]string{"rack": "r1"})
				s.labelled(testNode("n2", 8, 1, 64), map[string]string{"rack": "r2"})
			},
			[]api.Group{selector(group("compute", 1, 1, 1), "rack", "r9")},
			verdict{ConstraintLabels, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; no node has label rack=r9; nodes have rack=r1, rack=r2`,
		},
		{
			"no node has both labels",
			func(s scene) {
				s.labelled(testNode("n1", 8, 1, 64), map[string]string{"rack": "r1"})
				s.labelled(testNode("n2", 8, 1, 64), map[string]string{"ib": "hdr"})
			},
			[]api.Group{selector(group("compute", 1, 1, 1), "rack", "r1", "ib", "hdr")},
			verdict{ConstraintLabels, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core and 1GiB; no node has ib=hdr and rack=r1`,
		},
		{
			"too few nodes have the label",
			func(s scene) {
				s.labelled(testNode("n1", 8, 1, 64), map[string]string{"rack": "r1"})
				s.labelled(testNode("n2", 8, 1, 64), map[string]string{"rack": "r2"})
			},
			[]api.Group{selector(group("compute", 2, 8, 1), "rack", "r1")},
			verdict{ConstraintLabels, true, false, 1, "{4 1GiB}"},
			`group "compute" needs 2 members with 8 cores and 1GiB each; too few nodes have rack=r1; 1 member fits even if those were up and empty (n1)`,
		},
		{
			"no node offers the stack",
			func(s scene) {
				rec := testNode("n1", 8, 1, 64)
				rec.Stacks = append(rec.Stacks, api.StackCheck{Stack: api.StackVM, Problems: []string{"/dev/kvm is missing: enable virtualization in the firmware"}})
				s.node(rec, Schedulable)
				s.node(testNode("n2", 8, 1, 64), Schedulable)
			},
			[]api.Group{{Name: "compute", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackVM, Environment: "local"}},
			verdict{ConstraintStack, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core; no node offers stack "vm" (n1: /dev/kvm is missing: enable virtualization in the firmware; n2: has no driver for this stack); nodes offer container`,
		},
		{
			"no node can run the environment",
			func(s scene) {
				rec := testNode("n1", 8, 1, 64)
				rec.Environments = append(rec.Environments, api.EnvironmentOnNode{
					Name: "mpi5", Stacks: []api.Stack{api.StackContainer}, Problems: []string{"/usr/bin/mpirun is missing: install openmpi-bin"},
				})
				s.node(rec, Schedulable)
				s.node(testNode("n2", 8, 1, 64), Schedulable)
			},
			[]api.Group{{Name: "compute", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackContainer, Environment: "mpi5"}},
			verdict{ConstraintEnvironment, true, false, 0, ""},
			`group "compute" needs 1 member with 1 core; no node can run environment "mpi5" on stack "container" (n1: /usr/bin/mpirun is missing: install openmpi-bin; n2: does not have this environment); nodes have local`,
		},
		{
			"too few nodes can run the environment",
			func(s scene) {
				rec := testNode("n1", 8, 1, 64)
				rec.Environments = append(rec.Environments, api.EnvironmentOnNode{Name: "mpi5", Stacks: []api.Stack{api.StackContainer}, OK: true})
				s.node(rec, Schedulable)
				s.node(testNode("n2", 8, 1, 64), Schedulable)
			},
			[]api.Group{{Name: "compute", Size: 2, Shape: api.Shape{Cores: 8}, Stack: api.StackContainer, Environment: "mpi5"}},
			verdict{ConstraintEnvironment, true, false, 1, "{4 0}"},
			`group "compute" needs 2 members with 8 cores each; too few nodes can run environment "mpi5" on stack "container" (n2: does not have this environment); 1 member fits even if the others were up and empty (n1)`,
		},
		{
			"groups fit one by one, but not together",
			func(s scene) { s.node(testNode("n1", 8, 1, 64), Schedulable) },
			[]api.Group{group("a", 1, 6, 1), group("b", 1, 4, 1)},
			verdict{ConstraintTogether, true, false, 0, "{2 1GiB}"},
			`group "b" needs 1 member with 4 cores and 1GiB; each group of the cluster would fit alone, but not all at once; none fits beside the cluster's other groups; 1 member with 2 cores and 1GiB would fit`,
		},
		{
			"groups that may fit together in a way that was not found are not refused for ever",
			func(s scene) {
				s.node(testNode("n1", 4, 1, 64), Schedulable)
				s.node(testNode("n2", 4, 1, 64), Schedulable)
			},
			[]api.Group{group("a", 2, 3, 1), group("b", 1, 2, 1)},
			verdict{ConstraintTogether, false, false, 0, "{1 1GiB}"},
			`group "b" needs 1 member with 2 cores and 1GiB; each group of the cluster would fit alone, but not all at once; none fits beside the cluster's other groups; 1 member with 1 core and 1GiB would fit`,
		},
		{
			"the second group finds the rest in use",
			func(s scene) {
				s.node(testNode("n1", 8, 1, 64), Schedulable)
				s.busy("n1", 1, 1)
			},
			[]api.Group{group("a", 1, 4, 1), group("b", 2, 2, 1)},
			verdict{ConstraintCores, false, false, 1, "{1 1GiB}"},
			`group "b" needs 2 members with 2 cores and 1GiB each; 1 member fits beside the cluster's other groups (n1); 2 members with 1 core and 1GiB each would fit`,
		},
		{
			"a size of nothing", func(scene) {},
			[]api.Group{group("compute", 0, 1, 1)},
			verdict{ConstraintRequest, true, false, 0, ""},
			`group "compute" needs a size of at least 1, at least 1 core per member, and memory of 0 (no limit) or more`,
		},
		{
			"more members than addresses", func(scene) {},
			[]api.Group{group("a", 4000, 1, 0), group("b", 94, 1, 0)},
			verdict{ConstraintAddresses, true, false, 0, ""},
			`it has more members than the 4093 addresses of a cluster network; split it`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := scene{t: t, v: NewView()}
			tt.site(s)
			before := dump(s.v)
			placed, r := Place(s.v, Request{Cluster: "c1", Groups: tt.groups})
			if r == nil {
				t.Fatalf("placed: %v", placed)
			}
			got := verdict{Constraint: r.Constraint, Never: r.Never, Undecided: r.Undecided, Fits: r.Fits}
			if r.Largest != nil {
				got.Largest = fmt.Sprintf("{%d %s}", r.Largest.Cores, r.Largest.Memory)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
			if want := `cluster "c1" can't be placed: ` + tt.message; r.Message != want {
				t.Errorf("message\nwant %s\ngot  %s", want, r.Message)
			}
			if diff := cmp.Diff(before, dump(s.v)); diff != "" {
				t.Errorf("a refusal changed the view (-before +after):\n%s", diff)
			}
		})
	}
}
