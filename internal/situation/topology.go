package situation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/topology"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
)

// ErrNoFabric reports that the site has no cell of a name.
var ErrNoFabric = errors.New("the site has no such fabric")

// ErrUnaudited reports that a fabric has no tables that the site could read.
var ErrUnaudited = errors.New("the fabric can't be audited")

// revision grows when a fabric's switches, hosts, links or faults change.
func (f Fabrics) revision() int64 {
	sum := int64(0)
	for _, keeper := range f {
		sum += keeper.Chart().Get().Revision
	}
	return sum
}

// Cells returns the names of all cells in order: the Ethernet of the nodes, and those with an executor.
func (f Fabrics) Cells() []string {
	names := append(f.Names(), api.EthernetCell)
	slices.Sort(names)
	return slices.Compact(names)
}

// charted is a cell's topology, with the names of the site's nodes. Of an Ethernet without an executor it is what switches told the nodes.
func (f Fabrics) charted(view *state.View, cell string) (api.FabricTopology, site.Charted) {
	keeper := f[cell]
	if keeper == nil {
		nics := map[string][]api.NIC{}
		for _, n := range view.Nodes {
			if hw := n.Hardware(); hw != nil {
				nics[n.Name] = hw.NICs
			}
		}
		t := topology.FromNeighbors(nics)
		t.Fabric = cell
		return t, site.Charted{}
	}
	if s := keeper.Switching(); s != nil {
		return f.switched(view, cell, s), site.Charted{}
	}
	known := keeper.Chart().Get()
	t := api.FabricTopology{Fabric: cell, Technology: api.FabricInfiniBand, Switches: []api.FabricSwitch{}, Hosts: []api.FabricHost{}, Links: []api.FabricLink{}}
	if known.Topology == nil {
		return t, known
	}
	t = *known.Topology
	t.Fabric, t.ReadAt = cell, &known.ReadAt
	t.Hosts, t.Links = slices.Clone(t.Hosts), slices.Clone(t.Links)
	topology.NameNodes(&t, knownNodes(view, cell))
	return t, known
}

// switched is a cell of managed switches, with the ports that nodes have by their operators' or the switches' word.
func (f Fabrics) switched(view *state.View, cell string, s site.Switching) api.FabricTopology {
	places := s.Places()
	carried := offer.Site{Switches: map[string]map[string]bool{cell: places}}
	nodes := map[string][]api.NodePort{}
	for _, n := range view.Nodes {
		own := slices.Concat(ProvisioningPorts(view, n, carried), DataPorts(view, n, carried))
		if n.Agent != nil {
			for _, p := range n.Agent.Capacity.Ports {
				if p.Fabric == cell && !slices.ContainsFunc(own, func(o api.NodePort) bool { return o.At == p.At }) {
					own = append(own, p)
				}
			}
		}
		if len(own) > 0 {
			nodes[n.Name] = own
		}
	}
	t := topology.FromPorts(slices.Sorted(maps.Keys(places)), nodes)
	t.Fabric = cell
	return t
}

// knownNodes is by what a cell's hosts can be told for nodes: the ports that agents offer, and the adapters that were inspected.
func knownNodes(view *state.View, cell string) []topology.Known {
	var all []topology.Known
	for _, n := range view.Nodes {
		k := topology.Known{Node: n.Name}
		if n.Agent != nil {
			for _, p := range n.Agent.Capacity.Ports {
				if p.Fabric == cell {
					k.At = append(k.At, p.At)
				}
			}
		}
		if hw := n.Hardware(); hw != nil {
			for _, h := range hw.HCAs {
				k.At = append(append(k.At, strings.ReplaceAll(h.GUID, ":", "")), h.PortGUIDs...)
			}
		}
		all = append(all, k)
	}
	return all
}

// Topology returns what a cell looks like.
func (f Fabrics) Topology(view *state.View, cell string) (api.FabricTopology, error) {
	if !slices.Contains(f.Cells(), cell) {
		return api.FabricTopology{}, ErrNoFabric
	}
	t, _ := f.charted(view, cell)
	return t, nil
}

