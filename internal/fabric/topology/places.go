package topology

import (
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Known is what the site knows of a node's ports.
type Known struct {
	Node string
	// At are how the fabric knows them: GUIDs of ports or of adapters.
	At []string
}

// NameNodes says which hosts are nodes of the site: by the GUIDs of their ports or adapters, and else by the first word of the host's
// description, which Linux makes of the host's name (rdma-ndd(8)).
func NameNodes(t *api.FabricTopology, known []Known) {
	byAt, names := map[string]string{}, map[string]bool{}
	for _, k := range known {
		names[k.Node] = true
		for _, at := range k.At {
			byAt[guid(at)] = k.Node
		}
	}
	node := map[string]string{}
	for _, l := range t.Links {
		for _, e := range []api.FabricEnd{l.From, l.To} {
			if n, ok := byAt[e.At]; e.Host && ok && e.At != "" {
				node[e.ID] = n
			}
		}
	}
	for i := range t.Hosts {
		h := &t.Hosts[i]
		first, _, _ := strings.Cut(h.Name, " ")
		switch {
		case h.Node != "" && t.Technology == api.FabricEthernet:
			continue
		case node[h.ID] != "":
			h.Node = node[h.ID]
		case byAt[h.ID] != "":
			h.Node = byAt[h.ID]
		case names[first]:
			h.Node = first
		default:
			h.Node = ""
		}
	}
	for _, h := range t.Hosts {
		node[h.ID] = h.Node
	}
	for i := range t.Links {
		for _, e := range []*api.FabricEnd{&t.Links[i].From, &t.Links[i].To} {
			if n := node[e.ID]; e.Host && n != "" {
				e.Name = n
			}
		}
	}
}

// Nodes returns the ports of the site's nodes, by node and place.
func Nodes(t *api.FabricTopology) []api.FabricNode {
	node := map[string]string{}
	for _, h := range t.Hosts {
		node[h.ID] = h.Node
	}
	var all []api.FabricNode
	for _, l := range t.Links {
		s, ok := switchOf(t, l.From.ID)
		if n := node[l.To.ID]; ok && l.To.Host && n != "" {
			all = append(all, api.FabricNode{Node: n, At: l.To.At, Switch: s.Name, SwitchPort: l.From.Port, RateBitsPerSecond: l.RateBitsPerSecond, Rail: s.Rail})
		}
	}
	slices.SortFunc(all, func(a, b api.FabricNode) int {
		if a.Node != b.Node {
			return strings.Compare(a.Node, b.Node)
		}
		if a.Rail != b.Rail {
			return a.Rail - b.Rail
		}
		return strings.Compare(a.At, b.At)
	})
	return all
}

// Places returns where each node is: at the leaf of its port of the lowest rail that has no fault, so that members of one group meet on one
// rail. A node has a fault when all its links have one.
func Places(t *api.FabricTopology) map[string]api.NodePlace {
	node := map[string]string{}
	for _, h := range t.Hosts {
		node[h.ID] = h.Node
	}
	rail := map[string]int{}
	places := map[string]api.NodePlace{}
	for _, l := range t.Links {
		s, ok := switchOf(t, l.From.ID)
		n := node[l.To.ID]
		if !ok || !l.To.Host || n == "" {
			continue
		}
		had, seen := places[n]
		place := api.NodePlace{
			Cell: t.Fabric, Technology: t.Technology, Switch: s.Name, Pod: s.Pod, RateBitsPerSecond: max(l.RateBitsPerSecond, had.RateBitsPerSecond), RDMA: t.Technology == api.FabricInfiniBand, Fault: l.Fault,
		}
		better := !seen || had.Fault != "" && l.Fault == "" || (had.Fault == "") == (l.Fault == "") && s.Rail < rail[n]
		if !better {
			had.RateBitsPerSecond = place.RateBitsPerSecond
			places[n] = had
			continue
		}
		places[n], rail[n] = place, s.Rail
	}
	return places
}
