package controller

import (
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/state"
)

// outward is what networks with a way out have of the site.
type outward struct {
	// pool is where floating addresses come from, and connections the most tracked connections of a project on a node; 0 is the default.
	pool        []netip.Prefix
	connections int
	// open are the private ranges that the operator opened.
	open []netip.Prefix
	// addresses are the floating addresses by the UIDs of the clusters that they lead to.
	addresses map[string][]*api.FloatingAddress
}

// carrier is a member of a cluster and its port with a way out.
type carrier struct{ member, port string }

// carrierOf returns the port of an assignment that floating addresses lead to, and whether it has one: only the member itself does, not what is to
// replace it or a part of it. network is that of the port.
func (r *rendered) carrierOf(a *api.Assignment) (network string, c carrier, ok bool) {
	if !a.IsMember() {
		return "", carrier{}, false
	}
	n := floating.WayOut(a, func(uid string) *api.Network {
		if on, ok := r.ends[uid]; ok {
			return &on.network
		}
		return nil
	})
	if n < 0 {
		return "", carrier{}, false
	}
	return a.Ports[n].Network, carrier{member: a.Member, port: fabric.PortOf(a, n).ID}, true
}

// addCarrier notes that floating addresses of a member lead to its port on its node.
func (r *rendered) addCarrier(a *api.Assignment) {
	network, c, ok := r.carrierOf(a)
	if !ok {
		return
	}
	if e, here := r.ends[network].byNode[a.Node]; here {
		e.carriers = append(e.carriers, c)
		r.ends[network].byNode[a.Node] = e
	}
}

// learnAddresses takes in floating addresses. Networks with a way out of the clusters that one leads to, or led to, are put together again.
func (n *carried) learnAddresses(before, after []*api.FloatingAddress) {
	changed, gone := state.Diff(before, after, func(a *api.FloatingAddress) string { return a.Address.String() })
	if len(changed)+len(gone) == 0 {
		return
	}
	clusters := map[string]bool{}
	note := func(list []*api.FloatingAddress) {
		for _, a := range list {
			if a.Target != nil {
				clusters[a.Target.ClusterUID] = true
			}
		}
	}
	note(gone)
	note(changed)
	for _, a := range changed {
		for _, was := range before {
			if was.Address == a.Address {
				note([]*api.FloatingAddress{was})
			}
		}
	}
	n.out.addresses = map[string][]*api.FloatingAddress{}
	for _, a := range after {
		if a.Target != nil {
			n.out.addresses[a.Target.ClusterUID] = append(n.out.addresses[a.Target.ClusterUID], a)
		}
	}
	for uid, on := range n.ends {
		for cluster := range on {
			if clusters[cluster] && on[cluster].network.Egress {
				n.changed[uid] = true
			}
		}
	}
}

// addOutward adds to a network with a way out what it has of the site, and the addresses that lead to ports of a cluster on this node.
func (n *carried) addOutward(network *fabric.Network, cluster string, e end) {
	if !network.Egress {
		return
	}
	network.FloatingPool, network.Open, network.Connections = n.out.pool, n.out.open, n.out.connections
	for _, a := range n.out.addresses[cluster] {
		i := slices.IndexFunc(e.carriers, func(c carrier) bool { return c.member == a.Target.Member })
		if i >= 0 {
			network.Floating = append(network.Floating, fabric.Floating{Address: a.Address, Port: e.carriers[i].port, Forwards: floating.Forwards(a.Target.Ports)})
		}
	}
}
