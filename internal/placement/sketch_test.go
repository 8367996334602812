package placement

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

// drawBusy draws a site on which some clusters run.
func drawBusy(t *rapid.T) (*View, []api.Assignment) {
	v := viewWith(drawNodes(t))
	var live []api.Assignment
	for i := range rapid.IntRange(0, 6).Draw(t, "clusters") {
		placed, refusal := Place(v, Request{Cluster: "c", Groups: drawGroups(t)})
		if refusal != nil {
			continue
		}
		for _, a := range assign(t, placed, fmt.Sprint("c", i)) {
			if err := v.Take(a); err != nil {
				t.Fatal(err)
			}
			live = append(live, a)
		}
	}
	return v, live
}

func TestASketchPlacesAsTheViewDoesOneAfterTheOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, _ := drawBusy(t)
		before := dump(v)
		s := v.Sketch()
		type step struct {
			groups []api.Group
			placed []Placed
		}
		var steps []step
		for range rapid.IntRange(1, 6).Draw(t, "requests") {
			groups := drawGroups(t)
			fit, _, ok := s.Fit(groups)
			st := step{groups: groups}
			if ok {
				st.placed = s.LayOut(groups, fit)
				s.Take(fit.Shares)
			}
			steps = append(steps, st)
		}
		if diff := cmp.Diff(before, dump(v)); diff != "" {
			t.Fatalf("the sketch changed its view:\n%s", diff)
		}
		for i, st := range steps {
			placed, _ := Place(v, Request{Cluster: "c", Groups: st.groups})
			if diff := cmp.Diff(placed, st.placed); diff != "" {
				t.Fatalf("request %d: the sketch placed otherwise (-view +sketch):\n%s", i, diff)
			}
			for _, a := range assign(t, placed, fmt.Sprint("s", i)) {
				if err := v.Take(a); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestWhatASketchIsGivenBackIsWhatFreeGivesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, live := drawBusy(t)
		if len(live) > 0 && rapid.Bool().Draw(t, "a node leaves") {
			v.RemoveNode(rapid.SampledFrom(live).Draw(t, "of").Node)
		}
		s := v.Sketch()
		for _, a := range live {
			if rapid.Bool().Draw(t, "quarantine") {
				if err := v.Quarantine(a.ID); err != nil {
					t.Fatal(err)
				}
			} else if rapid.Bool().Draw(t, "ends") {
				if share, ok := v.ShareOf(a.ID); ok {
					s.Give([]Share{share})
				}
				free(t, v, a)
			}
		}
		for name, id := range v.ids {
			if v.nodes[id].availability == Absent {
				continue // gets no members, whatever is given back there
			}
			if got, want := s.view.rows[id], v.rows[id]; got != want {
				t.Fatalf("node %s: the sketch has %+v, the view %+v", name, got, want)
			}
		}
	})
}

func TestGivingBackNeverMakesMoreThanThereIs(t *testing.T) {
	v := viewOf(t, testNode("n1", 4, 1, 8))
	if err := v.Take(api.Assignment{ID: "a", Node: "n1", Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: gib}}}); err != nil {
		t.Fatal(err)
	}
	share, _ := v.ShareOf("a")
	s := v.Sketch()
	s.Give([]Share{share, share, share})
	if c := s.Capacity(group("c", 1, 1, 1)); c.Now != 4 {
		t.Errorf("%d members fit on 4 cores", c.Now)
	}
	s.Take([]Share{share, share, share})
	if c := s.Capacity(group("c", 1, 1, 1)); c.Now != 0 {
		t.Errorf("%d members fit where less than nothing is left", c.Now)
	}
}

