package decision

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// shelf is what an independent observer knows of one member that is saved and goes on.
type shelf struct {
	// id is the member's, next its successor's; empty when there is none.
	id, next string
	saved    bool
	lost     bool
	// unclean are its assignments that were released.
	unclean []string
}

// shelves are members whose life is saves and restores. They keep books of what was held for how long.
type shelves struct {
	*world
	all            []*shelf
	members, cores int64 // times nanoseconds
}

// pass lets time pass, in which each member has what it holds.
func (s *shelves) pass(d time.Duration) {
	s.now = s.now.Add(d)
	for _, m := range s.all {
		if !m.lost {
			s.members += int64(d)
		}
		if !m.lost && !m.saved {
			s.cores += 2 * int64(d)
		}
		if m.next != "" {
			s.cores += 2 * int64(d)
		}
	}
}

// step does something to a member that fits what it is, and returns what is to be committed.
func (s *shelves) step(m *shelf) lifecycle.ClusterOperation {
	choices := []string{"nothing"}
	if len(m.unclean) > 0 {
		choices = append(choices, "clean")
	}
	switch {
	case m.lost:
	case !m.saved:
		choices = append(choices, "save", "lose")
	case m.next == "" && len(m.unclean) == 0:
		choices = append(choices, "place", "place", "lose")
	case m.next != "":
		choices = append(choices, "take over", "withdraw", "lose")
	}
	switch rapid.SampledFrom(choices).Draw(s.T, "step of "+m.id) {
	case "save":
		m.saved = true
		return lifecycle.Shelve{IDs: []string{m.id}}
	case "place":
		next := successor(s.c, m.id)
		m.next = next.ID
		return lifecycle.Hold{Assignments: []api.Assignment{next}}
	case "take over":
		m.unclean, m.saved = append(m.unclean, m.id), false
		id := m.next
		m.id, m.next = m.next, ""
		return lifecycle.TakeOver{IDs: []string{id}}
	case "withdraw":
		id := m.next
		m.unclean, m.next = append(m.unclean, id), ""
		return lifecycle.Withdraw{IDs: []string{id}}
	case "lose":
		if m.unclean = append(m.unclean, m.id); m.next != "" {
			m.unclean = append(m.unclean, m.next)
		}
		m.lost, m.next = true, ""
		return lifecycle.Release{IDs: []string{m.id}, Lost: true, Reason: "r"}
	case "clean":
		ids := m.unclean
		m.unclean = nil
		return lifecycle.ConfirmClean{IDs: ids}
	default:
		return nil
	}
}

// check compares who is held with the books: each name is one member, whatever it is just then.
func (s *shelves) check() {
	s.Helper()
	got, want := map[string]string{}, map[string]string{}
	for _, a := range s.c.Assignments() {
		if !a.Releasing {
			got[a.ID] = fmt.Sprintf("%s member %t saved %t cores %d port %s", a.Member, a.IsMember(), a.Saved, len(a.Slots), a.Ports[0].Address)
		}
	}
	for i, m := range s.all {
		name, port := fmt.Sprint("c-", i), assignment("", i, 1).Ports[0].Address
		if cores := 2; !m.lost {
			if m.saved {
				cores = 0
			}
			want[m.id] = fmt.Sprintf("%s member true saved %t cores %d port %s", name, m.saved, cores, port)
		}
		if m.next != "" {
			want[m.next] = fmt.Sprintf("%s member false saved false cores 2 port %s", name, port)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("held (-books +record):\n%s", diff)
	}
}

func TestWhoeverIsSavedAndGoesOnIsOneMemberAndAllUseIsWrittenDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shelves{world: newWorld(t)}
		hold := lifecycle.Hold{Networks: []api.Network{{UID: "u1", ClusterUID: "u1", Index: 3}}}
		for i := range 3 {
			a := assignment(fmt.Sprint("c-", i), i, 1)
			hold.Assignments = append(hold.Assignments, a)
			s.all = append(s.all, &shelf{id: a.ID})
		}
		s.commit(lifecycle.SetPhase{To: api.ClusterStarting}, hold, lifecycle.SetPhase{To: api.ClusterReady})
		s.commit(lifecycle.SetPhase{To: api.ClusterSaving}, lifecycle.SetPhase{To: api.ClusterRestoring})
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			s.pass(time.Duration(rapid.SampledFrom([]int64{0, 1, 1e9, 700e9}).Draw(t, "time passes")))
			m := rapid.SampledFrom(s.all).Draw(t, "who")
			if op := s.step(m); op != nil {
				s.commit(op)
			}
			s.check()
		}
		var end []lifecycle.ClusterOperation
		for _, m := range s.all {
			if !m.lost {
				end = append(end, lifecycle.Release{IDs: []string{m.id}})
			}
		}
		s.commit(append(end, lifecycle.SetPhase{To: api.ClusterDeleting})...)
		var members, cores int64
		for _, span := range s.spans {
			if span.Kind == api.SpanAllocated {
				d := int64(span.To.Sub(span.From))
				members, cores = members+d*int64(span.Members), cores+d*int64(span.Cores)
			}
		}
		if members != s.members || cores != s.cores {
			t.Fatalf("member- and core-nanoseconds: got %d and %d, want %d and %d", members, cores, s.members, s.cores)
		}
	})
}
