package tenancy

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
)

// QuotaExceeded is the error of a project that would hold more than its quota.
type QuotaExceeded struct {
	// What is the class whose bound is hit.
	What resource.Class
	// Never: what is asked for is larger than the quota, so waiting does not help.
	Never   bool
	message string
}

func (e *QuotaExceeded) Error() string { return e.message }

// CheckQuota reports whether a project that uses so much may have more. What adds nothing to a bound is not refused for it, even when
// more is used than the bound. The error is a *QuotaExceeded.
func CheckQuota(quota api.Quota, used, add resource.Vector) error {
	limit := resource.Limit(resource.OfQuota(quota))
	over := limit.Exceeded(used, add)
	if len(over) == 0 {
		return nil
	}
	c := over[0]
	if add[c] > limit[c] {
		return &QuotaExceeded{What: c, Never: true, message: fmt.Sprintf(
			"it needs %s %s, but the project's quota is %s; request less, or ask an administrator for a larger quota",
			c.Number(add[c]), c, c.Number(limit[c]))}
	}
	return &QuotaExceeded{What: c, message: fmt.Sprintf(
		"it needs %s %s, but the project uses %s of its quota of %s; delete something, or ask an administrator for a larger quota",
		c.Number(add[c]), c, c.Number(used[c]), c.Number(limit[c]))}
}

// Need returns what a cluster of these groups holds when it has all its members and spares.
func Need(spec api.ClusterSpec) resource.Vector {
	need := resource.Vector{resource.Clusters: 1}
	for i := range spec.Groups {
		g := &spec.Groups[i]
		need = need.Plus(resource.OfMember(g.Shape).Times(g.Size + g.Spares))
	}
	return need
}

// Held returns what the clusters of each project hold now: members and spares that are held. What is being cleaned is the site's own.
func Held(view *state.View) map[string]resource.Vector {
	return sum(view, (*state.Cluster).HeldTotal)
}

// Used returns what counts against the quota of each project when more is asked for: of clusters that have a place, what they hold or are
// to hold, whichever is more; of those that wait, nothing.
func Used(view *state.View) map[string]resource.Vector {
	return sum(view, used)
}

func used(c *state.Cluster) resource.Vector {
	held := c.HeldTotal()
	placed := c.Record != nil && (c.Record.PlacedAt != nil || held[resource.Clusters] > 0)
	if !placed || c.Intent.DeleteRequestedAt != nil || c.Record.Phase == api.ClusterDeleting {
		return held
	}
	return held.Max(Need(c.Intent.Spec))
}

func sum(view *state.View, of func(*state.Cluster) resource.Vector) map[string]resource.Vector {
	all := map[string]resource.Vector{}
	for _, c := range view.Clusters {
		project := projectOr(c.Intent.Project)
		all[project] = all[project].Plus(of(c))
	}
	return all
}
