package tenancy

import (
	"fmt"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// QuotaExceeded is the error of a project that would hold more than its quota, or whose quota would be less than what it holds.
type QuotaExceeded struct {
	// What is the bound that is hit: "cores", "memory", "members" or "clusters".
	What string
	// Never: what is asked for is larger than the quota, so waiting does not help.
	Never   bool
	message string
}

func (e *QuotaExceeded) Error() string { return e.message }

// bound is one of a quota's bounds with its values, as text for people and as numbers.
type bound struct {
	what             string
	quota, used, add int64
	text             func(int64) string
}

func bounds(quota, used, add api.Quota) []bound {
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	size := func(n int64) string { return api.Bytes(n).String() }
	return []bound{
		{"clusters", int64(quota.Clusters), int64(used.Clusters), int64(add.Clusters), count},
		{"members", int64(quota.Members), int64(used.Members), int64(add.Members), count},
		{"cores", int64(quota.Cores), int64(used.Cores), int64(add.Cores), count},
		{"memory", int64(quota.Memory), int64(used.Memory), int64(add.Memory), size},
	}
}

// CheckQuota tells whether a project that uses so much may have more. What adds nothing to a bound is not refused for it, even when more
// is used than the bound. The error is a *QuotaExceeded.
func CheckQuota(quota, used, add api.Quota) error {
	for _, b := range bounds(quota, used, add) {
		if b.quota == 0 || b.add <= 0 || b.used+b.add <= b.quota {
			continue
		}
		if b.add > b.quota {
			return &QuotaExceeded{What: b.what, Never: true, message: fmt.Sprintf(
				"it needs %s %s, but the project's quota is %s; request less, or ask an administrator for a larger quota",
				b.text(b.add), b.what, b.text(b.quota))}
		}
		return &QuotaExceeded{What: b.what, message: fmt.Sprintf(
			"it needs %s %s, but the project uses %s of its quota of %s; delete something, or ask an administrator for a larger quota",
			b.text(b.add), b.what, b.text(b.used), b.text(b.quota))}
	}
	return nil
}

// CheckNewQuota refuses a quota below what is in use: nothing would be ended by it, and the project would look as if it broke it. The
// error is a *QuotaExceeded.
func CheckNewQuota(quota, used api.Quota) error {
	for _, b := range bounds(quota, used, api.Quota{}) {
		if b.quota != 0 && b.used > b.quota {
			return &QuotaExceeded{What: b.what, message: fmt.Sprintf(
				"a quota of %s %s is below the %s in use; delete something first, or set a larger one",
				b.text(b.quota), b.what, b.text(b.used))}
		}
	}
	return nil
}

// Need is what a cluster of these groups holds when it has all its members and spares.
func Need(spec api.ClusterSpec) api.Quota {
	need := api.Quota{Clusters: 1}
	for i := range spec.Groups {
		g := &spec.Groups[i]
		members := g.Size + g.Spares
		need.Members += members
		need.Cores += members * g.Cores
		need.Memory += api.Bytes(members) * g.Memory
	}
	return need
}

// Held is what the clusters of each project hold now, in the units of a quota: members and spares that are held. What is being cleaned
// is the site's own.
func Held(view *state.View) map[string]api.Quota {
	return sum(view, (*state.Cluster).HeldTotal)
}

// Used is what counts against the quota of each project when more is asked for: of clusters that have a place, what they hold or are to
// hold, whichever is more; of those that wait, nothing.
func Used(view *state.View) map[string]api.Quota {
	return sum(view, used)
}

func used(c *state.Cluster) api.Quota {
	held := c.HeldTotal()
	placed := c.Record != nil && (c.Record.PlacedAt != nil || held.Clusters > 0)
	if !placed || c.Intent.DeleteRequestedAt != nil || c.Record.Phase == api.ClusterDeleting {
		return held
	}
	need := Need(c.Intent.Spec)
	return api.Quota{
		Clusters: 1, Members: max(held.Members, need.Members), Cores: max(held.Cores, need.Cores), Memory: max(held.Memory, need.Memory),
	}
}

func sum(view *state.View, of func(*state.Cluster) api.Quota) map[string]api.Quota {
	all := map[string]api.Quota{}
	for _, c := range view.Clusters {
		project := projectOr(c.Intent.Project)
		all[project] = Plus(all[project], of(c))
	}
	return all
}

// Plus adds up two quantities.
func Plus(a, b api.Quota) api.Quota {
	return api.Quota{
		Clusters: a.Clusters + b.Clusters, Members: a.Members + b.Members, Cores: a.Cores + b.Cores, Memory: a.Memory + b.Memory,
	}
}
