package lifecycle

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// SpareRank is the rank of a spare: none. It is no member, and rank 0 carries out jobs.
const SpareRank = -1

// DesiredMembers are the members that a cluster should have: of each group the first Size names GROUP-0, GROUP-1, ... that were not
// taken out. Ranks are those of a first placement: the order of the list.
func DesiredMembers(spec api.ClusterSpec, removed []string) []WantedMember {
	out := make(map[string]bool, len(removed))
	for _, name := range removed {
		out[name] = true
	}
	var members []WantedMember
	for _, g := range spec.Groups {
		for i, n := 0, 0; n < g.Size; i++ {
			name := g.Name + "-" + strconv.Itoa(i)
			if out[name] {
				continue
			}
			members = append(members, WantedMember{Group: g.Name, Member: name, Rank: len(members)})
			n++
		}
	}
	return members
}

// DesiredSpares are the places that a cluster should hold besides, GROUP-spare-0, GROUP-spare-1, ...
func DesiredSpares(spec api.ClusterSpec) []WantedMember {
	var spares []WantedMember
	for _, g := range spec.Groups {
		for i := range g.Spares {
			spares = append(spares, WantedMember{Group: g.Name, Member: fmt.Sprintf("%s-spare-%d", g.Name, i), Rank: SpareRank, Spare: true})
		}
	}
	return spares
}

// MissingMembers are the desired members that have no assignment and do not wait for a replacement, with the ranks they are to get: the
// lowest that no held and no lost member has. Assignments that are being released hold no name any more.
func MissingMembers(desired []WantedMember, assignments []ClusterAssignment, lost []api.LostMember) []WantedMember {
	names, ranks := make(map[string]bool, len(desired)), make(map[int]bool, len(desired))
	for _, a := range assignments {
		if !a.Releasing && !a.Spare {
			names[a.Member], ranks[a.Rank] = true, true
		}
	}
	for _, m := range lost {
		names[m.Member], ranks[m.Rank] = true, true
	}
	var missing []WantedMember
	rank := 0
	for _, m := range desired {
		if names[m.Member] {
			continue
		}
		for ranks[rank] {
			rank++
		}
		m.Rank = rank
		missing = append(missing, m)
		rank++
	}
	return missing
}

// missingSpares asks for each place that should be held and is not.
func missingSpares(desired []WantedMember, held []ClusterAssignment) []Operation {
	var needs []Operation
	for _, want := range desired {
		if !slices.ContainsFunc(held, func(a ClusterAssignment) bool { return a.Member == want.Member }) {
			needs = append(needs, Need{Kind: NeedSpare, Members: []WantedMember{want}})
		}
	}
	return needs
}

// Frozen tells whether the members of a cluster in this phase are to be frozen. The leader's phase says so, not the user's intent: so
// nothing is frozen before it is ready.
func Frozen(phase api.ClusterPhase) bool {
	return phase == api.ClusterPausing || phase == api.ClusterPaused
}
