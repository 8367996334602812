package controller

import (
	"net/netip"
	"reflect"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/portgroups"
)

// router connects networks: a node with a member on one of them has all of them, because it routes the member's packets itself.
type router struct {
	networks map[string]bool // by UID
	// nodes are the underlay addresses of the nodes with a member that may be reached on any of the networks.
	nodes map[string]netip.Addr
	// guarded are the ports with security groups, by the network's UID.
	guarded map[string][]portgroups.Port
}

// join adds a network to its router, if it is routed.
func (n *carried) join(network api.Network) {
	name := fabric.Router(network)
	if name == "" || n.routerOf[network.UID] != "" {
		return
	}
	n.routerOf[network.UID] = name
	if n.routers[name] == nil {
		n.routers[name] = &router{networks: map[string]bool{}, guarded: map[string][]portgroups.Port{}}
	}
	n.routers[name].networks[network.UID] = true
}

// leave removes a network that has no ports any more.
func (n *carried) leave(uid string) {
	name := n.routerOf[uid]
	if name == "" {
		return
	}
	delete(n.routerOf, uid)
	delete(n.routers[name].networks, uid)
	if len(n.routers[name].networks) == 0 {
		delete(n.routers, name)
	}
}

// followRouters marks the networks that are to be put together again because of changes on other networks of their router: all when the router
// has other nodes, and those with security groups when a port with groups came or went.
func (n *carried) followRouters() {
	changed := map[string][]string{} // UIDs of networks by router
	for uid := range n.changed {
		if name := n.routerOf[uid]; name != "" {
			changed[name] = append(changed[name], uid)
		}
	}
	for name, uids := range changed {
		r := n.routers[name]
		nodes, groups := n.nodesOf(r), false
		for _, uid := range uids {
			guarded := n.guardedOn(uid)
			groups = groups || !reflect.DeepEqual(guarded, r.guarded[uid])
			if r.guarded[uid] = guarded; len(guarded) == 0 {
				delete(r.guarded, uid)
			}
		}
		if !reflect.DeepEqual(nodes, r.nodes) {
			r.nodes = nodes
			for uid := range r.networks {
				n.changed[uid] = true
			}
		}
		if groups {
			for uid := range r.guarded {
				n.changed[uid] = true
			}
		}
	}
}

// nodesOf returns the nodes with a member on one of a router's networks that may be reached.
func (n *carried) nodesOf(r *router) map[string]netip.Addr {
	nodes := map[string]netip.Addr{}
	for uid := range r.networks {
		for _, on := range n.ends[uid] {
			for node, e := range on.byNode {
				if len(e.reached) > 0 && e.address.IsValid() {
					nodes[node] = e.address
				}
			}
		}
	}
	return nodes
}

// beyond returns the ports with security groups on the networks that are routed to one.
func (n *carried) beyond(uid string) []portgroups.Port {
	var ports []portgroups.Port
	if r := n.routers[n.routerOf[uid]]; r != nil {
		for other, guarded := range r.guarded {
			if other != uid {
				ports = append(ports, guarded...)
			}
		}
	}
	return ports
}
