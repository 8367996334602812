// Package topology knows what a fabric looks like: switches, the ports of hosts, the links between them with their errors and loads, and
// where each node of the site is among them.
//
// It is pure: texts of diagnostic programs and descriptions of neighbours go in, an api.FabricTopology comes out. It must never run a
// program, and never guess a link that nobody reported. Start with Parse (InfiniBand) and FromNeighbors (Ethernet), then arrange.go
// (levels, rails, pods), counters.go (errors, loads, faults), places.go (nodes) and draw.go (a picture).
package topology

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// The most that one fabric may have: an InfiniBand subnet has fewer local identifiers (IBA 1.4, section 4.1.3).
const (
	maxDevices = 48 * 1024
	maxLinks   = 512 * 1024
)

// builder collects devices and links in whatever order they are reported.
type builder struct {
	switches map[string]*api.FabricSwitch
	hosts    map[string]*api.FabricHost
	links    map[linkKey]api.FabricLink
}

// linkKey identifies a link by one of its ends: the lesser one.
type linkKey struct{ id, port string }

func newBuilder() *builder {
	return &builder{switches: map[string]*api.FabricSwitch{}, hosts: map[string]*api.FabricHost{}, links: map[linkKey]api.FabricLink{}}
}

// link records a link that one of its ends reports. The other end reports it as well.
func (b *builder) link(l api.FabricLink) {
	if compareEnds(l.To, l.From) < 0 {
		l.From, l.To = l.To, l.From
	}
	key := linkKey{l.From.ID, l.From.Port}
	had := b.links[key]
	l.From.At, l.To.At = cmp.Or(l.From.At, had.From.At), cmp.Or(l.To.At, had.To.At)
	b.links[key] = l
}

// compareEnds puts switches before hosts, and orders by ID and port.
func compareEnds(a, b api.FabricEnd) int {
	switch {
	case a.Host != b.Host && a.Host:
		return 1
	case a.Host != b.Host:
		return -1
	}
	return cmp.Or(cmp.Compare(a.ID, b.ID), comparePorts(a.Port, b.Port))
}

// comparePorts orders numbers as people count.
func comparePorts(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

// finish names the ends of links, and puts all into a stable order.
func (b *builder) finish() api.FabricTopology {
	t := api.FabricTopology{Switches: []api.FabricSwitch{}, Hosts: []api.FabricHost{}, Links: []api.FabricLink{}}
	b.makeNamesUnique()
	for _, s := range b.switches {
		t.Switches = append(t.Switches, *s)
	}
	for _, h := range b.hosts {
		t.Hosts = append(t.Hosts, *h)
	}
	for _, l := range b.links {
		b.name(&l.From)
		b.name(&l.To)
		t.Links = append(t.Links, l)
	}
	slices.SortFunc(t.Switches, func(a, b api.FabricSwitch) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(t.Hosts, func(a, b api.FabricHost) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(t.Links, func(a, b api.FabricLink) int { return cmp.Or(compareEnds(a.From, b.From), compareEnds(a.To, b.To)) })
	arrange(&t)
	return t
}

func (b *builder) name(e *api.FabricEnd) {
	if s := b.switches[e.ID]; s != nil {
		e.Name = s.Name
	} else if h := b.hosts[e.ID]; h != nil {
		e.Name = h.Name
	}
}

// makeNamesUnique adds the ID to the names of switches that are called alike: many are called by their model.
func (b *builder) makeNamesUnique() {
	count := map[string]int{}
	for _, s := range b.switches {
		count[s.Name]++
	}
	for id, s := range b.switches {
		switch {
		case s.Name == "":
			s.Name = id
		case count[s.Name] > 1:
			s.Name += " (" + id + ")"
		}
	}
}

// FromNeighbors makes the topology of an Ethernet from what switches told each node by LLDP: one link for each interface that heard a
// switch. Links between switches are not known, so each switch is a leaf of its own.
func FromNeighbors(nodes map[string][]api.NIC) api.FabricTopology {
	b := newBuilder()
	for node, nics := range nodes {
		for _, nic := range nics {
			n := nic.LLDP
			if n == nil || n.Chassis == "" {
				continue
			}
			b.switches[n.Chassis] = &api.FabricSwitch{ID: n.Chassis, Name: cmp.Or(n.System, n.Chassis)}
			b.hosts[node] = &api.FabricHost{ID: node, Name: node, Node: node}
			b.link(api.FabricLink{
				From: api.FabricEnd{ID: n.Chassis, Port: n.Port}, To: api.FabricEnd{ID: node, Host: true, Port: nic.Name},
				RateBitsPerSecond: nic.SpeedMbps * 1_000_000,
			})
		}
	}
	t := b.finish()
	t.Technology = api.FabricEthernet
	return t
}