// Places returns where each node is, one place for each cell, in order of the cells.
func (f Fabrics) Places(view *state.View) map[string][]api.NodePlace {
	all := map[string][]api.NodePlace{}
	for _, cell := range f.Cells() {
		if keeper := f[cell]; keeper != nil && keeper.Switching() != nil {
			continue // where a node is on its Ethernet, the cell of the nodes' links tells
		}
		t, _ := f.charted(view, cell)
		places := topology.Places(&t)
		for _, n := range view.Nodes {
			place, ok := places[n.Name]
			if f[cell] == nil && n.Agent != nil && n.Agent.Underlay != "" { // its uplink is in the cell, whoever heard a switch
				rate := place.RateBitsPerSecond
				if uplink := n.Agent.Capacity.UplinkBitsPerSecond; uplink > 0 {
					rate = uplink
				}
				place.Cell, place.Technology, place.RateBitsPerSecond, ok = cell, api.FabricEthernet, rate, true
			}
			if ok {
				all[n.Name] = append(all[n.Name], place)
			}
		}
	}
	return all
}

// Cell returns a cell as the API shows it. sees reports whether the caller may know of a network.
func (f Fabrics) Cell(view *state.View, cell string, sees func(*api.Network) bool) (api.Fabric, error) {
	if !slices.Contains(f.Cells(), cell) {
		return api.Fabric{}, ErrNoFabric
	}
	t, known := f.charted(view, cell)
	out := api.Fabric{
		Name: cell, Technology: t.Technology, Problem: known.Problem, ReadAt: t.ReadAt, Switches: len(t.Switches), Links: len(t.Links), Nodes: topology.Nodes(&t),
		Faults: known.Faults,
	}
	for i := range out.Faults {
		out.Faults[i].Nodes = nodesAt(&t, out.Faults[i].Message)
	}
	if keeper := f[cell]; keeper == nil {
		out.Nodes = withoutSwitch(view, out.Nodes)
	} else if governed := keeper.Governed(); governed != nil {
		out.Managers = managersOf(&t, governed)
	}
	if keeper := f[cell]; keeper != nil {
		for _, alarm := range keeper.Alarms().Present {
			if alarm.Kind != site.LinkErrors { // those are faults
				out.Alarms = append(out.Alarms, alarm.Message)
			}
		}
	}
	if out.Nodes == nil {
		out.Nodes = []api.FabricNode{}
	}
	out.Partitions = f.partitions(view, &t, cell, sees)
	return out, nil
}

// nodesAt are the nodes at the ends of the link with a fault.
func nodesAt(t *api.FabricTopology, fault string) []string {
	var nodes []string
	for _, l := range t.Links {
		for _, e := range []api.FabricEnd{l.From, l.To} {
			if i := slices.IndexFunc(t.Hosts, func(h api.FabricHost) bool { return h.ID == e.ID }); l.Fault == fault && e.Host && i >= 0 && t.Hosts[i].Node != "" {
				nodes = append(nodes, t.Hosts[i].Node)
			}
		}
	}
	return nodes
}

// withoutSwitch adds the nodes on the data network whose switch nobody has heard.
func withoutSwitch(view *state.View, nodes []api.FabricNode) []api.FabricNode {
	heard := map[string]bool{}
	for _, n := range nodes {
		heard[n.Node] = true
	}
	for _, n := range view.Nodes {
		if n.Agent != nil && n.Agent.Underlay != "" && !heard[n.Name] {
			nodes = append(nodes, api.FabricNode{Node: n.Name, At: n.Agent.Underlay, RateBitsPerSecond: n.Agent.Capacity.UplinkBitsPerSecond})
		}
	}
	slices.SortStableFunc(nodes, func(a, b api.FabricNode) int { return strings.Compare(a.Node, b.Node) })
	return nodes
}

// managersOf are the subnet managers, with the nodes on which they run.
func managersOf(t *api.FabricTopology, governed site.Governed) []api.SubnetManager {
	managers := slices.Clone(governed.Managers())
	for i := range managers {
		for _, l := range t.Links {
			if l.To.Host && l.To.At == managers[i].GUID {
				managers[i].Node = l.To.Name
			}
		}
	}
	return managers
}

