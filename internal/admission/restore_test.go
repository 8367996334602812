package admission

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// homes are the nodes on which the members of a restore are saved.
func homes(nodes ...string) func(*Request) {
	return func(r *Request) {
		for _, n := range nodes {
			r.Homes = append(r.Homes, Home{Node: n})
		}
	}
}

func TestSavedMembersGoOnTogetherWhereTheyAreSavedOrNotAtAll(t *testing.T) {
	t.Parallel()
	quota := func(q api.Quota, used resource.Vector) Account {
		return Account{Quota: q, Used: resource.Amounts{Vector: used}}
	}
	tests := []struct {
		name string
		site func(*scene)
		want []string
	}{
		{
			"each on its own node, before those in the queue",
			func(s *scene) { s.creates("x", 1, 8).asks("c", KindRestore, 3, 4, homes("n2", "n1", "n2")) },
			[]string{"c admit n2 n1 n2", "x wait (cores) needs 1 member with 8 cores and 1GiB, none fits now; its start time is unknown because some clusters in its way have no time limit"},
		},
		{
			"none of them when one node has too little room for all",
			func(s *scene) { s.runs("a", 0, 4, "n2").asks("c", KindRestore, 3, 4, homes("n1", "n2", "n2")) },
			[]string{"c wait (node) a member that is saved on node n2 can't go on: node n2 has no room for it (0 cores free, 4 cores needed)"},
		},
		{
			"nothing is held for them",
			func(s *scene) {
				s.runs("a", 0, 8, "n2").asks("c", KindRestore, 2, 4, homes("n1", "n2")).creates("x", 1, 8)
			},
			[]string{"c wait (node) a member that is saved on node n2 can't go on: node n2 has no room for it (0 cores free, 4 cores needed)", "x admit n1"},
		},
		{
			"not on a node that is drained",
			func(s *scene) {
				s.in.Free.SetAvailability("n1", placement.Drained)
				s.asks("c", KindRestore, 1, 4, homes("n1"))
			},
			[]string{"c wait (node) a member that is saved on node n1 can't go on: node n1 is drained"},
		},
		{
			"within their project's quota of cores",
			func(s *scene) {
				s.account("p", quota(api.Quota{Cores: 10}, resource.Vector{resource.Cores: 4, resource.Members: 2}))
				s.asks("p.c", KindRestore, 2, 4, homes("n1", "n2"))
			},
			[]string{`p.c wait (quota) needs 8 cores, but project "p" already holds 4 cores and the quota is 10 cores; it does not delay others`},
		},
		{
			"they count as members already",
			func(s *scene) {
				s.account("p", quota(api.Quota{Members: 2}, resource.Vector{resource.Members: 2}))
				s.asks("p.c", KindRestore, 2, 4, homes("n1", "n2"))
			},
			[]string{"p.c admit n1 n2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2)
			tt.site(s)
			check(t, s.plan(), tt.want...)
		})
	}
}

// going says where members go on.
func going(homes ...Home) func(*Request) {
	return func(r *Request) { r.Homes = append(r.Homes, homes...) }
}

func TestMembersGoOnElsewhereWhereTheirNodeCanNotHaveThem(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		site func(*scene)
		want []string
	}{
		{
			"a saved one stays on its node if that has room", func(s *scene) { s.asks("c", KindRestore, 1, 4, going(Home{Node: "n2", Elsewhere: true})) },
			[]string{"c admit n2"},
		},
		{
			"and goes elsewhere if not",
			func(s *scene) {
				s.runs("a", 0, 8, "n2").asks("c", KindRestore, 2, 4, going(Home{Node: "n2", Elsewhere: true}, Home{Node: "n1"}))
			},
			[]string{"c admit n1 n1"},
		},
		{
			"or if that is drained",
			func(s *scene) {
				s.in.Free.SetAvailability("n1", placement.Drained)
				s.asks("c", KindRestore, 1, 4, going(Home{Node: "n1", Elsewhere: true}))
			},
			[]string{"c admit n2"},
		},
		{
			"why it waits names all nodes",
			func(s *scene) {
				s.runs("a", 0, 8, "n1", "n2").asks("c", KindRestore, 1, 4, going(Home{Node: "n1", Elsewhere: true}))
			},
			[]string{"c wait (node) a member that is saved on node n1 can't go on: node n1 has no room for it (0 cores free, 4 cores needed); no other node can take it: node n2 has no room for it (0 cores free, 4 cores needed)"},
		},
		{
			"one that moves never stays", func(s *scene) { s.asks("c", KindMove, 1, 4, going(Home{Not: "n1"})) },
			[]string{"c admit n2"},
		},
		{
			"nor goes anywhere else than it was sent",
			func(s *scene) { s.runs("a", 0, 6, "n2").asks("c", KindMove, 1, 4, going(Home{Node: "n2", Not: "n1"})) },
			[]string{"c wait (node) node n2 has no room for it (2 cores free, 4 cores needed)"},
		},
		{
			"it counts once for the quota",
			func(s *scene) {
				s.account("p", Account{Quota: api.Quota{Cores: 4, Members: 1}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 4, resource.Members: 1}}})
				s.asks("p.c", KindMove, 1, 4, going(Home{Not: "n2"}))
			},
			[]string{"p.c admit n1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2)
			tt.site(s)
			check(t, s.plan(), tt.want...)
		})
	}
}

func TestTheReplacementOfASavedMemberCountsAgainstTheQuota(t *testing.T) {
	t.Parallel()
	regains := func(r *Request) { r.Regains = true }
	full := Account{Quota: api.Quota{Cores: 6, Members: 2}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 4, resource.Members: 2}}}
	tests := []struct {
		name string
		site func(*scene)
		want []string
	}{
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
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, 2)
			tt.site(s)
			check(t, s.plan(), tt.want...)
		})
	}
}
