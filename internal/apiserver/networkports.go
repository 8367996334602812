package apiserver

import (
	"context"
	"iter"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Networks knows networks as nodes should have them, and checks them by asking the nodes' agents.
type Networks interface {
	// CheckNetwork has a node's agent audit a network, and exchange probes with the other nodes that are asked with the same mark.
	CheckNetwork(ctx context.Context, node string, network int, mark uint64) (agentstream.NetworkReport, error)
	// DesiredNetwork returns a network as a node should have it, false if it should not.
	DesiredNetwork(node string, network int) (fabric.Network, bool, error)
	// PortCounters returns the counters of a node's ports, by port ID. Those of a node whose agent is not connected are not known.
	PortCounters(node string) map[string]api.PortCounters
}

// networkPort is a port of a network, with the assignment that it belongs to.
type networkPort struct {
	assignment *api.Assignment
	port       fabric.Port
}

// requestedNetwork returns the network that a request names, with its numbers.
func (s *Server) requestedNetwork(p tenancy.Principal, view *state.View, name string) (*api.Network, error) {
	n, intent := findNetwork(p, view, name)
	if intent != nil && !seesProject(p, intent.Project) { // who else is on it is the owner's to know
		return nil, fail(codeForbidden, "network %q is of project %q, which shares it; only that project checks it", name, projectOr(intent.Project))
	}
	if intent != nil {
		if n = view.Network(intent.UID); n == nil || n.Refused != "" {
			return nil, fail(codeNetworkUnchecked, "network %q has no subnet yet; see 'nearmetal network show %s'", name, name)
		}
	}
	if n == nil {
		return nil, noNetwork(name)
	}
	return n, nil
}

// portsOnNetwork are the ports of members on a network. Successors have their members' ports only after they take over.
func portsOnNetwork(view *state.View, n *api.Network) iter.Seq[networkPort] {
	on := view.ClustersOnNetwork(n.UID)
	if !n.OfProject() {
		on = nil
		if c := view.ClusterByUID(n.ClusterUID); c != nil {
			on = append(on, c)
		}
	}
	return func(yield func(networkPort) bool) {
		for _, c := range on {
			for a := range c.All() {
				if a.Spare || a.IsSuccessor() {
					continue
				}
				for i := range a.Ports {
					if a.Ports[i].Network == n.UID && !yield(networkPort{a, fabric.PortOf(a, i)}) {
						return
					}
				}
			}
		}
	}
}

// underlayOf returns the tunnel end point of a node, not valid if it is not known.
func underlayOf(view *state.View, node string) netip.Addr {
	if agent := view.Agent(node); agent != nil {
		address, _ := netip.ParseAddr(agent.Underlay)
		return address
	}
	return netip.Addr{}
}

// count adds the counters of the ports of a network, as far as agents have sent them.
func (s *Server) count(view *state.View, status *api.NetworkStatus) {
	n := view.Network(status.UID)
	if n == nil {
		return
	}
	ids := map[portPlace]string{}
	for p := range portsOnNetwork(view, n) {
		ids[portPlace{p.assignment.Node, p.port.Address}] = p.port.ID
	}
	known := map[string]map[string]api.PortCounters{}
	for i := range status.Ports {
		p := &status.Ports[i]
		counters, asked := known[p.Node]
		if !asked {
			counters = s.cfg.Networks.PortCounters(p.Node)
			known[p.Node] = counters
		}
		if c, ok := counters[ids[portPlace{p.Node, p.Address}]]; ok {
			p.Counters = &c
		}
	}
}

// portPlace tells the ports of a network apart.
type portPlace struct {
	node    string
	address netip.Addr
}
