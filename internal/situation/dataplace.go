package situation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
)

// dataPlace is what nodes say that they have of datasets of a project.
func dataPlace(view *state.View, project string, datasets []string, nodes []datasetplan.Node) api.DataPlace {
	var place api.DataPlace
	if len(datasets) == 0 {
		return place
	}
	uids := map[string]bool{}
	for _, name := range datasets {
		if d := view.Dataset(state.DatasetName(project, name)); d != nil {
			uids[d.UID] = true
		}
	}
	sizes := map[string]int64{}
	for _, n := range nodes {
		whole, held := 0, int64(0)
		for i := range n.States {
			s := &n.States[i]
			if !uids[s.UID] {
				continue
			}
			held += s.HeldBytes
			sizes[s.UID] = max(sizes[s.UID], s.OfBytes)
			if s.Whole {
				whole++
			}
		}
		if held > 0 {
			if place.HeldBytes == nil {
				place.HeldBytes = map[string]int64{}
			}
			place.HeldBytes[n.Name] = held
		}
		if whole == len(datasets) {
			place.Whole = append(place.Whole, n.Name)
		}
	}
	for _, size := range sizes {
		place.OfBytes += size
	}
	return place
}

// data tells which nodes have how much of the datasets of a cluster's groups.
func (p plan) data(c *state.Cluster) []api.DataHeld {
	var all []api.DataHeld
	for _, g := range p.site.groups(&c.Intent) {
		for _, node := range slices.Sorted(maps.Keys(g.DataPlace.HeldBytes)) {
			held := api.DataHeld{Group: g.Name, Node: node, HeldBytes: g.DataPlace.HeldBytes[node], OfBytes: g.DataPlace.OfBytes}
			for a, ref := range c.AllWithRef() {
				if a.Group == g.Name && a.Node == node && !a.IsPart() && !a.Spare && !ref.Releasing {
					held.Members = append(held.Members, a.Member)
				}
			}
			all = append(all, held)
		}
	}
	return all
}

// caches tells what became of what members of a cluster read through the caches of their nodes. Members of other clusters on these nodes may have read the
// same datasets.
func (p plan) caches(c *state.Cluster) []api.DatasetCache {
	type place struct{ node, uid string }
	names := map[place]string{}
	for a := range c.All() {
		for _, g := range c.Intent.Spec.Groups {
			if g.Name != a.Group || a.IsPart() {
				continue
			}
			for _, text := range g.Datasets {
				use := api.ParseDatasetUse(text)
				if d := p.site.View.Dataset(state.DatasetName(c.Intent.Project, use.Name)); d != nil && use.Way.Cached() {
					names[place{a.Node, d.UID}] = use.Name
				}
			}
		}
	}
	var all []api.DatasetCache
	for _, n := range p.site.data {
		for i := range n.Caches {
			if name := names[place{n.Name, n.Caches[i].UID}]; name != "" {
				shown := n.Caches[i].Shown(n.Name)
				shown.Dataset = name
				all = append(all, shown)
			}
		}
	}
	return all
}

// smallCaches says which caches can't hold what is read through them.
func smallCaches(caches []api.DatasetCache) string {
	text := ""
	for _, c := range caches {
		if c.TooSmall {
			text += fmt.Sprintf(" The cache of dataset %q on node %s is too small for what is read through it: it has fetched %d MiB again that had made room.", c.Dataset, c.Node, c.AgainBytes>>20)
		}
	}
	return text
}
