package placement

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// A member uses remote GPUs by front ends, which are programs of its node. A node without them carries no such member.

// noGPUPrograms is what such a node lacks.
const noGPUPrograms = "its agent has no programs of remote GPUs; run: make gpuremote, and give their folder by --gpu-programs"

// callsServers reports whether members of a group can use the remote GPUs there that they ask for. Who may have any GPU can also have a whole one.
func (p platform) callsServers(g *api.Group) bool {
	return p.gpuPrograms || !slices.ContainsFunc(g.Devices, remoteGPU)
}

func (v *View) hasGPUPrograms(id int32) bool {
	return v.platforms.values[v.rows[id].platform].gpuPrograms
}

// groupsBy are groups whose requests for any GPU are for whole ones of the members' nodes, or for remote ones; nil where there are none.
func groupsBy(groups []api.Group, remote bool) []api.Group {
	isAny := func(r api.DeviceRequest) bool { return r.Class == api.ClassGPU && r.Way == api.WayAny }
	if !slices.ContainsFunc(groups, func(g api.Group) bool { return slices.ContainsFunc(g.Devices, isAny) }) {
		return nil
	}
	by := slices.Clone(groups)
	for i := range by {
		way := api.WholeWay(by[i].Stack)
		if remote {
			way = api.WayRemote
		}
		by[i].Devices = slices.Clone(by[i].Devices)
		for k, r := range by[i].Devices {
			by[i].Devices[k] = r.By(way)
		}
	}
	return by
}

// aboutGPUPrograms tells of nodes without the programs of remote GPUs.
func (d *diagnosis) aboutGPUPrograms() []string {
	var texts []string
	for _, n := range d.failing(ConstraintGPUPrograms) {
		texts = append(texts, n.record.Name+": "+noGPUPrograms)
	}
	const what = "has the programs by which members use remote GPUs"
	return d.tooFew("no node "+what, "too few nodes have the programs by which members use remote GPUs", texts)
}
