package admission

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// resizing makes a request one of the first member that a cluster holds.
func (s *scene) resizing(cluster string) func(*Request) {
	return func(r *Request) {
		for _, running := range s.in.Running {
			if running.Cluster == cluster {
				r.Resizes = s.in.Free.Held(running.Assignments[0])
			}
		}
	}
}

func TestAMemberGrowsOnItsOwnNodeOrWaits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		site func(*scene)
		want []string
	}{
		{
			"beside what it holds, before those in the queue",
			func(s *scene) {
				s.runs("c", 0, 2, "n1")
				s.creates("x", 2, 7, noQueue).asks("c", KindResize, 1, 8, s.resizing("c"))
			},
			[]string{"c admit", `x refuse (cores) cluster "x" can't be placed: group "g" needs 2 members with 7 cores and 1GiB each; 1 member fits now (n2); ` +
				`n1 has 0 of 8 cores free; 2 members with 4 cores and 1GiB each would fit`},
		},
		{
			"not on another node",
			func(s *scene) {
				s.runs("c", 0, 2, "n1").runs("o", 0, 5, "n1")
				s.asks("c", KindResize, 1, 4, s.resizing("c"))
			},
			[]string{"c wait (node) node n1 has no room for it (2 cores more needed, 1 core free)"},
		},
		{
			"two members of one node do not get the same core",
			func(s *scene) {
				s.runs("a", 0, 3, "n1").runs("b", 0, 4, "n1")
				s.asks("a", KindResize, 1, 4, s.resizing("a")).asks("b", KindResize, 1, 5, s.resizing("b"))
			},
			[]string{"a admit", "b wait (node) node n1 has no room for it (1 core more needed, 0 cores free)"},
		},
		{
			"a smaller member needs nothing",
			func(s *scene) {
				s.runs("c", 0, 4, "n1").runs("o", 0, 4, "n1")
				s.asks("c", KindResize, 1, 2, s.resizing("c"))
			},
			[]string{"c admit"},
		},
		{
			"within its project's quota, of which it adds what it grows by",
			func(s *scene) {
				s.account("p", Account{Quota: api.Quota{Cores: 4}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 2}}})
				s.runs("p.c", 0, 2, "n1")
				s.asks("p.c", KindResize, 1, 5, s.resizing("p.c"))
			},
			[]string{`p.c wait (quota) needs 3 cores, but project "p" already holds 2 cores and the quota is 4 cores; it does not delay others`},
		},
		{
			"the replacement of a member that was to grow counts for what it grows by",
			func(s *scene) {
				s.account("p", Account{Quota: api.Quota{Cores: 4}, Used: resource.Amounts{Vector: resource.Vector{resource.Cores: 3}}})
				s.asks("p.c", KindHeal, 1, 3, func(r *Request) { r.Held = &api.Shape{Cores: 1, Memory: gib} })
			},
			[]string{`p.c wait (quota) needs 2 cores, but project "p" already holds 3 cores and the quota is 4 cores; it does not delay others`},
		},
		{
			"not in the room that is held for a replacement",
			func(s *scene) {
				s.runs("c", 0, 1, "n1").runs("soon", time.Hour, 1, "n1").runs("o", 0, 8, "n2")
				s.asks("h", KindHeal, 1, 7).asks("c", KindResize, 1, 2, s.resizing("c"))
			},
			[]string{
				"h wait (cores) needs 1 member with 7 cores and 1GiB, none fits now; can start at 13:00 UTC at the latest, when soon reaches its time limit",
				"c wait (node) node n1 has no room for it (1 core more needed, 0 cores free)",
			},
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
