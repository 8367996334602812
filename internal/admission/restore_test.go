package admission

import (
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// going sets the homes of a request's members, one a member.
func going(homes ...Home) func(*Request) {
	return func(r *Request) { r.Homes = homes }
}

// savedOn sets the nodes on which a request's members are saved and must go on.
func savedOn(nodes ...string) func(*Request) {
	homes := make([]Home, len(nodes))
	for i, n := range nodes {
		homes[i] = Home{Node: n}
	}
	return going(homes...)
}

// quotaOf is an account with a quota, some of which is used.
func quotaOf(q api.Quota, used resource.Vector) Account {
	return Account{Quota: q, Used: resource.Amounts{Vector: used}}
}

func TestSavedMembersGoOnTogetherWhereTheyAreSavedOrNotAtAll(t *testing.T) {
	t.Parallel()
	tests := planCases{
		{
			"each saved member goes on on its own node, before requests in the queue",
			func(s *scene) { s.creates("x", 1, 8).asks("c", KindRestore, 3, 4, savedOn("n2", "n1", "n2")) },
			[]string{"c admit n2 n1 n2", "x wait (cores) needs 1 member with 8 cores and 1GiB, none fits now; its start time is unknown because some clusters in its way have no time limit"},
		},
		{
			"no saved member goes on when one of their nodes has too little room",
			func(s *scene) { s.runs("a", 0, 4, "n2").asks("c", KindRestore, 3, 4, savedOn("n1", "n2", "n2")) },
			[]string{"c wait (node) a member that is saved on node n2 can't go on: node n2 has no room for it (0 cores free, 4 cores needed)"},
		},
		{
			"no room is held for saved members that wait",
			func(s *scene) {
				s.runs("a", 0, 8, "n2").asks("c", KindRestore, 2, 4, savedOn("n1", "n2")).creates("x", 1, 8)
			},
			[]string{"c wait (node) a member that is saved on node n2 can't go on: node n2 has no room for it (0 cores free, 4 cores needed)", "x admit n1"},
		},
		{
			"a saved member does not go on on a drained node",
			func(s *scene) {
				s.in.Free.SetAvailability("n1", placement.Drained)
				s.asks("c", KindRestore, 1, 4, savedOn("n1"))
			},
			[]string{"c wait (node) a member that is saved on node n1 can't go on: node n1 is drained"},
		},
		{
			"saved members wait for their project's quota of cores",
			func(s *scene) {
				s.account("p", quotaOf(api.Quota{Cores: 10}, resource.Vector{resource.Cores: 4, resource.Members: 2}))
				s.asks("p.c", KindRestore, 2, 4, savedOn("n1", "n2"))
			},
			[]string{`p.c wait (quota) needs 8 cores, but project "p" already holds 4 cores and the quota is 10 cores; it does not delay others`},
		},
		{
			"saved members count as members already",
			func(s *scene) {
				s.account("p", quotaOf(api.Quota{Members: 2}, resource.Vector{resource.Members: 2}))
				s.asks("p.c", KindRestore, 2, 4, savedOn("n1", "n2"))
			},
			[]string{"p.c admit n1 n2"},
		},
	}
	tests.check(t, (*scene).plan)
}

func TestMembersGoOnElsewhereWhereTheirNodeCanNotHaveThem(t *testing.T) {
	t.Parallel()
	tests := planCases{
		{
			"a saved member stays on its node if there is room", func(s *scene) { s.asks("c", KindRestore, 1, 4, going(Home{Node: "n2", Elsewhere: true})) },
			[]string{"c admit n2"},
		},
		{
			"a saved member goes to another node if its own has no room",
			func(s *scene) {
				s.runs("a", 0, 8, "n2").asks("c", KindRestore, 2, 4, going(Home{Node: "n2", Elsewhere: true}, Home{Node: "n1"}))
			},
			[]string{"c admit n1 n1"},
		},
		{
			"a saved member goes to another node if its own is drained",
			func(s *scene) {
				s.in.Free.SetAvailability("n1", placement.Drained)
				s.asks("c", KindRestore, 1, 4, going(Home{Node: "n1", Elsewhere: true}))
			},
			[]string{"c admit n2"},
		},
		{
			"the reason of a saved member's wait names all nodes",
			func(s *scene) {
				s.runs("a", 0, 8, "n1", "n2").asks("c", KindRestore, 1, 4, going(Home{Node: "n1", Elsewhere: true}))
			},
			[]string{"c wait (node) a member that is saved on node n1 can't go on: node n1 has no room for it (0 cores free, 4 cores needed); no other node can take it: node n2 has no room for it (0 cores free, 4 cores needed)"},
		},
		{
			"a member that moves never stays on its node", func(s *scene) { s.asks("c", KindMove, 1, 4, going(Home{Not: "n1"})) },
			[]string{"c admit n2"},
		},
		{
			"a member that moves goes only to the node that it is sent to",
			func(s *scene) { s.runs("a", 0, 6, "n2").asks("c", KindMove, 1, 4, going(Home{Node: "n2", Not: "n1"})) },
			[]string{"c wait (node) node n2 has no room for it (2 cores free, 4 cores needed)"},
		},
		{
			"a member moves to no node that can't take its memory",
			func(s *scene) {
				s.asks("c", KindMove, 1, 4, going(Home{Not: "n1", Unfit: map[string]string{"n2": "node n2 has QEMU 8.2, and node n1 has QEMU 7.2"}}))
			},
			[]string{"c wait (node) no other node can take it: node n2 has QEMU 8.2, and node n1 has QEMU 7.2"},
		},
		{
			"a member is sent to no node that can't take its memory",
			func(s *scene) {
				s.asks("c", KindMove, 1, 4, going(Home{Node: "n2", Not: "n1", Unfit: map[string]string{"n2": "node n2 has QEMU 8.2, and node n1 has QEMU 7.2"}}))
			},
			[]string{"c wait (node) node n2 has QEMU 8.2, and node n1 has QEMU 7.2"},
		},
		{
			"a member that moves counts once for the quota",
			func(s *scene) {
				s.account("p", quotaOf(api.Quota{Cores: 4, Members: 1}, resource.Vector{resource.Cores: 4, resource.Members: 1}))
				s.asks("p.c", KindMove, 1, 4, going(Home{Not: "n2"}))
			},
			[]string{"p.c admit n1"},
		},
	}
	tests.check(t, (*scene).plan)
}

func TestTheReplacementOfASavedMemberCountsAgainstTheQuota(t *testing.T) {
	t.Parallel()
	regains := func(r *Request) { r.Regains = true }
	full := quotaOf(api.Quota{Cores: 6, Members: 2}, resource.Vector{resource.Cores: 4, resource.Members: 2})
	tests := planCases{
		{
			"the replacement of a saved member waits for its project's quota of cores",
			func(s *scene) { s.account("p", full).asks("p.c", KindHeal, 1, 4, regains) },
			[]string{`p.c wait (quota) needs 4 cores, but project "p" already holds 4 cores and the quota is 6 cores; it does not delay others`},
		},
		{
			"no room is held for a replacement that waits for the quota",
			func(s *scene) { s.account("p", full).asks("p.c", KindHeal, 1, 4, regains).creates("x", 2, 8) },
			[]string{
				`p.c wait (quota) needs 4 cores, but project "p" already holds 4 cores and the quota is 6 cores; it does not delay others`, "x admit n1 n2",
			},
		},
		{
			"the replacement of a saved member adds no member",
			func(s *scene) { s.account("p", full).asks("p.c", KindHeal, 1, 2, regains) },
			[]string{"p.c admit n1"},
		},
		{
			"the replacement of a running member adds nothing",
			func(s *scene) { s.account("p", full).asks("p.c", KindHeal, 1, 4) },
			[]string{"p.c admit n1"},
		},
	}
	tests.check(t, (*scene).plan)
}

// lendsFunctions gives nodes an adapter each, with so many virtual functions.
func (s *scene) lendsFunctions(vfs int64, nodes ...string) {
	for _, node := range nodes {
		rec := testNode(node, 8, 32)
		rec.Capacity.Devices = []api.Device{{
			ID: "nic0", Class: api.ClassNIC, Counters: map[string]int64{"vf": vfs, "port": 1}, Ways: map[string]api.DeviceWay{"vf": {Takes: map[string]int64{"vf": 1}}},
		}}
		s.in.Free.SetNode(rec, placement.Schedulable)
	}
}

// withFunction lets each member have a virtual function.
func withFunction(r *Request) {
	r.Groups[0].Devices = []api.DeviceRequest{api.FunctionRequest(api.GroupNetwork{Interface: api.InterfaceVF}, api.TechnologyVLAN, "")}
}

// A member that was lost on a node may need a GPU that no other node has.
func TestALostMemberIsReplacedWhereItsGPUsAre(t *testing.T) {
	t.Parallel()
	withGPU := func(r *Request) { r.Groups[0].Devices = []api.DeviceRequest{{Class: "gpu", Way: "slice", Count: 1}} }
	tests := planCases{
		{
			"on its node where no other has one",
			func(s *scene) {
				s.lendsGPU("n1", 1)
				s.asks("c", KindHeal, 1, 2, avoiding("n1"), withGPU)
			},
			[]string{"c admit n1"},
		},
		{
			"on another node that has one",
			func(s *scene) {
				s.lendsGPU("n1", 1)
				s.lendsGPU("n2", 1)
				s.asks("c", KindHeal, 1, 2, avoiding("n1"), withGPU)
			},
			[]string{"c admit n2"},
		},
	}
	tests.check(t, (*scene).plan)
}

func TestMembersGoOnWhereFunctionsAreFree(t *testing.T) {
	t.Parallel()
	tests := planCases{
		{
			"a saved member goes to another node if all functions of its own are taken",
			func(s *scene) {
				s.lendsFunctions(1, "n1", "n2")
				s.asks("c", KindRestore, 2, 2, going(Home{Node: "n1", Elsewhere: true}, Home{Node: "n1", Elsewhere: true}), withFunction)
			},
			[]string{"c admit n1 n2"},
		},
		{
			"a saved member waits for a function, and hears which adapter has none",
			func(s *scene) {
				s.lendsFunctions(1, "n1")
				s.asks("c", KindRestore, 2, 2, savedOn("n1", "n1"), withFunction)
			},
			[]string{"c wait (devices) a member that is saved on node n1 can't go on: node n1 has no room for it (all 1 virtual functions of nic0 are taken)"},
		},
		{
			"a member moves to no node without an adapter",
			func(s *scene) {
				s.lendsFunctions(1, "n1")
				s.asks("c", KindMove, 1, 2, going(Home{Not: "n1"}), withFunction)
			},
			[]string{"c wait (devices) no other node can take it: node n2 has no room for it (a virtual function of an adapter needed)"},
		},
		{
			"what one member goes on with, no other gets",
			func(s *scene) {
				s.lendsFunctions(1, "n1", "n2")
				s.asks("a", KindMove, 1, 2, going(Home{Node: "n2", Not: "n1"}), withFunction)
				s.asks("c", KindMove, 1, 2, going(Home{Node: "n2", Not: "n1"}), withFunction)
			},
			[]string{"a admit n2", "c wait (devices) node n2 has no room for it (all 1 virtual functions of nic0 are taken)"},
		},
	}
	tests.check(t, (*scene).plan)
}

func TestEachMemberThatGoesOnGetsAFunctionOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1)
	s.lendsFunctions(3, "n1")
	s.asks("c", KindRestore, 2, 2, savedOn("n1", "n1"), withFunction).asks("d", KindRestore, 1, 2, savedOn("n1"), withFunction)
	var parts []string
	for _, d := range Plan(s.in) {
		for _, p := range d.Placed {
			parts = append(parts, p.Devices[0].Claims[0].Part)
		}
	}
	check(t, parts, "vf0", "vf1", "vf2")
}

func TestMembersThatGoOnTogetherPreferOneRail(t *testing.T) {
	t.Parallel()
	s := newScene(t, 2)
	for near, node := range []string{"n2", "n1"} {
		rec := testNode(node, 8, 32)
		for rail := range 2 {
			d := api.Device{ID: fmt.Sprint("nic", rail), Class: api.ClassNIC, NUMANode: 5, Rail: rail, Counters: map[string]int64{"vf": 2}, Ways: map[string]api.DeviceWay{"vf": {Takes: map[string]int64{"vf": 1}}}}
			if rail == near {
				d.NUMANode = 0
			}
			rec.Capacity.Devices = append(rec.Capacity.Devices, d)
		}
		s.in.Free.SetNode(rec, placement.Schedulable)
	}
	s.asks("c", KindRestore, 2, 2, savedOn("n1", "n2"), withFunction)
	var devices []string
	for _, d := range Plan(s.in) {
		for _, p := range d.Placed {
			devices = append(devices, p.Node+" "+p.Devices[0].Claims[0].Device)
		}
	}
	check(t, devices, "n1 nic1", "n2 nic1")
}
