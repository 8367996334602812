package tenancy

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
)

// QuotaExceeded is the error of a project that would hold more than its quota.
type QuotaExceeded struct {
	// What is the unit whose bound is hit.
	What resource.Unit
	// Never: what is asked for is larger than the quota, so waiting does not help.
	Never   bool
	message string
}

func (e *QuotaExceeded) Error() string { return e.message }

// CheckQuota reports whether a project that uses so much may have more. What adds nothing to a bound is not refused for it, even when
// more is used than the bound. The error is a *QuotaExceeded.
func CheckQuota(quota api.Quota, used, add resource.Amounts) error {
	limit := resource.Limit(resource.OfQuota(quota))
	over := limit.Exceeded(used, add)
	if len(over) == 0 {
		return nil
	}
	u := over[0]
	needs, allowed := add.Of(u), resource.Amounts(limit).Of(u)
	if needs > allowed {
		return &QuotaExceeded{What: u, Never: true, message: fmt.Sprintf(
			"it needs %s %s, but the project's quota is %s; request less, or ask an administrator for a larger quota",
			u.Number(needs), u, u.Number(allowed))}
	}
	return &QuotaExceeded{What: u, message: fmt.Sprintf(
		"it needs %s %s, but the project uses %s of its quota of %s; delete something, or ask an administrator for a larger quota",
		u.Number(needs), u, u.Number(used.Of(u)), u.Number(allowed))}
}

// Need returns what a cluster of these groups holds when it has all its members and spares. Parts tell what their devices take.
func Need(spec api.ClusterSpec, parts resource.Parts) resource.Amounts {
	need := resource.Amounts{Vector: resource.Vector{resource.Clusters: 1}}
	for i := range spec.Groups {
		g := &spec.Groups[i]
		need = need.Plus(resource.OfGroup(g, g.Size, g.Spares, parts))
	}
	return need
}

// Held returns what the clusters of each project hold now: members and spares that are held. What is being cleaned is the site's own.
func Held(view *state.View) map[string]resource.Amounts {
	return sum(view, (*state.Cluster).HeldTotal)
}

// storageOf returns what the volumes of each project hold, snapshots apart: those that are deleted and not yet purged count.
func storageOf(view *state.View) map[string]int64 {
	all := map[string]int64{}
	for _, v := range view.Volumes {
		all[projectOr(v.Intent.Project)] += v.Intent.SizeBytes
	}
	return all
}

// Used returns what counts against the quota of each project when more is asked for: of clusters that have a place, what they hold or are
// to hold, whichever is more; of those that wait, nothing. Volumes count with their sizes, without snapshots.
func Used(view *state.View) map[string]resource.Amounts {
	parts := view.Parts()
	all := sum(view, func(c *state.Cluster) resource.Amounts { return used(view, c, parts) })
	for project, bytes := range storageOf(view) {
		amounts := all[project]
		amounts.Vector[resource.Storage] = bytes
		all[project] = amounts
	}
	return all
}

func used(view *state.View, c *state.Cluster, parts resource.Parts) resource.Amounts {
	held := c.HeldTotal()
	placed := c.Record != nil && (c.Record.PlacedAt != nil || held.Vector[resource.Clusters] > 0)
	if !placed || c.Intent.DeleteRequestedAt != nil || c.Record.Phase == api.ClusterDeleting {
		return held
	}
	return held.Max(Need(view.SpecWithFunctions(c.Intent.Project, c.Intent.Spec), parts))
}

func sum(view *state.View, of func(*state.Cluster) resource.Amounts) map[string]resource.Amounts {
	all := map[string]resource.Amounts{}
	for _, c := range view.Clusters {
		project := projectOr(c.Intent.Project)
		all[project] = all[project].Plus(of(c))
	}
	return all
}