// ports are the members' ports in a cell, by the UIDs of their networks; of all networks, or of those that are seen.
func (f Fabrics) ports(view *state.View, cell string, sees func(*api.Network) bool) map[string]*wanted {
	all := map[string]*wanted{}
	for _, c := range view.Clusters {
		for a := range c.Held() {
			for _, p := range a.Ports {
				n := view.Network(p.Network)
				if n == nil || !f.carries(cell, n, p) || !sees(n) {
					continue
				}
				if all[n.UID] == nil {
					all[n.UID] = &wanted{network: n, number: f.number(cell, n), ports: map[string]bool{}}
				}
				all[n.UID].ports[placeOf(&p, a)] = p.Limited
			}
			for _, h := range a.HCAs {
				n := view.Network(h.Network)
				if n == nil || h.Fabric != cell || !sees(n) {
					continue
				}
				if all[n.UID] == nil {
					all[n.UID] = &wanted{network: n, number: n.Index, ports: map[string]bool{}}
				}
				all[n.UID].ports[h.At] = false
			}
		}
	}
	return all
}

// wanted is a network with its ports, and whether they are limited.
type wanted struct {
	network *api.Network
	// number is how the cell knows the network. On an Ethernet without an executor, a VLAN and a tunnel may have the same one.
	number int
	ports  map[string]bool
	// leaving are ports that are to go, and may still be there.
	leaving map[string]bool
}

// addLeaving notes the ports of what is being released or is quarantined.
func (f Fabrics) addLeaving(view *state.View, cell string, ports map[int]*wanted) {
	leaves := func(n *api.Network, number int, at string) {
		if ports[number] == nil {
			ports[number] = &wanted{network: n, number: number, ports: map[string]bool{}}
		}
		if ports[number].leaving == nil {
			ports[number].leaving = map[string]bool{}
		}
		ports[number].leaving[at] = true
	}
	add := func(a *api.Assignment) {
		for _, p := range a.Ports {
			if n := view.Network(p.Network); n != nil && f.carries(cell, n, p) {
				leaves(n, f.number(cell, n), p.At)
			}
		}
		for _, h := range a.HCAs {
			if n := view.Network(h.Network); n != nil && h.Fabric == cell {
				leaves(n, n.Index, h.At)
			}
		}
	}
	for _, c := range view.Clusters {
		for a := range c.Releasing() {
			add(a)
		}
	}
	for _, q := range view.Quarantines {
		add(&q.Assignment)
	}
}

// placeOf is how a cell knows a port: on an Ethernet without an executor, by its member's.
func placeOf(p *api.PortClaim, a *api.Assignment) string {
	if p.At != "" {
		return p.At
	}
	return a.ID + " " + p.MAC
}

// carries reports whether a cell carries a member's port.
func (f Fabrics) carries(cell string, n *api.Network, p api.PortClaim) bool {
	if f[cell] == nil {
		return p.Fabric == "" && n.Cell == ""
	}
	return p.Fabric == cell
}

// number is how a cell knows a network.
func (f Fabrics) number(cell string, n *api.Network) int {
	switch {
	case n.PKey != 0:
		return n.PKey
	case n.VLAN != 0 && (f[cell] == nil || f[cell].Switching() != nil):
		return n.VLAN
	default:
		return n.Index
	}
}

// partitions are the networks in a cell, by number, with what their ports send.
func (f Fabrics) partitions(view *state.View, t *api.FabricTopology, cell string, sees func(*api.Network) bool) []api.FabricPartition {
	sent := map[string]int64{}
	for _, l := range t.Links {
		if l.To.Host && l.To.At != "" {
			sent[l.To.At] += l.To.SentBitsPerSecond
		}
	}
	all := []api.FabricPartition{}
	inOrder := func(a, b *wanted) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.network.UID, b.network.UID))
	}
	for _, w := range slices.SortedFunc(maps.Values(f.ports(view, cell, sees)), inOrder) {
		p := api.FabricPartition{Number: w.number, Network: w.network.Name, Project: w.network.Project}
		for _, at := range slices.Sorted(maps.Keys(w.ports)) {
			if w.ports[at] {
				p.Limited++
			} else {
				p.Members++
			}
			p.LoadBitsPerSecond += sent[at]
			if f[cell] != nil {
				p.Ports = append(p.Ports, at)
			}
		}
		all = append(all, p)
	}
	return all
}

