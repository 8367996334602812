package controller

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/internal/state"
)

// claimants are the clusters with members that claim volumes. They are kept from view to view, so that a change of one cluster costs a look at its
// members only. The zero value has none.
type claimants struct {
	last []*state.Cluster
	// claiming are those among last, in order.
	claiming []*state.Cluster
}

// of returns the claimants of a view, in the order of its clusters.
func (k *claimants) of(view *state.View) []*state.Cluster {
	changed, gone := state.Diff(k.last, view.Clusters, (*state.Cluster).Name)
	k.last = view.Clusters
	if len(changed)+len(gone) == 0 {
		return k.claiming
	}
	stale := map[string]bool{}
	for _, c := range slices.Concat(changed, gone) {
		stale[c.Name()] = true
	}
	next := slices.DeleteFunc(slices.Clone(k.claiming), func(c *state.Cluster) bool { return stale[c.Name()] })
	for _, c := range changed {
		if claims(c) {
			next = append(next, c)
		}
	}
	slices.SortFunc(next, func(a, b *state.Cluster) int { return cmp.Compare(a.Name(), b.Name()) })
	k.claiming = next
	return next
}

// claims reports whether a member of a cluster claims a volume, members that are being released included.
func claims(c *state.Cluster) bool {
	if c.Record == nil {
		return false
	}
	for a := range c.All() {
		if len(a.Volumes) > 0 {
			return true
		}
	}
	return false
}
