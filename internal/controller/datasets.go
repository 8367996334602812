package controller

import (
	"encoding/json"
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
		for _, name := range g.Datasets {
			if d := view.Dataset(state.DatasetName(c.Intent.Project, name)); d != nil {
				claims = append(claims, dataset.Claim{UID: d.UID, Name: name})
			}
		}
	}
	return claims
}

// updateDatasets tells nodes what to do about datasets, by what is stored and by what nodes say they have.
func (d *desiredStates) updateDatasets(view *state.View, dirty map[string]bool) {
	reported := d.agents.Datasets()
	if len(view.Datasets) == 0 && len(reported) == 0 && len(d.datasets) == 0 {
		return
	}
	orders := plan.Orders(d.knownDatasets(view), reported)
	for node, all := range orders {
		if !reflect.DeepEqual(all, d.datasets[node]) {
			dirty[node] = true
		}
	}
	for node := range d.datasets {
		if orders[node] == nil {
			dirty[node] = true
		}
	}
	d.datasets = orders
}

// knownDatasets are the stored datasets, with the nodes that have members with them, and with their opened credentials.
func (d *desiredStates) knownDatasets(view *state.View) []plan.Dataset {
	all, byUID := make([]plan.Dataset, 0, len(view.Datasets)), map[string]int{}
	for _, s := range view.Datasets {
		byUID[s.UID] = len(all)
		all = append(all, plan.Dataset{Dataset: s, Credential: d.credential(s)})
	}
	for _, nodes := range d.nodes {
		for _, p := range nodes {
			for i := range p.members {
				m := &p.members[i]
				for _, claim := range m.Datasets {
					if at, known := byUID[claim.UID]; known {
						all[at].Members = append(all[at].Members, m.Assignment.Node)
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
	return all
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
