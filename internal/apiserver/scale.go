package apiserver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
)

// A group's members are the first Size names GROUP-0, GROUP-1, ... that are not in Intent.Removed (lifecycle.DesiredMembers). What
// follows changes Size and Removed so that the members are those that should be left, or there.

// ranks are the ranks of the members that have one, by name: those held and those lost.
func ranks(c *state.Cluster) map[string]int {
	out := map[string]int{}
	for a := range c.Held() {
		if a.IsMember() {
			out[a.Member] = a.Rank
		}
	}
	if c.Record != nil {
		for _, l := range c.Record.Lost {
			out[l.Member] = l.Rank
		}
	}
	return out
}

// groupNumbers are the numbers of the members that a group should have, ascending.
func groupNumbers(in *api.ClusterIntent, group string) []int {
	var numbers []int
	for _, m := range lifecycle.DesiredMembers(in.Spec, in.Removed) {
		if m.Group == group {
			n, _ := memberNumber(group, m.Member)
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// memberNumber is the number in a member's name; false when it is no name of the group's members.
func memberNumber(group, member string) (int, bool) {
	text, ok := strings.CutPrefix(member, group+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && manifest.MemberName(group, n) == member
}

// setNumbers makes the members of group i those with these numbers, ascending.
func setNumbers(in *api.ClusterIntent, i int, numbers []int) {
	g := &in.Spec.Groups[i]
	removed := slices.DeleteFunc(slices.Clone(in.Removed), func(name string) bool {
		_, ours := memberNumber(g.Name, name)
		return ours
	})
	next := 0
	for _, n := range numbers {
		for ; next < n; next++ {
			removed = append(removed, manifest.MemberName(g.Name, next))
		}
		next = n + 1
	}
	g.Size, in.Removed = len(numbers), removed
	if len(removed) == 0 {
		in.Removed = nil
	}
}

// resize gives group i a size. Growing takes the lowest free numbers, so names that were taken out come back first; shrinking drops the
// highest ranks, those that have none yet before all others.
func resize(in *api.ClusterIntent, i, size int, rank map[string]int) {
	g := in.Spec.Groups[i]
	numbers := groupNumbers(in, g.Name)
	for n := 0; len(numbers) < size; n++ {
		if at, there := slices.BinarySearch(numbers, n); !there {
			numbers = slices.Insert(numbers, at, n)
		}
	}
	if len(numbers) > size {
		slices.SortFunc(numbers, func(a, b int) int {
			ra, aRanked := rank[manifest.MemberName(g.Name, a)]
			rb, bRanked := rank[manifest.MemberName(g.Name, b)]
			switch {
			case aRanked && bRanked && ra != rb:
				return cmp.Compare(ra, rb)
			case aRanked != bRanked:
				return cmp.Compare(btoi(bRanked), btoi(aRanked))
			default:
				return cmp.Compare(a, b)
			}
		})
		numbers = numbers[:size]
		slices.Sort(numbers)
	}
	setNumbers(in, i, numbers)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// changeMembers does what a scale asks for to an intent. The error is a *failure with everything that is wrong with it; the intent is
// then as it was.
func changeMembers(in *api.ClusterIntent, req api.ScaleRequest, src *manifest.Source, rank map[string]int) error {
	var problems []api.FieldProblem
	wrong := func(path, value, format string, args ...any) {
		problems = append(problems, api.FieldProblem{Location: path, Line: src.Line(path), Value: value, Message: fmt.Sprintf(format, args...)})
	}
	group := -1
	switch {
	case req.Group != "" || src.Has("group"):
		group = slices.IndexFunc(in.Spec.Groups, func(g api.Group) bool { return g.Name == req.Group })
		if group < 0 {
			wrong("group", req.Group, "%q is not a group of this cluster; %s", req.Group, known("groups", req.Group, groupNames(in.Spec)))
		}
	case len(in.Spec.Groups) == 1:
		group = 0
	case len(req.Remove) == 0:
		wrong("group", "", "is missing; this cluster has several groups: %s", quoteAll(groupNames(in.Spec)))
	}
	switch hasSize := req.Size != 0 || src.Has("size"); {
	case hasSize && len(req.Remove) > 0:
		wrong("remove", "", "conflicts with size; give only one of them")
	case !hasSize && len(req.Remove) == 0:
		wrong("size", "", "is missing; give the new number of members of the group, or the names of members to remove")
	case hasSize && req.Size < 1:
		wrong("size", strconv.Itoa(req.Size), "%d is too small; give at least 1, or delete the cluster", req.Size)
	case hasSize && group >= 0:
		if others := totalSize(in.Spec) - in.Spec.Groups[group].Size; others+req.Size > manifest.MaxMembers {
			wrong("size", strconv.Itoa(req.Size), "%d is too large; a cluster's network holds %d members and spares in all", req.Size, manifest.MaxMembers)
		}
	}
	left := leftAfter(in, req, group, rank, wrong)
	if len(problems) > 0 {
		return failFields(codeInvalidRequest, problems...)
	}
	if len(req.Remove) == 0 {
		resize(in, group, req.Size, rank)
		return nil
	}
	for i, numbers := range left {
		setNumbers(in, i, numbers)
	}
	return nil
}

// leftAfter are the numbers of the members of each group that stay when those named are removed.
func leftAfter(in *api.ClusterIntent, req api.ScaleRequest, only int, rank map[string]int, wrong func(path, value, format string, args ...any),
) [][]int {
	left := make([][]int, len(in.Spec.Groups))
	for i, g := range in.Spec.Groups {
		left[i] = groupNumbers(in, g.Name)
	}
	done := map[string]bool{}
	for at, name := range req.Remove {
		path := fmt.Sprintf("remove[%d]", at)
		i, n := findMember(in, left, name)
		switch r, ranked := rank[name]; {
		case done[name]:
		case i < 0:
			wrong(path, name, "%q is not a member of this cluster", name)
		case only >= 0 && i != only:
			wrong(path, name, "%q is not a member of group %q", name, in.Spec.Groups[only].Name)
		case ranked && r == 0 || !ranked && i == 0 && n == 0:
			wrong(path, name, "%q is rank 0, which runs the cluster's jobs and can't be removed", name)
		default:
			done[name] = true
			left[i] = slices.DeleteFunc(left[i], func(m int) bool { return m == n })
		}
	}
	for i, g := range in.Spec.Groups {
		if len(left[i]) == 0 {
			wrong("remove", "", "names every member of group %q; leave at least one, or delete the cluster", g.Name)
		}
	}
	return left
}

// findMember returns the group and number of a member, -1 when there is no such.
func findMember(in *api.ClusterIntent, numbers [][]int, name string) (group, number int) {
	for i, g := range in.Spec.Groups {
		if n, ok := memberNumber(g.Name, name); ok && slices.Contains(numbers[i], n) {
			return i, n
		}
	}
	return -1, 0
}

func groupNames(spec api.ClusterSpec) []string {
	names := make([]string, len(spec.Groups))
	for i, g := range spec.Groups {
		names[i] = g.Name
	}
	return names
}

// totalSize is how many addresses a cluster may need: members and spares.
func totalSize(spec api.ClusterSpec) int {
	n := 0
	for _, g := range spec.Groups {
		n += g.Size + g.Spares
	}
	return n
}
