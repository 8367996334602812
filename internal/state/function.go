package state

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// WithFunctions returns a cluster's groups with what they need of nodes' devices for their ports: functions of adapters, after the devices that the
// groups ask for, in the order of their networks. Which adapters will do follows from the networks. Groups without such ports are as they were.
func (v *View) WithFunctions(project string, spec api.ClusterSpec) []api.Group {
	groups := spec.Groups
	if !slices.ContainsFunc(groups, func(g api.Group) bool { return g.HasFunctions() }) {
		return groups
	}
	groups = slices.Clone(groups)
	for i := range groups {
		groups[i].Devices = slices.Concat(groups[i].Devices, v.functionsOf(project, &spec, &groups[i]))
	}
	return groups
}

func (v *View) functionsOf(project string, spec *api.ClusterSpec, g *api.Group) []api.DeviceRequest {
	var requests []api.DeviceRequest
	for _, n := range g.Functions() {
		var technology api.Technology
		cell := ""
		own, joined := api.CutProjectNetwork(n.Name)
		if !joined {
			if technology = spec.TechnologyOf(n.Name); technology == api.TechnologyInfiniBand {
				cell = spec.Cell
			}
		} else if in := v.NetworkIntent(NetworkIntentName(project, own)); in != nil {
			technology, cell = in.Technology, in.Cell
			if stored := v.Network(in.UID); stored != nil {
				cell = stored.Cell
			}
		}
		requests = append(requests, api.FunctionRequest(n, technology, cell))
	}
	return requests
}

// SpecWithFunctions is WithFunctions for a whole cluster.
func (v *View) SpecWithFunctions(project string, spec api.ClusterSpec) api.ClusterSpec {
	spec.Groups = v.WithFunctions(project, spec)
	return spec
}
