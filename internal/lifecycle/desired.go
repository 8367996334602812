package lifecycle

import (
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// NoRank is the rank of a spare or of a part: none. It is no member, and rank 0 carries out jobs.
const NoRank = -1

// names are the names of the members that a cluster should have: of each group the first Size of GROUP-0, GROUP-1, ... that were not
// taken out. Whether a name is among them is told without listing them: the leader asks for all members in every pass.
type names struct {
	groups  []api.Group
	limits  []int // by group: numbers below are taken, but for those removed
	removed map[string]bool
	size    int
}

func desiredNames(spec api.ClusterSpec, removed []string) names {
	n := names{groups: spec.Groups, limits: make([]int, len(spec.Groups)), removed: make(map[string]bool, len(removed))}
	for _, name := range removed {
		n.removed[name] = true
	}
	for gi, g := range spec.Groups {
		n.size += g.Size
		n.limits[gi] = g.Size
		if len(removed) == 0 {
			continue
		}
		limit, found := 0, 0
		for ; found < g.Size; limit++ {
			if !n.removed[memberName(g.Name, limit)] {
				found++
			}
		}
		n.limits[gi] = limit
	}
	return n
}

// has reports whether a name of a group is among them.
func (n names) has(group, name string) bool {
	for gi, g := range n.groups {
		if g.Name != group {
			continue
		}
		number, ok := memberNumber(group, name)
		return ok && number < n.limits[gi] && !n.removed[name]
	}
	return false
}

func memberName(group string, number int) string { return group + "-" + strconv.Itoa(number) }

// memberNumber reads the number off a member's name.
func memberNumber(group, name string) (int, bool) {
	if len(name) < len(group)+2 || name[:len(group)] != group || name[len(group)] != '-' {
		return 0, false
	}
	digits := name[len(group)+1:]
	number, err := strconv.Atoi(digits)
	return number, err == nil && (digits == "0" || digits[0] >= '1' && digits[0] <= '9')
}

// DesiredMembers are the members that a cluster should have: of each group the first Size names GROUP-0, GROUP-1, ... that were not
// taken out. Ranks are those of a first placement: the order of the list.
func DesiredMembers(spec api.ClusterSpec, removed []string) []WantedMember {
	n := desiredNames(spec, removed)
	members := make([]WantedMember, 0, n.size)
	for gi, g := range spec.Groups {
		for i := range n.limits[gi] {
			if name := memberName(g.Name, i); !n.removed[name] {
				members = append(members, WantedMember{Group: g.Name, Member: name, Rank: len(members)})
			}
		}
	}
	return members
}

// DesiredSpares are the places that a cluster should hold besides, GROUP-spare-0, GROUP-spare-1, ...
func DesiredSpares(spec api.ClusterSpec) []WantedMember {
	var spares []WantedMember
	var prefixes map[string]bool
	for _, g := range spec.Groups {
		if g.Spares == 0 {
			continue
		}
		if prefixes == nil {
			prefixes = make(map[string]bool, 2*len(spec.Groups))
			for _, other := range spec.Groups {
				prefixes[other.Name] = true
			}
		}
		// A group may itself be called like the spares of another: nobody shares a name.
		prefix := g.Name + "-spare"
		for prefixes[prefix] {
			prefix += "-spare"
		}
		prefixes[prefix] = true
		for i := range g.Spares {
			spares = append(spares, WantedMember{Group: g.Name, Member: memberName(prefix, i), Rank: NoRank, Spare: true})
		}
	}
	return spares
}

// MissingMembers are the desired members that have no assignment and do not wait for a replacement, with the ranks they are to get: the
// lowest that no held and no lost member has. Assignments that are being released hold no name any more.
func MissingMembers(desired []WantedMember, assignments []ClusterAssignment, lost []api.LostMember) []WantedMember {
	names, ranks := make(map[string]bool, len(desired)), make(map[int]bool, len(desired))
	for _, a := range assignments {
		if !a.Releasing && a.IsMember() {
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
func missingSpares(desired []WantedMember, held []ClusterAssignment) []ClusterOperation {
	var needs []ClusterOperation
	for _, want := range desired {
		if !slices.ContainsFunc(held, func(a ClusterAssignment) bool { return a.Member == want.Member }) {
			needs = append(needs, Need{Kind: NeedSpare, Members: []WantedMember{want}})
		}
	}
	return needs
}

// Frozen reports whether the members of a cluster in this phase are to be frozen. The leader's phase says so, not the user's intent: so
// nothing is frozen before it is ready.
func Frozen(phase api.ClusterPhase) bool {
	return phase == api.ClusterPausing || phase == api.ClusterPaused || phase == api.ClusterSnapshotting
}
