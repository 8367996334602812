package controller

import (
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/portgroups"
)

// ends is what one cluster has of a network, by node.
type ends struct {
	network api.Network
	byNode  map[string]end
}

// end is what one cluster has of a network on one node.
type end struct {
	ports []fabric.Port
	// reached are the ports of members that others may reach. Lost ones and most of those that are let go are not among them, whoever else is
	// on their node.
	reached []fabric.Port
	// guarded are those of the ports that have security groups.
	guarded []portgroups.Port
	// carriers are the members here that floating addresses can lead to, with their ports on this network.
	carriers []carrier
	tunnelEnd
}

// carried is the networks of all clusters as the nodes should have them. Several clusters may have ports on one network, so a network is put
// together from what each of them has of it.
type carried struct {
	ends    map[string]map[string]ends        // by network's UID, then cluster's
	merged  map[string]merged                 // by network's UID
	byNode  map[string]map[string]nodeNetwork // by node, then network's UID
	changed map[string]bool                   // UIDs of networks that are to be put together again
	// rules are those of security groups, by the groups' names among all.
	rules map[string][]string
	// routers are those of routed networks, by name, and routerOf are their names by the networks' UIDs.
	routers  map[string]*router
	routerOf map[string]string
	out      outward
	// encrypted: all tunnels are within WireGuard.
	encrypted bool
}

// members are the members that others reach over the node's underlay address.
func (e end) members() []fabric.Remote {
	if !e.address.IsValid() {
		return nil
	}
	members := make([]fabric.Remote, 0, len(e.reached))
	for _, p := range e.reached {
		members = append(members, e.remote(p))
	}
	return members
}

// merged is a network as its nodes should have it, put together from the ends of all clusters.
type merged struct {
	peers  *agentstream.Share
	groups *agentstream.Share // nil without ports that have some
	byNode map[string]nodeNetwork
}

// nodeNetwork is a network as one node should have it: its peers are apart.
type nodeNetwork struct {
	network fabric.Network
	// peers are none on a node from which nothing may be reached.
	peers agentstream.NodePeers
	// groups are the security groups of the network's ports on all nodes, nil where no port has any.
	groups *agentstream.Share
}

func newCarried(out outward, encrypted bool) carried {
	return carried{
		encrypted: encrypted,
		out:       out,
		ends:      map[string]map[string]ends{}, merged: map[string]merged{}, byNode: map[string]map[string]nodeNetwork{}, changed: map[string]bool{},
		rules: map[string][]string{}, routers: map[string]*router{}, routerOf: map[string]string{},
	}
}

// set replaces what a cluster has of all its networks.
func (n *carried) set(cluster string, before, after map[string]ends) {
	for uid := range before {
		if _, stays := after[uid]; !stays {
			delete(n.ends[uid], cluster)
			n.changed[uid] = true
		}
	}
	for uid, on := range after {
		if was, had := n.ends[uid][cluster]; had && reflect.DeepEqual(was, on) {
			continue
		}
		if n.ends[uid] == nil {
			n.ends[uid] = map[string]ends{}
		}
		n.ends[uid][cluster] = on
		n.join(on.network)
		n.changed[uid] = true
	}
}

// merge puts changed networks together and marks the nodes on which they are other than before. It returns the networks, by UID, that can't
// be described to their nodes, which keep the former ones.
func (n *carried) merge(dirty map[string]bool) map[string]error {
	failed := map[string]error{}
	n.followRouters()
	for uid := range n.changed {
		next, err := n.together(uid)
		if err != nil {
			failed[uid] = err
			continue
		}
		delete(n.changed, uid)
		n.replace(uid, n.merged[uid].byNode, next.byNode, dirty)
		n.merged[uid] = next
		if len(n.ends[uid]) == 0 {
			delete(n.ends, uid)
			delete(n.merged, uid)
			n.leave(uid)
		}
	}
	return failed
}

// together puts a network together, from its clusters in the order of their UIDs.
func (n *carried) together(uid string) (merged, error) {
	byNode, reached, selves := map[string]nodeNetwork{}, map[string]bool{}, map[string]netip.Addr{}
	var members []fabric.Remote
	var network api.Network
	for _, cluster := range slices.Sorted(maps.Keys(n.ends[uid])) {
		on := n.ends[uid][cluster]
		network = on.network
		for node, e := range on.byNode {
			at := byNode[node]
			at.network.Network, at.network.Encrypted = on.network, n.encrypted
			at.network.Ports = append(at.network.Ports, e.ports...)
			n.addOutward(&at.network, cluster, e)
			byNode[node] = at
			reached[node] = reached[node] || len(e.reached) > 0
			if len(e.reached) > 0 && e.address.IsValid() {
				selves[node] = e.address
			}
			members = append(members, e.members()...)
		}
	}
	if len(byNode) == 0 {
		return merged{}, nil
	}
	peers, err := agentstream.NewPeers(network.Index, members)
	if err != nil {
		return merged{}, err
	}
	if was := n.merged[uid].peers; peers.Same(was) {
		peers = was
	}
	groups, err := n.groupsOf(uid)
	if err != nil {
		return merged{}, err
	}
	for node, at := range byNode {
		at.groups = groups
		if reached[node] {
			at.peers = agentstream.NodePeers{Share: peers, Self: selves[node]}
		}
		byNode[node] = at
	}
	if r := n.routers[n.routerOf[uid]]; r != nil && len(members) > 0 {
		for node, self := range r.nodes {
			at := byNode[node]
			at.network.Network, at.network.Encrypted = network, n.encrypted
			at.peers = agentstream.NodePeers{Share: peers, Self: self}
			byNode[node] = at
		}
	}
	return merged{peers, groups, byNode}, nil
}

// replace puts a network in the place of its former self and marks the nodes on which they differ.
func (n *carried) replace(uid string, before, after map[string]nodeNetwork, dirty map[string]bool) {
	for node := range before {
		if _, stays := after[node]; !stays {
			delete(n.byNode[node], uid)
			dirty[node] = true
		}
	}
	for node, next := range after {
		if was, had := before[node]; had && was.peers == next.peers && was.groups == next.groups && reflect.DeepEqual(was.network, next.network) {
			continue
		}
		if n.byNode[node] == nil {
			n.byNode[node] = map[string]nodeNetwork{}
		}
		n.byNode[node][uid] = next
		dirty[node] = true
	}
}

// servedFrom are the clusters, by UID, whose own network is on a node.
func (n *carried) servedFrom(node string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, on := range n.byNode[node] {
			if on.network.ClusterUID != "" && !yield(on.network.ClusterUID) {
				return
			}
		}
	}
}

// addTo adds a node's networks, with their peers, to its desired state.
func (n *carried) addTo(out *agentstream.Desired, node string) {
	for _, on := range n.byNode[node] {
		out.Networks = append(out.Networks, on.network)
		if on.peers.Share != nil {
			out.Peers = append(out.Peers, on.peers)
		}
		if on.groups != nil {
			out.Groups = append(out.Groups, on.groups)
		}
	}
	slices.SortFunc(out.Networks, func(a, b fabric.Network) int { return a.Index - b.Index })
	slices.SortFunc(out.Peers, func(a, b agentstream.NodePeers) int { return a.Compare(b.Share) })
	slices.SortFunc(out.Groups, (*agentstream.Share).Compare)
}