func TestCapacityNamesTheConstraintThatPlaceNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, live := drawBusy(t)
		for _, a := range live {
			if rapid.IntRange(0, 4).Draw(t, "quarantine") == 0 {
				if err := v.Quarantine(a.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
		g := drawGroups(t)[0]
		_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{g}})
		c := v.Sketch().Capacity(g)
		if (refusal == nil) != (g.Size <= c.Now) {
			t.Fatalf("%+v fits: %t; capacity %+v", g, refusal == nil, c)
		}
		if refusal == nil {
			return
		}
		got := c.Refuse(g.Size)
		want := Refusal{Constraint: refusal.Constraint, Never: refusal.Never, Undecided: refusal.Undecided}
		if want.Never {
			want.Constraint = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%+v, capacity %+v (-place +capacity):\n%s", g, c, diff)
		}
		if explained := v.Sketch().Explain(Request{Cluster: "c", Groups: []api.Group{g}}); cmp.Diff(refusal, explained) != "" {
			t.Fatalf("the sketch explains otherwise:\n%s", cmp.Diff(refusal, explained))
		}
	})
}

func TestAClosedNodeGetsNoMemberAndIsOpenAgainAfterwards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, _ := drawBusy(t)
		names := v.Nodes()
		var closed []string
		if len(names) > 0 {
			closed = rapid.SliceOfDistinct(rapid.SampledFrom(append(names, "stranger")), rapid.ID).Draw(t, "closed")
		}
		groups := drawGroups(t)
		s := v.Sketch()
		before := slices.Clone(s.view.rows)
		restore, _ := s.Without(closed)
		if fit, _, ok := s.Fit(groups); ok {
			for _, p := range s.LayOut(groups, fit) {
				if slices.Contains(closed, p.Node) {
					t.Fatalf("%s got %s", p.Node, p.Member)
				}
			}
		}
		restore()
		if !slices.Equal(before, s.view.rows) {
			t.Fatal("what was closed is not as it was")
		}
		s.Close(groups)
		everything := v.Sketch()
		for _, g := range groups {
			for _, name := range names {
				if everything.Suits(name, g) && s.Suits(name, g) {
					u, _ := v.Usage(name)
					if u.Cores >= g.Cores && u.MemoryBytes >= int64(g.Memory) {
						t.Fatalf("%s is open, and could hold %+v", name, g)
					}
				}
			}
		}
	})
}

func TestALimitedSketchHasTheLeastOfBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, live := drawBusy(t)
		one, other := v.Sketch(), v.Sketch()
		for _, a := range live {
			share, ok := v.ShareOf(a.ID)
			switch {
			case ok && rapid.Bool().Draw(t, "one"):
				one.Give([]Share{share})
			case ok:
				other.Give([]Share{share})
			}
		}
		other.Close(drawGroups(t))
		all := one.Clone()
		all.Limit(other)
		for id := range all.view.rows {
			least := min(one.view.rows[id].freeCores, other.view.rows[id].freeCores)
			if all.view.rows[id].freeCores != least {
				t.Fatalf("node %d has %d cores, want %d", id, all.view.rows[id].freeCores, least)
			}
			if other.view.rows[id].state != rowSchedulable && all.view.rows[id].state == rowSchedulable {
				t.Fatalf("node %d, which is closed in the other, is open", id)
			}
		}
		if fit, _, ok := all.Fit(drawGroups(t)); ok {
			at := one.Clone()
			at.LimitAt(fit.Shares, other)
			for _, s := range fit.Shares {
				if at.view.rows[s.node] != all.view.rows[s.node] {
					t.Fatalf("node %d: %+v, want %+v", s.node, at.view.rows[s.node], all.view.rows[s.node])
				}
			}
		}
	})
}

func TestCapacityTellsMemoryFromCores(t *testing.T) {
	v := viewOf(t, testNode("n1", 4, 1, 8))
	if err := v.Take(api.Assignment{ID: "a", Node: "n1", Slots: []int{0}, Memory: []api.MemoryClaim{{Bytes: 6 * gib}}}); err != nil {
		t.Fatal(err)
	}
	s := v.Sketch()
	for _, tt := range []struct {
		group api.Group
		want  Constraint
	}{
		{group("c", 1, 1, 4), ConstraintMemory},
		{group("c", 4, 1, 1), ConstraintCores},
		{group("c", 4, 1, 2), ConstraintCores},
	} {
		if got := s.Capacity(tt.group).Refuse(tt.group.Size); got.Constraint != tt.want {
			t.Errorf("%+v: %s, want %s", tt.group, got.Constraint, tt.want)
		}
	}
}
