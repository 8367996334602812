package apiserver

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// chosenMembers returns the members of a cluster that a request names, in the order of their ranks; all members when it names none.
func chosenMembers(name string, c *state.Cluster, names []string) ([]*api.Assignment, error) {
	var chosen []*api.Assignment
	there := map[string]bool{}
	for a := range c.Held() {
		if !a.IsMember() {
			continue
		}
		there[a.Member] = true
		if len(names) == 0 || slices.Contains(names, a.Member) {
			chosen = append(chosen, a)
		}
	}
	for _, m := range names {
		if !there[m] {
			return nil, fail(codeNoMember, "cluster %q has no member %q on a node; see nearmetal cluster show %s", name, m, name)
		}
	}
	if len(chosen) == 0 {
		return nil, fail(codeWrongPhase, "cluster %q has no members on nodes", name)
	}
	slices.SortFunc(chosen, func(a, b *api.Assignment) int { return cmp.Compare(a.Rank, b.Rank) })
	return chosen, nil
}

// checkRuns refuses a request for members of a cluster that does not run, or does something else. can says what only members of a ready cluster
// can do, such as "reboot".
func checkRuns(name string, intent *api.ClusterIntent, c *state.Cluster, can string) error {
	phase := phaseOf(c)
	switch {
	case lifecycle.WantsSaved(intent, c.Record) || lifecycle.Shelving(phase):
		return isSaved(name)
	case intent.Paused || phase == api.ClusterPausing || phase == api.ClusterPaused || phase == api.ClusterResuming:
		return isPaused(name)
	case phase != api.ClusterReady && phase != api.ClusterDegraded:
		return fail(codeWrongPhase, "cluster %q is %s, and only members of a ready cluster can %s; see nearmetal cluster show %s", name, phase, can, name)
	case c.Record.ExpiredAt != nil:
		return isExpired(name)
	default:
		return nil
	}
}