// Audit reads a cell's tables now, and compares them with the ports that members hold.
func (f Fabrics) Audit(ctx context.Context, view *state.View, cell string, now time.Time) (api.FabricAudit, error) {
	keeper := f[cell]
	switch {
	case keeper == nil && cell == api.EthernetCell:
		return api.FabricAudit{}, fmt.Errorf("%w: no executor reads the switches of fabric %s; what nodes have of a network is compared by: nearmetal network check NAME", ErrUnaudited, cell)
	case keeper == nil:
		return api.FabricAudit{}, ErrNoFabric
	}
	seen, err := keeper.Audit(ctx)
	if err != nil {
		return api.FabricAudit{}, fmt.Errorf("%w: fabric %s can't be read: %w", ErrUnaudited, cell, err)
	}
	ports := map[int]*wanted{} // an executor knows networks by their numbers
	for _, w := range f.ports(view, cell, func(*api.Network) bool { return true }) {
		ports[w.number] = w
	}
	f.addLeaving(view, cell, ports)
	if s := keeper.Switching(); s != nil {
		isolated := &wanted{network: &api.Network{Name: "isolated provisioning ports"}, number: s.Isolated(), ports: map[string]bool{}}
		for _, p := range Isolated(view, offer.Site{Switches: map[string]map[string]bool{cell: s.Places()}})[cell] {
			isolated.ports[p.At] = true
		}
		ports[isolated.number] = isolated
	}
	return compare(cell, now, seen, ports), nil
}

// compare lists the differences between what was read and what is wanted.
func compare(cell string, now time.Time, seen site.Observation, ports map[int]*wanted) api.FabricAudit {
	out := api.FabricAudit{Fabric: cell, ReadAt: now, Drift: []string{}, Unknown: []string{}}
	found := map[int]map[string]bool{}
	for _, n := range seen.Networks {
		found[n.Number] = map[string]bool{}
		for _, p := range n.Ports {
			out.Ports++
			found[n.Number][p.At] = p.Limited
			if text := surplus(n.Number, p, ports[n.Number]); text != "" {
				out.Drift = append(out.Drift, text)
			}
		}
	}
	for _, number := range slices.Sorted(maps.Keys(ports)) {
		w := ports[number]
		for _, at := range slices.Sorted(maps.Keys(w.ports)) {
			if _, unknown := seen.Unknown[at]; unknown {
				continue
			}
			if _, ok := found[number][at]; !ok {
				out.Drift = append(out.Drift, fmt.Sprintf("port %s is not in network %d (%s), and is to be", at, number, w.network.Name))
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(seen.Unknown)) {
		out.Unknown = append(out.Unknown, fmt.Sprintf("port %s: %s", at, seen.Unknown[at]))
	}
	return out
}

// surplus says what is wrong with a port that was found in a network; "" when it is to be there.
func surplus(number int, p site.Port, w *wanted) string {
	if w == nil {
		return fmt.Sprintf("port %s is in network %d, which no member of this site holds", p.At, number)
	}
	limited, known := w.ports[p.At]
	switch {
	case !known && !w.leaving[p.At]:
		return fmt.Sprintf("port %s is in network %d (%s), and no member holds it there", p.At, number, w.network.Name)
	case known && limited != p.Limited:
		return fmt.Sprintf("port %s of network %d (%s) is a %s member, and is to be a %s one", p.At, number, w.network.Name, membership(p.Limited), membership(limited))
	default:
		return ""
	}
}

func membership(limited bool) string {
	if limited {
		return "limited"
	}
	return "full"
}

// followPlaces finds where nodes are now, if that may have changed, and returns the nodes that are elsewhere than before.
func (r *Room) followPlaces(view *state.View, changed, gone []*state.Node) map[string]bool {
	charts := r.Fabrics.revision()
	told := charts != r.charts || len(gone) > 0 || slices.ContainsFunc(changed, func(n *state.Node) bool { return !sameOffer(r.last.Node(n.Name), n) })
	if !told {
		return nil
	}
	was := r.places
	r.charts, r.places, r.hosts = charts, r.Fabrics.Places(view), r.Fabrics.hosts()
	moved := map[string]bool{}
	for _, n := range view.Nodes {
		if !slices.Equal(was[n.Name], r.places[n.Name]) {
			moved[n.Name] = true
		}
	}
	return moved
}
