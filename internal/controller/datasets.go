package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/state"
)

// datasetsOf are the datasets that an assignment has: those that its group asks for. A part of a member that is none itself, such as a server of its GPUs,
// has none.
func datasetsOf(view *state.View, c *state.Cluster, a *api.Assignment) []dataset.Claim {
	if a.ServesGPU() || a.IsSnapshot() {
		return nil
	}
	var claims []dataset.Claim
	for _, g := range c.Intent.Spec.Groups {
		if g.Name != a.Group {
			continue
		}
		for i, text := range g.Datasets {
			asked := api.ParseDatasetUse(text)
			use := asked.For(a)
			d := view.Dataset(state.DatasetName(c.Intent.Project, use.Name))
			if d == nil {
				continue
			}
			claim := dataset.Claim{UID: d.UID, Name: use.Name}
			if use.Way != api.DatasetCopy {
				claim.Way = use.Way
			}
			if use.Way.Cached() {
				claim.Port, claim.Metered = api.FirstCachePort+i, asked.Way == api.DatasetAuto
			}
			claims = append(claims, claim)
		}
	}
	return claims
}

// datasetURLsOf are the URLs of the datasets that members read by URL, by assignment and dataset.
func datasetURLsOf(view *state.View, c *state.Cluster, held []api.Assignment) map[string]map[string][]string {
	type way struct {
		text string
		way  api.DatasetWay
	}
	all, made := map[string]map[string][]string{}, map[way][]string{} // members share their lists
	for i := range held {
		a := &held[i]
		for _, g := range c.Intent.Spec.Groups {
			if g.Name != a.Group {
				continue
			}
			for at, text := range g.Datasets {
				use := api.ParseDatasetUse(text).For(a)
				d := view.Dataset(state.DatasetName(c.Intent.Project, use.Name))
				if d == nil || dataset.Unfit(d.Files, len(d.Sealed) > 0, use.Way) != "" {
					continue
				}
				key := way{fmt.Sprint(g.Name, " ", at), use.Way}
				urls, known := made[key]
				if !known {
					urls = dataset.URLs(d.Files, len(d.Sealed) > 0, use, at)
					made[key] = urls
				}
				if urls == nil {
					continue
				}
				if all[a.ID] == nil {
					all[a.ID] = map[string][]string{}
				}
				all[a.ID][use.Name] = urls
			}
		}
	}
	return all
}

// updateDatasets tells nodes what to do about datasets, by what is stored and by what nodes say they have.
func (d *desiredStates) updateDatasets(view *state.View, dirty map[string]bool) {
	reported := d.agents.Datasets()
	something := func(n plan.Node) bool { return len(n.States)+len(n.Caches) > 0 }
	if len(view.Datasets) == 0 && !slices.ContainsFunc(reported, something) && len(d.datasets)+len(d.caches) == 0 {
		return
	}
	known, caches := d.knownDatasets(view)
	addPurges(caches, known, reported)
	orders := plan.Orders(known, reported)
	differ(orders, d.datasets, dirty)
	differ(caches, d.caches, dirty)
	d.datasets, d.caches = orders, caches
}

// addPurges adds the orders to remove what nodes have cached of datasets that were deleted.
func addPurges(orders map[string][]dataset.CacheOrder, known []plan.Dataset, reported []plan.Node) {
	there := map[string]bool{}
	for i := range known {
		there[known[i].UID] = true
	}
	for _, n := range reported {
		for i := range n.Caches {
			if uid := n.Caches[i].UID; !there[uid] {
				orders[n.Name] = append(orders[n.Name], dataset.CacheOrder{UID: uid, Purge: true})
			}
		}
	}
}

// differ marks the nodes whose orders differ.
func differ[T any](now, before map[string][]T, dirty map[string]bool) {
	for node, all := range now {
		if !reflect.DeepEqual(all, before[node]) {
			dirty[node] = true
		}
	}
	for node := range before {
		if now[node] == nil {
			dirty[node] = true
		}
	}
}

// knownDatasets are the stored datasets, with the nodes that have members with copies of them, and with their opened credentials; and the orders of the nodes
// whose members read them through a cache, sorted by UID.
func (d *desiredStates) knownDatasets(view *state.View) ([]plan.Dataset, map[string][]dataset.CacheOrder) {
	all, byUID := make([]plan.Dataset, 0, len(view.Datasets)), map[string]int{}
	for _, s := range view.Datasets {
		byUID[s.UID] = len(all)
		all = append(all, plan.Dataset{Dataset: s, Credential: d.credential(s)})
	}
	caching := map[string]map[string]dataset.CacheOrder{} // by node and UID
	for _, nodes := range d.nodes {
		for _, p := range nodes {
			for i := range p.members {
				m := &p.members[i]
				for _, claim := range m.Datasets {
					at, known := byUID[claim.UID]
					switch {
					case !known:
					case claim.Copied():
						all[at].Members = append(all[at].Members, m.Assignment.Node)
					case claim.Way.Cached():
						here := caching[m.Assignment.Node]
						if here == nil {
							here = map[string]dataset.CacheOrder{}
							caching[m.Assignment.Node] = here
						}
						here[claim.UID] = dataset.CacheOrder{
							UID: claim.UID, Name: all[at].Name, Files: all[at].Files, Credential: all[at].Credential, Preload: claim.Way == api.DatasetPreloaded || here[claim.UID].Preload,
						}
					}
				}
			}
		}
	}
	maps.DeleteFunc(d.credentials, func(uid string, _ *api.DatasetCredential) bool { _, known := byUID[uid]; return !known })
	for i := range all {
		slices.Sort(all[i].Members)
		all[i].Members = slices.Compact(all[i].Members)
	}
	orders := map[string][]dataset.CacheOrder{}
	for node, of := range caching {
		for _, uid := range slices.Sorted(maps.Keys(of)) {
			orders[node] = append(orders[node], of[uid])
		}
	}
	return all, orders
}

// credential opens the credential of a dataset, once. One that does not open is as good as none: the source says that it is missing.
func (d *desiredStates) credential(s *api.Dataset) *api.DatasetCredential {
	if len(s.Sealed) == 0 || d.unseal == nil {
		return nil
	}
	if opened, known := d.credentials[s.UID]; known {
		return opened
	}
	var opened *api.DatasetCredential
	if text, err := d.unseal(s.UID, s.Sealed); err == nil && json.Unmarshal(text, &opened) != nil {
		opened = nil
	}
	d.credentials[s.UID] = opened
	return opened
}
