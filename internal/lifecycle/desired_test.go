package lifecycle

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheMembersOfAClusterFollowFromItsIntent(t *testing.T) {
	spec := api.ClusterSpec{Groups: []api.Group{{Name: "head", Size: 1}, {Name: "work", Size: 3, Spares: 2}}}
	tests := []struct {
		name    string
		removed []string
		want    string
	}{
		{"in the order of the groups", nil, " head-0@0 work-0@1 work-1@2 work-2@3"},
		{"without those taken out", []string{"work-0", "work-2"}, " head-0@0 work-1@1 work-3@2 work-4@3"},
		{"names that are none of it change nothing", []string{"work-9", "x"}, " head-0@0 work-0@1 work-1@2 work-2@3"},
	}
	for _, tt := range tests {
		if got := sketchWanted(DesiredMembers(spec, tt.removed)); got != tt.want {
			t.Errorf("%s: want %q, got %q", tt.name, tt.want, got)
		}
	}
	if diff := cmp.Diff([]WantedMember{
		{Group: "work", Member: "work-spare-0", Rank: -1, Spare: true}, {Group: "work", Member: "work-spare-1", Rank: -1, Spare: true},
	}, DesiredSpares(spec)); diff != "" {
		t.Errorf("spares (-want +got):\n%s", diff)
	}
}

func TestNoSpareHasTheNameOfAMemberOrOfAnotherSpare(t *testing.T) {
	spec := api.ClusterSpec{Groups: []api.Group{
		{Name: "c", Size: 2, Spares: 2}, {Name: "c-spare", Size: 2, Spares: 2}, {Name: "c-spare-spare-spare", Size: 2, Spares: 2}, {Name: "d", Size: 1},
	}}
	seen := map[string]string{}
	for _, m := range append(DesiredMembers(spec, nil), DesiredSpares(spec)...) {
		if other, taken := seen[m.Member]; taken {
			t.Errorf("%s is the name of a place of group %s and of one of %s", m.Member, m.Group, other)
		}
		seen[m.Member] = m.Group
	}
	if len(seen) != 13 {
		t.Errorf("%d names, want 7 members and 6 spares: %v", len(seen), seen)
	}
}

func TestANameIsDesiredExactlyWhenItIsListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		groups := []api.Group{{Name: "a", Size: rapid.IntRange(1, 5).Draw(t, "a")}, {Name: "a-0", Size: rapid.IntRange(1, 5).Draw(t, "a-0")}}
		label := rapid.Custom(func(t *rapid.T) string {
			return rapid.SampledFrom([]string{"a", "a-0", "b", ""}).Draw(t, "group") + rapid.SampledFrom([]string{"-", "", "--"}).Draw(t, "dash") +
				rapid.SampledFrom([]string{"0", "1", "2", "3", "4", "5", "6", "-1", "+1", "01", "", "x"}).Draw(t, "number")
		})
		removed := rapid.SliceOfN(label, 0, 6).Draw(t, "removed")
		spec := api.ClusterSpec{Groups: groups}
		listed := map[string]bool{}
		for _, m := range DesiredMembers(spec, removed) {
			listed[m.Group+"/"+m.Member] = true
		}
		if len(listed) != groups[0].Size+groups[1].Size {
			t.Fatalf("%d names for %d members: %v", len(listed), groups[0].Size+groups[1].Size, listed)
		}
		for range 20 {
			group, name := rapid.SampledFrom([]string{"a", "a-0", "b"}).Draw(t, "group"), label.Draw(t, "name")
			if got := desiredNames(spec, removed).has(group, name); got != listed[group+"/"+name] {
				t.Fatalf("%s of group %s: desired %t; listed are %v", name, group, got, listed)
			}
		}
	})
}

