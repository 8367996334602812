package situation

import (
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// hosts are the cells of the InfiniBand ports that hosts have, by GUID, as their fabrics were surveyed last. One that two fabrics claim to have is in none.
func (f Fabrics) hosts() map[string]string {
	all, twice := map[string]string{}, map[string]bool{}
	for _, cell := range f.InfiniBand() {
		t := f[cell].Chart().Get().Topology
		if t == nil {
			continue
		}
		for _, l := range t.Links {
			for _, end := range []api.FabricEnd{l.From, l.To} {
				if !end.Host || end.At == "" {
					continue
				}
				if other, known := all[end.At]; known && other != cell {
					twice[end.At] = true
				}
				all[end.At] = cell
			}
		}
	}
	for guid := range twice {
		delete(all, guid)
	}
	return all
}

// inspectedPorts are the InfiniBand ports that inspection found in a machine, as far as one of these fabrics knows them. A port that another node has by any
// word is nobody's: a machine that says what is not true must not take another's port into its member's partition.
func inspectedPorts(view *state.View, n *state.Node, hosts map[string]string) []api.NodePort {
	hw := n.Hardware()
	if hw == nil || len(hosts) == 0 {
		return nil
	}
	var all []api.NodePort
	for _, h := range hw.HCAs {
		for _, guid := range h.PortGUIDs {
			cell, known := hosts[guid]
			other := func(o *state.Node) bool { return o.Name != n.Name && hasGUID(o, guid) }
			if known && !slices.ContainsFunc(view.Nodes, other) {
				all = append(all, api.NodePort{Name: guid, Fabric: cell, At: guid, Technology: api.FabricInfiniBand})
			}
		}
	}
	return all
}

// hasGUID reports whether a node has an InfiniBand port, by what was inspected or by what its agent says.
func hasGUID(n *state.Node, guid string) bool {
	if hw := n.Hardware(); hw != nil && slices.ContainsFunc(hw.HCAs, func(h api.HCA) bool { return slices.Contains(h.PortGUIDs, guid) }) {
		return true
	}
	if n.Agent == nil {
		return false
	}
	return slices.ContainsFunc(n.Agent.Capacity.Ports, func(p api.NodePort) bool { return p.At == guid }) ||
		slices.ContainsFunc(n.Agent.Capacity.Devices, func(d api.Device) bool { return strings.EqualFold(d.GUID, guid) })
}