func TestNewMembersGetTheLowestRanksThatNobodyKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "size")
		desired := DesiredMembers(api.ClusterSpec{Groups: []api.Group{{Name: "c", Size: size}}}, nil)
		used := map[int]string{}
		rank := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}).Draw(t, "ranks")
		var have []ClusterAssignment
		var lost []api.LostMember
		wanted := map[string]bool{}
		for i, m := range desired {
			a := &api.Assignment{ID: fmt.Sprint(i), Member: m.Member, Rank: rank[i]}
			switch rapid.SampledFrom([]string{"held", "lost", "released", "none"}).Draw(t, m.Member) {
			case "held":
				have, used[rank[i]] = append(have, ClusterAssignment{Assignment: a}), m.Member
			case "lost":
				have = append(have, ClusterAssignment{Assignment: a, Releasing: true})
				lost, used[rank[i]] = append(lost, api.LostMember{Member: m.Member, Rank: rank[i]}), m.Member
			case "released":
				have, wanted[m.Member] = append(have, ClusterAssignment{Assignment: a, Releasing: true}), true
			case "none":
				wanted[m.Member] = true
			}
		}
		have = append(have, ClusterAssignment{Assignment: &api.Assignment{ID: "s", Member: "c-spare-0", Rank: NoRank, Spare: true}})
		kept := len(used)
		for _, m := range MissingMembers(desired, have, lost) {
			if !wanted[m.Member] {
				t.Fatalf("%s is asked for, and is there, lost, or asked for twice", m.Member)
			}
			delete(wanted, m.Member)
			if other, taken := used[m.Rank]; taken {
				t.Fatalf("%s gets rank %d, which %s has", m.Member, m.Rank, other)
			}
			for r := range m.Rank {
				if _, taken := used[r]; !taken {
					t.Fatalf("%s gets rank %d though %d is free", m.Member, m.Rank, r)
				}
			}
			used[m.Rank] = m.Member
		}
		if len(wanted) > 0 {
			t.Fatalf("of %d, %d kept: not asked for: %v", size, kept, wanted)
		}
	})
}

func TestMembersAreFrozenOnceTheirLeaderHasDecidedSo(t *testing.T) {
	for _, rule := range Clusters().Phases {
		want := rule.Phase == api.ClusterPausing || rule.Phase == api.ClusterPaused || rule.Phase == api.ClusterSnapshotting
		if got := Frozen(rule.Phase); got != want {
			t.Errorf("members of a %s cluster frozen: want %t, got %t", rule.Phase, want, got)
		}
	}
}

func TestTheLeaderKnowsAMemberByItsNodesWordOnly(t *testing.T) {
	nodes := map[string]NodeState{
		"up": {Phase: api.NodeReady, Reported: true}, "silent": {Phase: api.NodeUnknown, Reported: true}, "new": {Phase: api.NodeReady, Reported: false}, "down": {Phase: api.NodeDown, Reported: true},
	}
	seen := map[string]Observation{
		"a": {Phase: api.MemberReady, Message: "m"}, "clean": {Proved: api.ByAgents("n")},
		"gone": {Phase: api.MemberReleasing},
	}
	tests := []struct {
		name    string
		a       ClusterAssignment
		phase   api.MemberPhase
		message string
	}{
		{"told", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "up"}}, api.MemberReady, "m"},
		{"not told of", ClusterAssignment{Assignment: &api.Assignment{ID: "b", Node: "up"}}, api.MemberAssigned, ""},
		{"told no more than that nothing is left", ClusterAssignment{Assignment: &api.Assignment{ID: "clean", Node: "up"}}, api.MemberAssigned, ""},
		{"on a silent node", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "silent"}}, api.MemberUnknown, "node silent is not reporting"},
		{"on a node that has not told all", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "new"}}, api.MemberUnknown, "node new is not reporting"},
		{"on a node that is down", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "down"}}, api.MemberUnknown, "node down is down"},
		{"on a node nobody knows", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "x"}}, api.MemberUnknown, "node x is not reporting"},
		{"being released", ClusterAssignment{Assignment: &api.Assignment{ID: "a", Node: "down"}, Releasing: true}, api.MemberReleasing, "m"},
		{"being removed though it is held", ClusterAssignment{Assignment: &api.Assignment{ID: "gone", Node: "up"}}, api.MemberUnhealthy, "its node is removing the member, which nobody requested"},
		{"being removed as it was released", ClusterAssignment{Assignment: &api.Assignment{ID: "gone", Node: "up"}, Releasing: true}, api.MemberReleasing, ""},
		{"a spare", ClusterAssignment{Assignment: &api.Assignment{ID: "s", Node: "up", Spare: true}}, api.MemberSpare, ""},
	}
	for _, tt := range tests {
		if phase, message := MemberPhase(tt.a, seen, nodes); phase != tt.phase || message != tt.message {
			t.Errorf("%s: want %s (%s), got %s (%s)", tt.name, tt.phase, tt.message, phase, message)
		}
	}
}
